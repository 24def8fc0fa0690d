"""A copied and truncated file is finished from the copy, and no line of it is taken twice."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest

from flumeng.connectors.tail import rotated_names
from flumeng.connectors.tail.file_position import cursors
from tests.testkit.descriptors import own_descriptors
from tests.testkit.ingest_worker import Follower, copy_and_truncate, pread_but_of, write

PATTERNS = ["app.log", "app.log*"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("down", [False, True])
def test_lines_unread_before_a_truncation_are_read_from_the_copy(
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
    assert sorted(follower.finish()) == ["1", "2", "3", "new", "no newline"]
    row = follower.lines.index("3")
    assert follower.attrs(row) == follower.attrs(0) | {"offset": "4"}
    follower.crash()
    assert len(follower.finish()) == 5
    assert follower.tailer.cut == 0


def test_rest_of_a_copy_is_read_also_when_the_next_copy_has_its_inode(log: Path) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "2\n3\n")
    copy = copy_and_truncate(log)
    write(log, "4\n")
    while not any(b"4" in block.data for block in follower.submitted):
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
    assert sorted(follower.finish()) == ["1", "2", "3", "4", "5"]
    assert follower.tailer.cut == 0


@pytest.mark.parametrize("suffix", [".1", "-20261121", ".old"])
def test_copytruncate_copies_of_many_names_are_recognized(log: Path, suffix: str) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    shutil.copyfile(log, f"{log}{suffix}")
    os.truncate(log, 0)
    assert follower.finish() == ["1", "2"]


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
def test_original_names_of_a_copy_are_derived_from_its_name(name: str, expected: set[str]) -> None:
    assert set(rotated_names.originals(name)) == expected


@pytest.mark.parametrize("pattern", PATTERNS)
def test_unfinished_copy_is_not_read(log: Path, pattern: str) -> None:
    """Nor is one that nothing is truncated after, nor one that is found first by a later worker."""
    follower = Follower(log.with_name(pattern))
    lines = [f"{number}" for number in range(1000)]
    write(log, "\n".join(lines) + "\n")
    data = log.read_bytes()
    follower.settle()
    with log.with_name("app.log.1").open("wb") as copy:
        for begin in range(0, len(data), 1000):
            copy.write(data[begin : begin + 1000])
            copy.flush()
            assert follower.settle() == lines
    write(log, "more\n")
    assert follower.finish() == [*lines, "more"]
    follower.crash()
    assert follower.finish() == [*lines, "more"]


@pytest.mark.parametrize("seen", [600, None])
def test_copy_without_the_last_read_lines_is_not_read_again(log: Path, seen: int | None) -> None:
    """They were written after it was made and before the file was truncated. The worker has seen
    the copy, or a part of it, before that."""
    follower = Follower(log.with_name("app.log*"))
    lines = [f"line {number}" for number in range(100)]
    write(log, "".join(f"{line}\n" for line in lines))
    follower.settle()
    data = log.read_bytes()
    copy = log.with_name("app.log.1")
    copy.write_bytes(data[:seen])
    follower.settle()
    write(log, "between\n")
    follower.settle()
    copy.write_bytes(data)
    os.truncate(log, 0)
    write(log, "new\n")
    assert follower.finish() == [*lines, "between", "new"]
    follower.crash()
    assert len(follower.finish()) == len(lines) + 2
    assert (follower.tailer.cut, follower.tailer.tracked.missed) == (0, 0)


@pytest.mark.parametrize("compressed", [False, True])
def test_copy_removed_before_its_file_is_truncated_is_not_read(log: Path, compressed: bool) -> None:
    """It is open by then."""
    follower = Follower(log.with_name("app.log*"))
    write(log, "1\n")
    copy = log.with_name("app.log.1")
    copy.touch()
    assert follower.settle() == ["1"]
    shutil.copyfile(log, copy)
    os.truncate(log, 0)
    if compressed:
        copy.with_name("app.log.1.gz").write_bytes(gzip.compress(copy.read_bytes()))
    copy.unlink()
    assert follower.finish() == ["1"]
    assert follower.tailer.cut == 0


@pytest.mark.parametrize("pattern", PATTERNS)
def test_unfinished_copy_is_not_read_when_a_worker_starts(log: Path, pattern: str) -> None:
    """Of a file that was truncated while no worker ran."""
    follower = Follower(log.with_name(pattern))
    write(log, "1\n")
    follower.settle()
    follower.crash()
    copy_and_truncate(log)
    write(log, "2\n3\n")
    shutil.copyfile(log, log.with_name("app.log.2"))
    follower.poll()
    follower.poll()
    os.truncate(log, 0)
    write(log, "4\n")
    assert sorted(follower.finish()) == ["1", "2", "3", "4"]


def test_file_with_the_same_beginning_only_is_no_copy(log: Path) -> None:
    head = "the same first line of every file, longer than a mark\n" * 6
    follower = Follower(log.with_name("app.log*"))
    write(log, head + "one\ntwo\n")
    follower.settle()
    write(log, "lost\n")
    write(log.with_name("app.log.1"), head + "ONE\ntwo\nthree\n")
    os.truncate(log, 0)
    follower.finish()
    assert follower.lines[8:] == [*head.splitlines(), "ONE", "two", "three"]
    assert follower.attrs(8)["path"] == str(log.with_name("app.log.1"))
    assert follower.tailer.cut == 1


def test_file_with_the_same_continuation_only_is_no_copy(log: Path) -> None:
    same = "the same line in both files, and many of them\n" * 12
    follower = Follower(log)
    write(log, "1\n" + same)
    follower.settle()
    os.truncate(log, 0)
    write(log.with_name("app.log.other"), "2\n" + same + "not this\n")
    assert follower.finish() == ["1", *same.splitlines()]
    assert follower.tailer.cut == 1


def test_old_copy_with_the_same_beginning_is_not_read(log: Path) -> None:
    write(log.with_name("app.log.1"), "started\nold\n")
    os.utime(log.with_name("app.log.1"), (1e9, 1e9))
    follower = Follower(log)
    write(log, "started\n")
    follower.settle()
    os.truncate(log, 0)
    assert follower.finish() == ["started"]
    assert follower.tailer.cut == 1


def test_files_of_equal_content_are_all_read(tmp_path: Path) -> None:
    """Unless their names say that they are copies."""
    follower = Follower(tmp_path / "*")
    for name in ("job-1.log", "job-2.log", "job-12.log", "other"):
        write(tmp_path / name, "done\n")
    assert follower.settle() == ["done"] * 4


def test_held_copy_with_other_lines_appended_is_read_from_its_beginning(log: Path) -> None:
    follower = Follower(log.with_name("app.log*"))
    write(log, "1\n2\n")
    write(log.with_name("app.log.1"), "1\n")
    assert follower.finish() == ["1", "2"]
    write(log.with_name("app.log.1"), "other\n")
    assert follower.finish() == ["1", "2", "1", "other"]


@pytest.mark.parametrize(
    ("pattern", "middle", "missed"), [("app.log", [], 1), ("app.log*", ["second"], 0)]
)
@pytest.mark.parametrize("down", [False, True])
def test_middle_of_a_log_truncated_twice_between_two_looks_is_counted(
    log: Path, pattern: str, middle: list[str], missed: int, down: bool
) -> None:
    """Or read, where the globs match the copies. The first copy is recognised by its content."""
    follower = Follower(log.with_name(pattern))
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    copy_and_truncate(log)
    write(log, "second\n")
    copy_and_truncate(log)
    write(log, "third\n")
    if down:
        follower.crash()
    assert sorted(follower.finish()) == sorted(["1", "2", *middle, "third"])
    assert (follower.tailer.cut, follower.tailer.tracked.missed) == (0, missed)
    follower.crash()
    assert len(follower.finish()) == 3 + len(middle)
    assert (follower.tailer.cut, follower.tailer.tracked.missed) == (0, 0)


@pytest.mark.parametrize("kept", [".1", ""])
def test_compressed_copy_is_read(log: Path, kept: str) -> None:
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
    assert follower.finish()[99:] == ["1", "2"]
    assert follower.attrs(100) == follower.attrs(0) | {"offset": "200"}
    assert follower.tailer.cut == 0
    follower.crash()
    assert len(follower.finish()) == 101


@pytest.mark.parametrize("numbers", ["12", "21"])
def test_largest_of_several_copies_is_read(log: Path, numbers: str) -> None:
    """In any order in which the folder lists them."""
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    for line, number in zip(("2\n", "3\n"), numbers, strict=True):
        write(log, line)
        shutil.copyfile(log, f"{log}.{number}")
    os.truncate(log, 0)
    assert follower.finish() == ["1", "2", "3"]


@pytest.mark.parametrize("down", [False, True])
def test_complete_compressed_copy_is_preferred_to_a_short_one(log: Path, down: bool) -> None:
    """The latter is of the log's later lines, and begins alike."""
    follower = Follower(log.with_name("app.log*"))
    write(log, "started\n1\n")
    follower.settle()
    if down:
        follower.crash()
    write(log, "2\n")
    copy = copy_and_truncate(log)
    copy.with_name("app.log.2.gz").write_bytes(gzip.compress(copy.read_bytes()))
    copy.unlink()
    write(log, "started\n")
    copy_and_truncate(log)
    assert sorted(follower.finish()) == ["1", "2", "started", "started"]
    assert follower.tailer.cut == 0


def test_copy_may_be_made_in_the_same_file_each_time(log: Path) -> None:
    """As a script does; its earlier lines were read."""
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
def test_truncation_without_a_copy_is_reported_and_counted(
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
    assert follower.finish() == ["1", "2"]
    assert follower.tailer.cut == 1
    assert "app.log was truncated or replaced, with no copy: lines after byte 2" in caplog.text
    assert len(cursors(follower.state)) == 1


@pytest.mark.slow
def test_unreadable_copy_is_reported_and_waited_for(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    copy = copy_and_truncate(log)
    write(log, "new\n")
    with monkeypatch.context() as broken:
        broken.setattr(os, "pread", pread_but_of(copy))
        follower.settle()
        opened = own_descriptors()
        for _ in range(5):
            follower.settle()
            assert follower.tailer.unreadable == {str(log): "Input/output error"}
        assert own_descriptors() <= opened
    assert sorted(follower.finish()) == ["1", "2", "new"]
    assert (follower.tailer.cut, follower.tailer.unreadable) == (0, {})


def test_copy_deleted_before_it_was_read_is_reported_and_counted(log: Path) -> None:
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
    assert follower.finish() == ["1"]
    assert (follower.tailer.cut, follower.tailer.tracked.missed) == (0, 1)


def test_copy_that_was_read_may_be_deleted(log: Path) -> None:
    follower = Follower(log)
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    copy = copy_and_truncate(log)
    follower.finish()
    copy.unlink()
    follower.crash()
    assert follower.finish() == ["1", "2"]
    assert follower.tailer.cut == 0


def test_deleted_file_is_continued_in_its_copy(log: Path) -> None:
    follower = Follower(log.with_name("app.log*"))
    write(log, "1\n")
    follower.settle()
    write(log, "2\n")
    shutil.copyfile(log, log.with_name("app.log.1"))
    follower.settle()
    log.unlink()
    assert follower.finish() == ["1", "2"]
    follower.crash()
    assert follower.finish() == ["1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_kill_at_any_step_loses_and_doubles_no_line(log: Path, pattern: str) -> None:
    """After each poll, with any number of its blocks durable."""
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
        assert sorted(follower.finish()) == sorted(expected)
        assert follower.tailer.cut == 0
