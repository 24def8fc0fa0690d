"""Any history of a log that is rotated: each line is taken once."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flumeng.connectors.tail.file_position import MARK_BYTES, cursors
from flumeng.connectors.tail.tailer import QUIET_SECONDS
from tests.testkit.ingest_worker import Follower, write

bounded = settings(
    max_examples=int(os.environ.get("FLUMENG_TEST_EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
)


class Following(RuleBasedStateMachine):
    """A worker that reads a log in a folder of its own, commits and crashes; ``written`` are its
    lines.

    The inode of a deleted file is given to the next new file, as many file systems do; until then
    the deleted file lies in another folder.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.log = self.folder / "app.log"
        self.follower: Follower
        self.numbers = self.deleted = 0
        self.written: list[str] = []
        self.strange: list[Path] = []
        self.pattern = ""
        self.free_folder = Path(tempfile.mkdtemp())
        self.free: list[Path] = []

    def make(self, path: Path, data: bytes = b"") -> None:
        inode = self.free.pop() if self.free else path
        inode.write_bytes(data)
        inode.rename(path)

    def delete(self, path: Path) -> None:
        if is_open(path):
            path.unlink()
        else:
            self.deleted += 1
            self.free.append(path.rename(self.free_folder / f"{self.deleted}"))

    def compress(self, path: Path) -> Path:
        compressed = path.with_name(f"{path.name}.gz")
        self.make(compressed, gzip.compress(path.read_bytes()))
        self.delete(path)
        return compressed

    @rule(size=st.sampled_from([0, 1, 20, 10_000]))
    def make_a_strange_file(self, size: int) -> None:
        """Create a file that is not a log."""
        self.numbers += 1
        self.strange.append(self.folder / f"strange-{self.numbers}")
        self.make(self.strange[-1], b"-" * size)

    @precondition(lambda self: self.strange)
    @rule()
    def delete_a_strange_file(self) -> None:
        self.delete(self.strange.pop(0))

    @initialize(pattern=st.sampled_from(["app.log", "app.log*"]))
    def start(self, pattern: str) -> None:
        self.pattern = pattern
        self.follower = Follower(self.folder / pattern)

    @rule(seconds=st.sampled_from([0.1, 1.0, QUIET_SECONDS]))
    def poll(self, seconds: float) -> None:
        self.follower.poll(seconds)

    @rule(blocks=st.integers(1, 3))
    def commit_some(self, blocks: int) -> None:
        self.follower.commit(blocks)

    @rule()
    def crash(self) -> None:
        self.follower.crash()

    @invariant()
    def nothing_is_taken_twice(self) -> None:
        assert len(set(self.follower.lines)) == len(self.follower.lines)

    def teardown(self) -> None:
        self.follower.tailer.close()
        shutil.rmtree(self.folder)
        shutil.rmtree(self.free_folder)


def is_open(path: Path) -> bool:
    """Whether the worker has it open, so that its inode cannot become another file."""
    return any(fd.readlink() == path for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())


class AnyRenaming(Following):
    """A program writes numbered lines into a log that is rotated; the worker reads and crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.rotated: list[Path] = []
        self.compressed: list[Path] = []
        self.late: Path | None = None
        self.rotations = 0
        self.part = ""
        self.has_lines = self.known = self.begun = False
        self.unread: set[Path] = set()

    def text(self) -> str:
        self.numbers += 1
        return f"<{self.numbers}>"

    def append(self, text: str) -> None:
        if not self.log.exists():
            self.make(self.log)
        write(self.log, text)

    @rule(lines=st.integers(1, 4))
    def write_lines(self, lines: int) -> None:
        for _ in range(lines):
            text = self.text()
            self.append(text + "\n")
            self.written.append(self.part + text)
            self.part = ""
        self.has_lines = True

    @rule()
    def write_a_part_of_a_line(self) -> None:
        text = self.text()
        self.append(text)
        self.part += text

    @rule(held=st.booleans())
    def find(self, held: bool) -> None:
        """From now on the log is known by its inode, also after crashes; before that, a renamed log
        could not be distinguished from other files."""
        if held:
            self.follower.watch(1.0)
        else:
            self.follower.poll(1.0)
        self.known = self.log.exists()

    @rule()
    def read_and_commit(self) -> None:
        self.follower.settle()
        self.known = self.log.exists()
        self.begun = self.has_lines

    @precondition(lambda self: self.known)
    @rule(create=st.booleans())
    def rotate(self, create: bool) -> None:
        """Rotate. The unfinished last line of a file is a line. Compressed files have been read,
        and the oldest one is deleted."""
        self.rotations += 1
        moved = self.folder / f"app.log.{self.rotations}"
        if not self.begun:
            self.unread.add(moved)
        self.known = self.has_lines = self.begun = False
        self.log.rename(moved)
        self.rotated.append(moved)
        self.late = None if self.part else moved
        if self.part:
            self.written.append(self.part)
            self.part = ""
        if self.compressed:
            self.read_all()
            self.delete(self.compressed.pop(0))
        if create:
            self.make(self.log)

    @precondition(lambda self: self.late is not None)
    @rule()
    def write_late_into_the_rotated_file(self) -> None:
        assert self.late is not None
        text = self.text()
        write(self.late, text + "\n")
        self.written.append(text)

    @precondition(lambda self: self.rotated)
    @rule()
    def delete_a_rotated_file_that_was_read(self) -> None:
        self.read_all()
        gone = self.rotated.pop(0)
        self.late = None if gone == self.late else self.late
        self.delete(gone)

    @precondition(lambda self: self.rotated)
    @rule(strange=st.sampled_from([None, 0, 1, 20, 10_000]))
    def compress_a_rotated_file_while_the_worker_is_down(self, strange: int | None) -> None:
        """Only a known file: an unknown one is not found in compressed form."""
        gone = self.rotated.pop(0)
        if gone in self.unread:
            self.read_all()
        self.follower.crash()
        self.late = None if gone == self.late else self.late
        self.compressed.append(self.compress(gone))
        if strange is not None:
            self.make_a_strange_file(strange)

    @precondition(lambda self: self.has_lines and not self.part)
    @rule()
    def truncate_what_was_read(self) -> None:
        self.read_all()
        os.truncate(self.log, 0)
        self.follower.settle()
        self.has_lines = self.begun = False

    def read_all(self) -> None:
        self.follower.finish()
        assert sorted(self.follower.lines) == sorted(self.written)
        self.begun = self.has_lines

    def teardown(self) -> None:
        self.read_all()
        assert len(cursors(self.follower.state)) <= len(self.rotated) + 1
        super().teardown()


TestAnyRenaming = AnyRenaming.TestCase
TestAnyRenaming.settings = bounded


class AnyCopying(Following):
    """A log is copied in blocks and truncated, copies are numbered on, compressed and deleted; the
    worker reads and crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Path] = []
        self.between: set[str] = set()
        self.now: list[str] = []
        self.begun = self.copied = False
        self.noticed = True
        self.making: Path | None = None

    @rule(lines=st.integers(1, 4), length=st.sampled_from([0, 300]))
    def write_lines(self, lines: int, length: int) -> None:
        """Write lines; those written between the copy and the truncation are in no copy."""
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
        """Once a part of the log is known, its truncation is noticed."""
        self.follower.settle()
        self.begun = self.begun or bool(self.now)
        self.noticed = True

    @precondition(lambda self: self.pattern == "app.log" or (self.noticed and not self.copied))
    @rule()
    def crash(self) -> None:
        """Not allowed between a copy's end and the commit of the truncation where copies are read
        too: a copy may lack lines that were read."""
        super().crash()

    @rule(seconds=st.sampled_from([0.1, 1.0, QUIET_SECONDS]))
    def poll(self, seconds: float) -> None:
        """Poll; a copied log is truncated at once."""
        self.follower.poll(0.1 if self.copied else seconds)

    @precondition(lambda self: self.begun and self.making is None)
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
        self.make(self.making, data[: int(share * len(data)) // MARK_BYTES * MARK_BYTES])
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
        self.now, self.begun, self.copied, self.noticed = [], False, False, False

    @precondition(lambda self: self.making is None and self.copies)
    @rule()
    def compress_the_oldest_copy(self) -> None:
        oldest = self.copies[0]
        if oldest.suffix != ".gz":
            self.copies[0] = self.compress(oldest)

    @precondition(lambda self: self.making is None and self.copies)
    @rule()
    def delete_a_copy_that_was_read(self) -> None:
        self.read_all()
        self.delete(self.copies.pop(0))

    def read_all(self) -> None:
        self.follower.finish()
        taken = set(self.follower.lines)
        assert taken <= set(self.written)
        assert set(self.written) - taken <= self.between
        self.begun = self.begun or bool(self.now)

    def teardown(self) -> None:
        self.read_all()
        assert len(cursors(self.follower.state)) <= len(self.copies) + 2
        super().teardown()


TestAnyCopying = AnyCopying.TestCase
TestAnyCopying.settings = bounded
