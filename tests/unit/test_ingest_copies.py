"""What is copied and truncated is finished from the copy, and no line of it is taken twice."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from flumeng.ingest import names
from flumeng.ingest.cursor import cursors
from flumeng.ingest.tailed_file import EARLIER_SECONDS
from flumeng.ingest.tailer import QUIET_SECONDS
from flumeng.ingest.testing import Follower, write

PATTERNS = ["app.log", "app.log*"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def copy_and_truncate(log: Path, number: int = 1) -> Path:
    """As logrotate does: the older copies are numbered on first."""
    newest = log.with_name(f"{log.name}.{number}")
    if newest.exists():
        os.rename(newest, copy_name(log, number + 1))  # noqa: PTH104
    shutil.copyfile(log, newest)
    os.truncate(log, 0)
    return newest


def copy_name(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


def finish(follower: Follower) -> list[str]:
    """Also what is only taken or given up after a while."""
    for _ in range(4):
        follower.settle(seconds=QUIET_SECONDS)
    return follower.lines


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("down", [False, True])
def test_what_was_not_read_before_it_was_truncated_is_read_from_the_copy(
    log: Path, pattern: str, down: bool
) -> None:
    """Under the same identity, from the same offset on; and the copy is not read for itself."""
    follower = Follower(log.with_name(pattern))
    write(log, "1\n")
    follower.settle()
    write(log, "2\n3\nno newline")
    copy_and_truncate(log)
    write(log, "new\n")
    if down:
        follower.crash()
    assert sorted(finish(follower)) == ["1", "2", "3", "new", "no newline"]
    row = follower.lines.index("3")
    assert follower.attrs(row) == follower.attrs(0) | {"offset": "4"}
    follower.crash()
    assert len(finish(follower)) == 5
    assert follower.tailer.cut == 0


def test_what_is_left_of_a_copy_is_read_also_when_the_next_copy_has_its_inode(log: Path) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "2\n3\n")
    copy = copy_and_truncate(log)
    write(log, "4\n")
    while not any(b"4" in chunk.data for chunk in follower.submitted):
        follower.poll()
    follower.commit(next(n for n, c in enumerate(follower.submitted, 1) if b"4" in c.data))
    assert follower.lines == ["1", "4"]
    follower.crash()
    log.with_name("app.log.2.gz").write_bytes(gzip.compress(copy.read_bytes()))
    write(log, "5\n")
    with copy.open("r+b") as file:  # keeps its inode
        file.write(log.read_bytes())
        file.truncate()
    os.truncate(log, 0)
    assert sorted(finish(follower)) == ["1", "2", "3", "4", "5"]
    assert follower.tailer.cut == 0


@pytest.mark.parametrize("suffix", [".1", "-20261121", ".old"])
def test_copies_have_names_of_many_kinds(log: Path, suffix: str) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    shutil.copyfile(log, f"{log}{suffix}")
    os.truncate(log, 0)
    assert finish(follower) == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("app.log.1", {"app.log", "app"}),
        ("app.log-20261121", {"app.log", "app"}),
        ("app-20261121.log", {"app.log", "app", "app-20261121"}),
        ("app.log", {"app"}),
        ("app1", set()),
    ],
)
def test_of_what_a_file_may_be_a_copy(name: str, expected: set[str]) -> None:
    assert set(names.originals(name)) == expected


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_copy_in_the_making_is_not_read(log: Path, pattern: str) -> None:
    """Nor is one that nothing is truncated after, nor one that is found first by a later worker."""
    follower = Follower(log.with_name(pattern))
    lines = [f"{number}" for number in range(1000)]
    write(log, "\n".join(lines) + "\n")
    data = log.read_bytes()
    follower.settle()
    with copy_name(log, 1).open("wb") as copy:
        for begin in range(0, len(data), 1000):
            copy.write(data[begin : begin + 1000])
            copy.flush()
            assert follower.settle() == lines
    write(log, "more\n")
    assert finish(follower) == [*lines, "more"]
    follower.crash()
    os.truncate(log, 0)
    write(log, "new\n")
    assert finish(follower) == [*lines, "more", "new"]


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("seconds", [0.1, 3 * EARLIER_SECONDS])
@pytest.mark.parametrize("count", [1, 30, 100])
def test_a_copy_without_the_lines_that_were_read_last_is_not_read_either(
    log: Path, down: bool, seconds: float, count: int
) -> None:
    """They were written after it was made and before the file was truncated."""
    follower = Follower(log.with_name("app.log*"))
    lines = [f"line {number}" for number in range(count)]
    for line in lines:
        write(log, line + "\n")
        follower.settle(seconds)
    data = log.read_bytes()
    lines.append("between" * 50)
    write(log, lines[-1] + "\n")
    follower.settle()
    copy_name(log, 1).write_bytes(data)
    os.truncate(log, 0)
    write(log, "new\n")
    if down:
        follower.crash()
    assert sorted(finish(follower)) == sorted([*lines, "new"])
    follower.crash()
    assert len(finish(follower)) == len(lines) + 1


@pytest.mark.parametrize("compressed", [False, True])
def test_a_copy_that_goes_before_its_file_is_truncated_is_not_read(
    log: Path, compressed: bool
) -> None:
    """It is open by then."""
    follower = Follower(log.with_name("app.log*"))
    write(log, "1\n")
    copy = copy_name(log, 1)
    copy.touch()
    assert follower.settle() == ["1"]
    shutil.copyfile(log, copy)
    os.truncate(log, 0)
    if compressed:
        copy.with_name("app.log.1.gz").write_bytes(gzip.compress(copy.read_bytes()))
    copy.unlink()
    assert finish(follower) == ["1"]
    assert follower.tailer.cut == 0


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_copy_in_the_making_is_not_read_when_a_worker_starts(log: Path, pattern: str) -> None:
    """Of what was begun anew while no worker ran."""
    follower = Follower(log.with_name(pattern))
    write(log, "1\n")
    follower.settle()
    follower.crash()
    copy_and_truncate(log)
    write(log, "2\n3\n")
    shutil.copyfile(log, copy_name(log, 2))
    follower.poll()
    follower.poll()
    os.truncate(log, 0)
    write(log, "4\n")
    assert sorted(finish(follower)) == ["1", "2", "3", "4"]


def test_a_file_that_only_begins_alike_is_no_copy(log: Path) -> None:
    head = "the same first line of every file, longer than a mark\n" * 6
    follower = Follower(log.with_name("app.log*"))
    write(log, head + "one\ntwo\n")
    follower.settle()
    write(log, "lost\n")
    write(copy_name(log, 1), head + "ONE\ntwo\nthree\n")
    os.truncate(log, 0)
    finish(follower)
    assert follower.lines[8:] == [*head.splitlines(), "ONE", "two", "three"]
    assert follower.attrs(8)["path"] == str(copy_name(log, 1))
    assert follower.tailer.cut == 1


def test_a_file_that_only_goes_on_alike_is_no_copy(log: Path) -> None:
    same = "the same line in both files, and many of them\n" * 12
    follower = Follower(log)
    write(log, "1\n" + same)
    follower.settle()
    os.truncate(log, 0)
    write(log.with_name("app.log.other"), "2\n" + same + "not this\n")
    assert finish(follower) == ["1", *same.splitlines()]
    assert follower.tailer.cut == 1


def test_an_old_copy_of_equal_beginning_that_nobody_asked_for_is_not_read(log: Path) -> None:
    write(copy_name(log, 1), "started\nold\n")
    os.utime(copy_name(log, 1), (1e9, 1e9))
    follower = Follower(log)
    write(log, "started\n")
    follower.settle()
    os.truncate(log, 0)
    assert finish(follower) == ["started"]
    assert follower.tailer.cut == 1


def test_files_of_equal_content_are_all_read(tmp_path: Path) -> None:
    """Unless their names say that they are copies."""
    follower = Follower(tmp_path / "*")
    for name in ("job-1.log", "job-2.log", "job-12.log", "other"):
        write(tmp_path / name, "done\n")
    assert follower.settle() == ["done"] * 4


def test_a_held_copy_that_goes_its_own_way_is_read_from_its_beginning(log: Path) -> None:
    follower = Follower(log.with_name("app.log*"))
    write(log, "1\n2\n")
    write(copy_name(log, 1), "1\n")
    assert finish(follower) == ["1", "2"]
    write(copy_name(log, 1), "other\n")
    assert finish(follower) == ["1", "2", "1", "other"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_truncated_twice_between_two_looks(log: Path, pattern: str) -> None:
    """The first copy is told by its content, not by its number; the second one is all of it."""
    follower = Follower(log.with_name(pattern))
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    copy_and_truncate(log)
    write(log, "second 1\nsecond 2\n")
    copy_and_truncate(log)
    write(log, "third\n")
    shutil.copyfile(log, log.with_name("app.log.0"))
    assert sorted(finish(follower)) == ["1", "2", "second 1", "second 2", "third"]
    follower.crash()
    assert len(finish(follower)) == 5
    assert follower.tailer.cut == 0
    row = follower.lines.index("second 2")
    assert follower.attrs(row)["offset"] == "9"
    if pattern == "app.log":
        assert follower.attrs(row) == follower.attrs(0) | {"offset": "9"}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("down_before", [False, True])
@pytest.mark.parametrize("later", [[], ["3"]])
def test_truncated_again_before_anything_was_read_of_it(
    log: Path, pattern: str, down: bool, down_before: bool, later: list[str]
) -> None:
    """Nothing in the log tells that there was something in it meanwhile."""
    follower = Follower(log.with_name(pattern))
    write(log, "1\n")
    follower.settle()
    if down_before:
        follower.crash()
    copy_and_truncate(log)
    assert finish(follower) == ["1"]
    if down:
        follower.crash()
    write(log, "2a\n2b\n")
    copy_and_truncate(log)
    for text in later:
        write(log, f"{text}\n")
    assert sorted(finish(follower)) == ["1", "2a", "2b", *later]
    if pattern == "app.log":
        row = follower.lines.index("2b")
        assert follower.attrs(row) == follower.attrs(0) | {"offset": "3"}
    follower.crash()
    assert len(finish(follower)) == 3 + len(later)
    assert follower.tailer.cut == 0


@pytest.mark.parametrize("read_before", [False, True])
def test_such_a_copy_may_have_the_inode_of_an_older_one(log: Path, read_before: bool) -> None:
    follower = Follower(log)
    copy = log.with_name("app.log.1")
    for text in ("1", "2", "3"):
        write(log, f"{text}\n")
        if text == "1":
            follower.settle()
        shutil.copyfile(log, copy)
        if read_before:
            follower.settle()
        os.truncate(log, 0)
        assert finish(follower) == ["1", "2", "3"][: int(text)]
        follower.crash()
    assert follower.tailer.cut == 0


@pytest.mark.parametrize("read_before", [False, True])
def test_such_a_copy_may_be_made_in_one_that_is_open(log: Path, read_before: bool) -> None:
    follower = Follower(log)
    copy = log.with_name("app.log.1")
    write(log, "1\n")
    follower.settle()
    shutil.copyfile(log, copy)
    os.truncate(log, 0)
    follower.settle()
    write(log, "2\n")
    shutil.copyfile(log, copy)
    if read_before:
        follower.settle()
    os.truncate(log, 0)
    write(log, "3\n")
    assert sorted(finish(follower)) == ["1", "2", "3"]
    assert follower.tailer.cut == 0


def test_such_a_copy_is_known_together_with_the_first_lines_that_follow_it(log: Path) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    copy_and_truncate(log)
    finish(follower)
    write(log, "2\n")
    copy_and_truncate(log)
    write(log, "3\n")
    follower.poll()
    follower.commit(1)
    assert follower.lines == ["1", "3"]
    follower.crash()
    assert finish(follower) == ["1", "3", "2"]


def test_such_a_copy_is_read_also_when_the_log_is_gone(log: Path) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    copy_and_truncate(log)
    finish(follower)
    follower.crash()
    write(log, "2\n")
    copy_and_truncate(log)
    log.unlink()
    assert finish(follower) == ["1", "2"]


def test_such_a_copy_that_cannot_be_read_is_waited_for(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the log with it, since it counts as read together with that."""
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    copy_and_truncate(log)
    finish(follower)
    write(log, "2\n")
    copy = copy_and_truncate(log)
    write(log, "3\n")
    pread = os.pread

    def damaged(fd: int, size: int, offset: int) -> bytes:
        if os.fstat(fd).st_ino == copy.stat().st_ino:
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", damaged)
    assert finish(follower) == ["1"]
    assert follower.tailer.unreadable == {str(log): "Input/output error"}
    monkeypatch.undo()
    assert sorted(finish(follower)) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("app.log.1", ["1", "2", "foreign", "3"]),
        ("app.log-20261121", ["1", "2", "foreign", "3"]),
        ("app-20261121.log", ["1", "2", "foreign", "3"]),
        ("app-2.log", ["1", "2", "3"]),
        ("app.log.old", ["1", "2", "3"]),
        ("app.logger.1", ["1", "2", "3"]),
    ],
)
def test_what_is_taken_for_a_copy_by_its_name_and_age_alone(
    log: Path, name: str, expected: list[str]
) -> None:
    """``app-2.log`` may be the log of a second program."""
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    copy_and_truncate(log, number=7)
    finish(follower)
    write(log.with_name(name), "foreign\n")
    write(log, "3\n")
    assert sorted(finish(follower)) == sorted(expected)


def test_an_older_file_is_not_taken_for_a_copy_by_its_name_alone(log: Path) -> None:
    write(log.with_name("app.log.3"), "before\n")
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    os.utime(log.with_name("app.log.3"), (0, 0))
    copy_and_truncate(log)
    finish(follower)
    write(log, "2\n")
    assert finish(follower) == ["1", "2"]


@pytest.mark.parametrize("kept", [".1", ""])
def test_the_copy_may_be_compressed_by_then(log: Path, kept: str) -> None:
    follower = Follower(log.with_name("app.log*"))
    write(log, "1\n" * 100)
    follower.settle()
    write(log, "2\n")
    copy = copy_and_truncate(log)
    if kept:
        follower.poll()
        follower.commit()
    copy.with_name("app.log.1.gz").write_bytes(gzip.compress(copy.read_bytes()))
    copy.unlink()
    follower.crash()
    assert finish(follower)[99:] == ["1", "2"]
    assert follower.attrs(100) == follower.attrs(0) | {"offset": "200"}
    assert follower.tailer.cut == 0
    follower.crash()
    assert len(finish(follower)) == 101


def test_a_copy_that_is_made_in_the_same_file_each_time(log: Path) -> None:
    """As a script does; what it held before was read."""
    copy = log.with_name("app.log.copy")
    follower = Follower(log.with_name("app.log*"))
    expected = []
    for number in range(6):
        write(log, f"{number} a\n")
        follower.settle()
        write(log, f"{number} b\n")
        shutil.copyfile(log, copy)
        if number % 2:
            follower.crash()
        os.truncate(log, 0)
        expected += [f"{number} a", f"{number} b"]
        assert follower.settle() == expected
    assert follower.tailer.cut == 0


@pytest.mark.parametrize("down", [False, True])
def test_without_a_copy_it_is_told_and_counted(
    log: Path, down: bool, caplog: pytest.LogCaptureFixture
) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "lost\n")
    os.truncate(log, 0)
    write(log, "2\n")
    if down:
        follower.crash()
    assert finish(follower) == ["1", "2"]
    assert follower.tailer.cut == 1
    assert "app.log was cut and no copy was found: what came after its first 2" in caplog.text
    assert len(cursors(follower.state)) == 1


def test_a_copy_that_cannot_be_read_is_told_and_waited_for(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    bad = copy_and_truncate(log).stat().st_ino
    write(log, "new\n")
    pread = os.pread

    def failing(fd: int, size: int, offset: int) -> bytes:
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, offset)

    with monkeypatch.context() as broken:
        broken.setattr(os, "pread", failing)
        follower.settle()
        opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(5):
            follower.settle()
            assert follower.tailer.unreadable == {str(log): "Input/output error"}
        assert len(os.listdir("/proc/self/fd")) == opened  # noqa: PTH208
    assert sorted(finish(follower)) == ["1", "2", "new"]
    assert (follower.tailer.cut, follower.tailer.unreadable) == (0, {})


def test_a_copy_that_is_deleted_before_it_was_read_is_told_and_counted(log: Path) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "lost\n")
    copy = copy_and_truncate(log)
    follower.poll()
    follower.poll()
    follower.commit(2)
    copy.unlink()
    follower.crash()
    assert finish(follower) == ["1"]
    assert follower.tailer.cut == 1


def test_a_copy_that_was_read_may_be_deleted(log: Path) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    copy = copy_and_truncate(log)
    finish(follower)
    copy.unlink()
    follower.crash()
    assert finish(follower) == ["1", "2"]
    assert follower.tailer.cut == 0


def test_a_file_that_is_deleted_goes_on_in_its_copy(log: Path) -> None:
    follower = Follower(log.with_name("app.log*"))
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    shutil.copyfile(log, copy_name(log, 1))
    follower.settle()
    log.unlink()
    assert finish(follower) == ["1", "2"]
    follower.crash()
    assert finish(follower) == ["1", "2"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_killed_at_any_time(log: Path, pattern: str) -> None:
    """After each poll, with any number of its chunks durable."""
    for crashes in range(1, 40):
        folder = log.with_name(f"{crashes}")
        folder.mkdir()
        file = folder / "app.log"
        follower = Follower(folder / pattern)
        expected: list[str] = []
        steps = 0
        for generation in range(4):
            for part in ("a", "b", "c"):
                write(file, f"{generation}{part}\n" * 30)
                expected += [f"{generation}{part}"] * 30
                if part == "c":
                    copy_and_truncate(file)
                for _ in range(3):
                    steps += 1
                    follower.poll()
                    follower.commit(steps % 3)
                    if steps % crashes == 0:
                        follower.crash()
            follower.settle()
            write(file, f"{generation} known\n")
            expected.append(f"{generation} known")
            follower.settle()
        assert sorted(finish(follower)) == sorted(expected)
        assert follower.tailer.cut == 0


class AnyCopying(RuleBasedStateMachine):
    """A log is copied in steps and truncated, copies are numbered on, compressed and deleted; the
    worker reads and crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.log = self.folder / "app.log"
        self.copies: list[Path] = []
        self.numbers = 0
        self.written: list[str] = []
        self.between: set[str] = set()
        self.now: list[str] = []
        self.known = self.copied = False
        self.begun = self.only_copies_know = False
        self.making: Path | None = None
        self.follower: Follower

    @initialize(pattern=st.sampled_from(PATTERNS))
    def start(self, pattern: str) -> None:
        self.follower = Follower(self.folder / pattern)

    @rule(lines=st.integers(1, 4), length=st.sampled_from([0, 300]))
    def write_lines(self, lines: int, length: int) -> None:
        """What is written after the copying and before the truncation is in no copy."""
        for _ in range(lines):
            self.numbers += 1
            text = f"<{self.numbers}>{'x' * length}"
            write(self.log, text + "\n")
            self.written.append(text)
            if self.copied:
                self.between.add(text)
            else:
                self.now.append(text)

    @rule()
    def read_and_commit(self) -> None:
        """Once it is known, it is known that it was truncated."""
        self.follower.settle()
        self.known = self.known or bool(self.written)
        self.begun = self.begun or bool(self.now)

    @precondition(lambda self: self.known and self.now and self.making is None)
    @rule(share=st.floats(0, 1))
    def begin_to_copy(self, share: float) -> None:
        for number in range(len(self.copies), 0, -1):
            path = self.copies[-number]
            path.rename(
                path.with_name(f"app.log.{number + 1}{path.suffix * (path.suffix == '.gz')}")
            )
            self.copies[-number] = path.with_name(
                f"app.log.{number + 1}{path.suffix * (path.suffix == '.gz')}"
            )
        self.making = self.folder / "app.log.1"
        data = self.log.read_bytes()
        self.making.write_bytes(data[: int(share * len(data))])
        self.copied = False

    @precondition(lambda self: self.making is not None and not self.copied)
    @rule()
    def end_the_copy(self) -> None:
        assert self.making is not None
        with self.making.open("ab") as copy:
            copy.write(self.log.read_bytes()[copy.tell() :])
        self.copied = True

    @precondition(lambda self: self.copied)
    @rule()
    def truncate(self) -> None:
        assert self.making is not None
        os.truncate(self.log, 0)
        self.copies.append(self.making)
        self.making = None
        self.only_copies_know |= not self.begun
        self.now, self.known, self.begun, self.copied = [], False, False, False

    @precondition(lambda self: self.making is None and self.copies)
    @rule()
    def compress_the_oldest_copy(self) -> None:
        """Of which something is known: no other one is found in compressed form."""
        if self.only_copies_know:
            self.read_all()
        oldest = self.copies[0]
        if oldest.suffix != ".gz":
            self.copies[0] = oldest.with_name(oldest.name + ".gz")
            self.copies[0].write_bytes(gzip.compress(oldest.read_bytes()))
            oldest.unlink()

    @precondition(lambda self: self.making is None and self.copies)
    @rule()
    def delete_a_copy_that_was_read(self) -> None:
        self.read_all()
        self.copies.pop(0).unlink()

    @rule(seconds=st.sampled_from([0.1, 1.0, QUIET_SECONDS]))
    def poll(self, seconds: float) -> None:
        self.follower.poll(seconds)

    @rule(chunks=st.integers(1, 3))
    def commit_some(self, chunks: int) -> None:
        self.follower.commit(chunks)

    @rule()
    def crash(self) -> None:
        self.follower.crash()

    def read_all(self) -> None:
        finish(self.follower)
        taken = set(self.follower.lines)
        assert taken <= set(self.written)
        assert set(self.written) - taken <= self.between
        self.known = self.known or bool(self.written)
        self.begun = self.begun or bool(self.now)
        self.only_copies_know = False

    @invariant()
    def nothing_is_taken_twice(self) -> None:
        assert len(set(self.follower.lines)) == len(self.follower.lines)

    def teardown(self) -> None:
        self.read_all()
        assert len(cursors(self.follower.state)) <= len(self.copies) + 2
        self.follower.tailer.close()
        shutil.rmtree(self.folder)


TestAnyCopying = AnyCopying.TestCase
TestAnyCopying.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
