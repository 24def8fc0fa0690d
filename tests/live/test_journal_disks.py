"""A journal on disks that are really full, really small, or turn read-only under it.

Nothing is acknowledged that is not there, and where space comes back the same journal goes on,
without being reopened.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.journal.log.errors import DiskFullError, JournalFailedError
from flumeng.journal.log.frame import Payload
from flumeng.journal.log.group_commit import GroupCommit
from flumeng.journal.log.journal import Journal
from flumeng.platform.errors import UserError
from tests.testkit.journal import numbered_events

ID = "web.n1.0.0a1b2c3d"
ROWS = 20
SEGMENT_BYTES = 30_000


@contextlib.contextmanager
def mounted(*what: str | Path, at: Path) -> Iterator[Path]:
    """Mount a file system of the test's own; skips the test where mounting is not allowed."""
    at.mkdir()
    made = subprocess.run(["mount", *what, at], check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"cannot mount here: {made.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB, all in memory."""
    with mounted("-t", "tmpfs", "-o", "size=256k", "none", at=tmp_path / "small") as place:
        yield place


def append(journal: Journal) -> None:
    end = journal.next_seq + ROWS
    journal.append(numbered_events(journal.next_seq, ROWS, 100), {"end": end})


def fill(journal: Journal) -> int:
    """Append and sync until the disk is full; returns the safe seq."""
    with pytest.raises(DiskFullError):
        while True:
            append(journal)
            journal.sync()
    return journal.safe


def take_the_rest(place: Path) -> Path:
    """Write a file until no byte is free."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(place).f_bfree == 0
    return ballast


def check(journal: Journal, end: int) -> None:
    found = [
        int(body.as_py().rstrip(b"."))
        for batch in journal.read(journal.floor, end)
        for body in batch.column("body")
    ]
    assert found == list(range(journal.floor, end))
    assert dict(journal.state) == {"end": journal.next_seq}
    journal.check()


def test_journal_on_a_completely_full_disk_is_trimmed_and_filled_again(small: Path) -> None:
    journal = Journal.create(small, ID, segment_bytes=SEGMENT_BYTES, keep_free_bytes=0)
    for _ in range(3):
        end = fill(journal)
        ballast = take_the_rest(small)
        check(journal, end)
        ballast.unlink()
        with pytest.raises(DiskFullError):
            while True:
                append(journal)
        journal.sync()
        end = journal.safe
        journal.trim(end)
        assert journal.floor > 0
        check(journal, end)
    journal.close()
    again = Journal.open(small / ID, segment_bytes=SEGMENT_BYTES, keep_free_bytes=0)
    check(again, again.safe)
    assert again.safe >= end
    again.close()


def test_killed_journal_is_opened_and_trimmed_on_a_full_disk(small: Path) -> None:
    journal = Journal.create(small, ID, segment_bytes=SEGMENT_BYTES, keep_free_bytes=0)
    end = fill(journal)
    files = {file: file.read_bytes() for file in (small / ID).iterdir()}
    journal.close()
    for file, content in files.items():
        file.write_bytes(content)
    newest = max((small / ID).glob("*.segment"))
    with newest.open("ab") as torn:
        torn.write(b"FLFR torn")
    take_the_rest(small)
    again = Journal.open(small / ID, segment_bytes=SEGMENT_BYTES, keep_free_bytes=0)
    check(again, end)
    again.trim(end)
    assert again.floor > 0
    append(again)
    assert again.sync() == end + ROWS
    again.close()


def test_segment_roll_continues_when_there_is_room_again(small: Path) -> None:
    journal = Journal.create(small, ID, segment_bytes=SEGMENT_BYTES, keep_free_bytes=0)
    while journal.bytes < SEGMENT_BYTES:
        append(journal)
    end = journal.sync()
    ballast = take_the_rest(small)
    with pytest.raises(DiskFullError):
        append(journal)
    check(journal, end)
    ballast.unlink()
    append(journal)
    assert journal.sync() == end + ROWS
    check(journal, end + ROWS)
    journal.close()


def test_group_commit_waits_for_room_and_loses_nothing(small: Path) -> None:
    journal = Journal.create(small, ID, segment_bytes=SEGMENT_BYTES, keep_free_bytes=0)
    durable: list[int] = []

    class Item(int):
        nbytes = ROWS * 100

    commit: GroupCommit[Item] = GroupCommit(
        journal,
        lambda items: (
            Payload.encode(numbered_events(first, ROWS, 100), {"end": first + ROWS})
            for first in items
        ),
        on_durable=lambda items, _: durable.extend(items),
        group_bytes=10 * ROWS * 100,
    )
    end = 500 * ROWS
    for first in range(0, end, ROWS):
        commit.submit(Item(first))
    while journal.safe < end:
        commit.trim(journal.safe)
        with contextlib.suppress(Exception):
            commit.drain(0.05)
    commit.drain(30)
    commit.stop()
    assert durable == list(range(0, end, ROWS))
    check(journal, end)
    journal.close()


def test_short_write_is_truncated_and_repeated(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel write a part of the requested bytes."""
    journal = Journal.create(tmp_path, ID, keep_free_bytes=0)
    append(journal)
    end = journal.sync()
    segment = min((tmp_path / ID).glob("*.segment"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in (1, 63, 64, 65, 500, 1000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (journal.bytes + room, hard))
        try:
            with pytest.raises(DiskFullError):
                append(journal)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert segment.stat().st_size == journal.bytes
        check(journal, end)
    append(journal)
    assert journal.sync() == end + ROWS
    check(journal, end + ROWS)
    journal.close()


def test_disk_that_turns_read_only_fails_the_journal_and_loses_nothing(tmp_path: Path) -> None:
    """As ext4 does after an error. Acknowledged events can be read, before and after."""
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("needs mkfs.ext4")
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    options = ("-o", "loop,errors=remount-ro", image)
    with mounted(*options, at=tmp_path / "first") as place:
        trigger = trigger_of(place)
        if trigger is None:
            pytest.skip("this kernel offers no error to trigger on ext4")
        journal = Journal.create(place, ID, segment_bytes=SEGMENT_BYTES, keep_free_bytes=0)
        append(journal)
        end = journal.sync()
        trigger.write_text("a test")
        with pytest.raises(JournalFailedError):
            append(journal)
            journal.sync()
        for write in (journal.sync, lambda: journal.trim(end), journal.close_for_appends):
            with pytest.raises(JournalFailedError):
                write()
        assert journal.safe == end
        assert sum(batch.num_rows for batch in journal.read(0, end)) == end
        journal.close()
        with pytest.raises(UserError, match="Read-only"):
            Journal.open(place / ID)
    subprocess.run(["e2fsck", "-fy", image], check=False, capture_output=True)
    with mounted(*options, at=tmp_path / "again") as place:
        journal = Journal.open(place / ID, segment_bytes=SEGMENT_BYTES, keep_free_bytes=0)
        assert journal.safe in {end, end + ROWS}
        check(journal, journal.safe)
        append(journal)
        journal.sync()
        journal.close()


def trigger_of(place: Path) -> Path | None:
    """The kernel's file by which root breaks the file system that is mounted there."""
    device = subprocess.run(
        ["findmnt", "-n", "-o", "SOURCE", place], check=True, capture_output=True, text=True
    ).stdout.strip()
    trigger = Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error"
    return trigger if trigger.exists() else None
