"""A journal after a crash or after damage: recovered up to its last good frame, or refused.

Each case edits the files of a closed journal.
"""

from __future__ import annotations

import errno
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log.frame import HEADER_BYTES
from flumeng.journal.log.inspection import dump, inspect
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.repair import repair
from flumeng.platform.errors import CorruptError, UserError
from tests.testkit.journal import FaultyDisk, KilledError, numbered_events

ID = "web.n1.0.0a1b2c3d"
ROWS = 4


def written(
    directory: Path, frames: int, *, segment_bytes: int = 1 << 20, first_body: int = 0
) -> Path:
    """A closed, wholly synced journal of numbered events, four a frame, each with source state."""
    journal = Journal.create(directory, ID, segment_bytes=segment_bytes)
    for frame in range(frames):
        journal.append(numbered_events(first_body + frame * ROWS, ROWS), {"frame": frame})
    journal.close()
    return directory / ID


def killed(directory: Path, synced: int, unsynced: int) -> Path:
    """The files after SIGKILL: all written frames, and a checkpoint of the synced ones."""
    journal = Journal.create(directory / "live", ID)
    for frame in range(synced + unsynced):
        if frame == synced:
            journal.sync()
        journal.append(numbered_events(frame * ROWS, ROWS), {"frame": frame})
    left = directory / ID
    shutil.copytree(directory / "live" / ID, left)
    journal.close()
    return left


def only_segment(journal: Path) -> Path:
    (segment,) = journal.glob("*.segment")
    return segment


def frame_offsets(segment: Path) -> list[int]:
    """The offsets of the frames, found by their magic, and the end of the file."""
    data = segment.read_bytes()
    return [at for at in range(0, len(data), 64) if data[at : at + 4] == b"FLFR"] + [len(data)]


def contents(journal: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in journal.iterdir()}


def bodies(journal: Journal) -> list[int]:
    batches = journal.read(journal.floor, journal.safe)
    return [int(body.as_py().rstrip(b".")) for batch in batches for body in batch.column("body")]


def check_refused(journal: Path, match: str) -> None:
    """Opening raises CorruptError and changes nothing."""
    before = contents(journal)
    with pytest.raises(CorruptError, match=match):
        Journal.open(journal)
    assert contents(journal) == before


def check_recovered(path: Path, frames: int) -> None:
    """The journal holds exactly the first frames with their state, and takes new ones."""
    journal = Journal.open(path)
    assert journal.safe == journal.next_seq == frames * ROWS
    assert bodies(journal) == list(range(frames * ROWS))
    assert dict(journal.state) == ({"frame": frames - 1} if frames else {})
    journal.append(numbered_events(journal.next_seq, ROWS))
    journal.sync()
    assert bodies(journal) == list(range((frames + 1) * ROWS))
    journal.check()
    journal.close()


@pytest.mark.long
@pytest.mark.parametrize("tail", ["cut", "zeros", "garbage"])
def test_a_tail_torn_at_any_byte_of_the_last_two_frames_is_cut(tmp_path: Path, tail: str) -> None:
    left = killed(tmp_path, synced=2, unsynced=2)
    segment = only_segment(left)
    crashed = contents(left)
    whole = crashed[segment.name]
    _, _, third, fourth, end = frame_offsets(segment)
    fill = {"cut": b"", "zeros": b"\0", "garbage": b"\xa5"}[tail]
    for at in range(third, end, 1 if tail == "cut" else 17):
        torn = whole[:at] + fill * (end - at)
        if torn == whole:
            continue  # the file ends in zeros anyway
        for name, content in crashed.items():
            (left / name).write_bytes(content)
        segment.write_bytes(torn)

        journal = Journal.open(left, disk=FaultyDisk())
        frames = 3 if torn[:fourth] == whole[:fourth] else 2
        assert (journal.safe, dict(journal.state)) == (frames * ROWS, {"frame": frames - 1})
        assert bodies(journal) == list(range(frames * ROWS))
        journal.close()

        kept = fourth if frames == 3 else third
        assert segment.read_bytes() == whole[:kept]
        broken = left / f"{segment.name}.{kept}.broken"
        assert (broken.read_bytes() if broken.exists() else b"") == torn[kept:]
        broken.unlink(missing_ok=True)


def test_unsynced_frames_are_kept_when_they_are_intact(tmp_path: Path) -> None:
    check_recovered(killed(tmp_path, synced=2, unsynced=2), frames=4)


def test_a_checkpoint_a_little_behind_costs_nothing(tmp_path: Path) -> None:
    """A power cut may bring back the block as it was up to 100 ms earlier."""
    journal = Journal.create(tmp_path, ID)
    for frame in range(5):
        journal.append(numbered_events(frame * ROWS, ROWS), {"frame": frame})
        journal.sync()
        if frame == 2:
            older = (tmp_path / ID / checkpoints.NAME).read_bytes()
    journal.close()
    (tmp_path / ID / checkpoints.NAME).write_bytes(older)
    check_recovered(tmp_path / ID, frames=5)


def test_a_flipped_bit_in_synced_frames_is_refused_and_nothing_cut(tmp_path: Path) -> None:
    path = written(tmp_path, frames=3)
    segment = only_segment(path)
    whole = segment.read_bytes()
    first, _, last, end = frame_offsets(segment)
    for at in [*range(first, first + HEADER_BYTES), *range(last, end, 7), end - 1]:
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        check_refused(path, match=rf"{segment.name} at byte {first if at < last else last}")


def test_segment_shorter_than_its_synced_frames_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, frames=3)
    segment = only_segment(path)
    segment.write_bytes(segment.read_bytes()[: frame_offsets(segment)[2]])
    check_refused(path, match="were synced")


def test_damage_in_a_sealed_segment_is_found_when_it_is_read(tmp_path: Path) -> None:
    """Recovery does not read old segments; their readers check every bit."""
    path = written(tmp_path, frames=40, segment_bytes=4096)
    oldest = min(path.glob("*.segment"))
    damaged = bytearray(oldest.read_bytes())
    damaged[frame_offsets(oldest)[1] + HEADER_BYTES + 70] ^= 1
    oldest.write_bytes(damaged)
    journal = Journal.open(path)
    reader = journal.read(0, journal.safe)
    with pytest.raises(CorruptError, match="checksum"):
        list(reader)
    good = 2 * ROWS
    assert sum(batch.num_rows for batch in journal.read(good, journal.safe)) == journal.safe - good
    journal.close()


def test_damage_in_a_frame_header_of_a_sealed_segment_names_the_place(tmp_path: Path) -> None:
    path = written(tmp_path, frames=40, segment_bytes=4096)
    oldest = min(path.glob("*.segment"))
    damaged = bytearray(oldest.read_bytes())
    second = frame_offsets(oldest)[1]
    damaged[second + 20] ^= 1
    oldest.write_bytes(damaged)
    journal = Journal.open(path)
    for start in (0, 3 * ROWS):
        with pytest.raises(CorruptError, match=f"{oldest.name} at byte {second}"):
            list(journal.read(start, journal.safe))
    journal.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EUCLEAN, errno.EBADMSG])
def test_errors_of_a_damaged_disk_or_file_system_are_damage(tmp_path: Path, code: int) -> None:
    path, disk = written(tmp_path, frames=3), FaultyDisk()
    disk.failing_sync = code
    with pytest.raises(CorruptError, match=f"cannot open the journal {path}"):
        Journal.open(path, disk=disk)


@pytest.mark.parametrize("name", ["x.segment", "5.segment", "-1.segment", ".segment"])
def test_another_file_named_like_a_segment_is_refused(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, frames=3)
    (path / name).touch()
    for use in (Journal.open, inspect, repair, lambda path: list(dump(path))):
        with pytest.raises(UserError, match=f"{name} is no segment of the journal: move it"):
            use(path)
    (path / name).unlink()
    Journal.open(path).close()


def test_unreadable_bytes_are_damage_with_file_and_position(tmp_path: Path) -> None:
    path = written(tmp_path, frames=40, segment_bytes=4096)
    journal = Journal.open(path)
    oldest = min(path.glob("*.segment"))
    size = oldest.stat().st_size
    oldest.unlink()
    oldest.mkdir()  # opens like a file, and no byte of it can be read
    with pytest.raises(CorruptError, match=f"{oldest.name} at byte [0-9]+: Is a directory"):
        list(journal.read(0, 1))
    oldest.rmdir()
    oldest.write_bytes(b"")
    with pytest.raises(CorruptError, match=f"{oldest.name} ends at byte"):
        list(journal.read(0, 1))
    oldest.write_bytes(bytes(size))
    with pytest.raises(CorruptError, match="no frame begins here"):
        list(journal.read(0, 1))
    journal.close()


@pytest.mark.parametrize("at", [0, 4, 12, 20, 30, 50, 60, 127, 130])
def test_damage_in_a_segment_s_header_or_state_is_refused(tmp_path: Path, at: int) -> None:
    path = written(tmp_path, frames=40, segment_bytes=4096)
    second = sorted(path.glob("*.segment"))[1]
    damaged = bytearray(second.read_bytes())
    damaged[at] ^= 4
    second.write_bytes(damaged)
    check_refused(path, match=second.name)


def missing(segments: list[Path]) -> None:
    segments[1].unlink()


def missing_first(segments: list[Path]) -> None:
    segments[0].unlink()


def missing_last(segments: list[Path]) -> None:
    segments[-1].unlink()


def shorter(segments: list[Path]) -> None:
    segments[1].write_bytes(segments[1].read_bytes()[: frame_offsets(segments[1])[-2]])


def longer(segments: list[Path]) -> None:
    segments[1].write_bytes(segments[1].read_bytes() + bytes(64))


def another(segments: list[Path]) -> None:
    segments[1].write_bytes(segments[2].read_bytes())


def of_another_history(segments: list[Path]) -> None:
    """The same ids, offsets and lengths with other events: for example from a backup."""
    elsewhere = segments[1].parent.parent / "elsewhere"
    other = written(elsewhere, frames=40, segment_bytes=4096, first_body=500)
    content = (other / segments[1].name).read_bytes()
    assert len(content) == segments[1].stat().st_size
    segments[1].write_bytes(content)


def empty(segments: list[Path]) -> None:
    segments[1].write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (missing, "is missing"),
        (missing_first, "floor, 0, is missing"),
        (missing_last, "synced end, [0-9]+, is missing"),
        (shorter, "sealed with"),
        (longer, "sealed with"),
        (another, "its header says"),
        (of_another_history, "does not end as"),
        (empty, "does not begin as a segment"),
    ],
)
def test_a_hole_between_segments_is_refused(
    tmp_path: Path, damage: Callable[[list[Path]], None], match: str
) -> None:
    path = written(tmp_path, frames=40, segment_bytes=4096)
    segments = sorted(path.glob("*.segment"))
    assert len(segments) > 3
    damage(segments)
    check_refused(path, match)


def test_a_segment_of_another_journal_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, frames=2)
    other = Journal.create(tmp_path, "web.n2.0.ffffffff")
    other.append(numbered_events(0, 2 * ROWS))
    other.close()
    shutil.copy(only_segment(tmp_path / other.id), only_segment(path))
    check_refused(path, match="another journal")


@pytest.mark.parametrize("content", [b"", b"\0" * 512, b"FLCP" + b"\1" * 508])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, frames=2)
    (path / checkpoints.NAME).write_bytes(content)
    check_refused(path, match="checkpoint")


def test_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, frames=2)
    (path / checkpoints.NAME).unlink()
    check_refused(path, match="missing")


def test_checkpoint_of_an_earlier_opening_is_refused(tmp_path: Path) -> None:
    """One from a backup would make acknowledged events look like a torn tail."""
    path = written(tmp_path, frames=2)
    older = (path / checkpoints.NAME).read_bytes()
    journal = Journal.open(path)
    journal.append(numbered_events(2 * ROWS, ROWS))
    journal.close()
    (path / checkpoints.NAME).write_bytes(older)
    check_refused(path, match="but the checkpoint is of term")


def test_a_journal_of_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, frames=1)
    block = bytearray((path / checkpoints.NAME).read_bytes())
    block[4] = 9
    block[-4:] = struct.pack("<I", crc32c(bytes(block[:-4])))
    (path / checkpoints.NAME).write_bytes(block)
    with pytest.raises(UserError, match="format version 9"):
        Journal.open(path)


def test_a_renamed_directory_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, frames=1)
    path.rename(tmp_path / "web.n9.0.0a1b2c3d")
    with pytest.raises(CorruptError, match="renamed"):
        Journal.open(tmp_path / "web.n9.0.0a1b2c3d")


def test_trim_does_not_count_unsynced_frames_as_synced(tmp_path: Path) -> None:
    """A power cut may take them, and that is no damage."""
    disk = FaultyDisk()
    journal = Journal.create(tmp_path, ID, segment_bytes=4096, disk=disk)
    while len(list((tmp_path / ID).glob("*.segment"))) < 2:
        journal.append(numbered_events(journal.next_seq, ROWS))
    journal.sync()
    synced = journal.safe
    journal.append(numbered_events(synced, ROWS))
    journal.trim(synced)
    disk.dead = True
    journal.close()
    disk.power_cut(tmp_path / ID, lambda _, durable, __: durable, names_survive=True)
    disk.dead = False
    again = Journal.open(tmp_path / ID, disk=disk)
    assert (again.floor > 0, again.safe) == (True, synced)
    again.close()


def test_new_segment_and_its_name_are_on_disk_before_the_checkpoint(tmp_path: Path) -> None:
    disk = FaultyDisk()
    journal = Journal.create(tmp_path, ID, segment_bytes=4096, disk=disk)
    while len(list((tmp_path / ID).glob("*.segment"))) < 3:
        journal.append(numbered_events(journal.next_seq, ROWS))
    synced = journal.safe  # by the roll; the frame after it is lost
    disk.dead = True
    journal.close()
    disk.power_cut(tmp_path / ID, lambda _, durable, __: durable, names_survive=False)
    disk.dead = False
    again = Journal.open(tmp_path / ID, disk=disk)
    assert again.safe == synced
    assert bodies(again) == list(range(synced))
    again.close()


@pytest.mark.parametrize("lives_for", range(9))
def test_power_cut_after_an_interrupted_and_recovered_roll_loses_nothing(
    tmp_path: Path, lives_for: int
) -> None:
    """The new segment's name may lie in the page cache only, with acknowledged events behind it."""
    disk = FaultyDisk()
    journal = Journal.create(tmp_path, ID, segment_bytes=4096, disk=disk)
    while only_segment(tmp_path / ID).stat().st_size < 4096:
        journal.append(numbered_events(journal.next_seq, ROWS))
    disk.lives_for = lives_for
    with pytest.raises(KilledError):
        journal.append(numbered_events(journal.next_seq, ROWS))
        journal.sync()
    journal.close()
    disk.heal()

    again = Journal.open(tmp_path / ID, disk=disk)
    again.append(numbered_events(again.next_seq, ROWS))
    safe = again.sync()
    disk.dead = True
    again.close()
    disk.power_cut(tmp_path / ID, lambda _, durable, __: durable, names_survive=False)
    disk.heal()
    last = Journal.open(tmp_path / ID, disk=disk)
    assert bodies(last) == list(range(safe))
    last.close()


def test_name_of_a_journal_is_on_disk_before_it_takes_events(tmp_path: Path) -> None:
    disk = FaultyDisk()
    Journal.create(tmp_path / "data" / "journals", ID, disk=disk).close()
    assert "data" in disk.synced_names(tmp_path)
    assert "journals" in disk.synced_names(tmp_path / "data")
    assert ID in disk.synced_names(tmp_path / "data" / "journals")


@pytest.mark.parametrize("lives_for", range(8))
def test_journal_killed_during_its_creation_is_complete_or_absent(
    tmp_path: Path, lives_for: int
) -> None:
    disk = FaultyDisk()
    disk.lives_for = lives_for
    with pytest.raises(KilledError):
        Journal.create(tmp_path, ID, disk=disk)
    disk.heal()
    for path in Journal.find(tmp_path):
        Journal.open(path, disk=disk).close()
    assert disk.synced_names(tmp_path) >= {path.name for path in tmp_path.iterdir()}


def test_interrupted_trim_is_completed(tmp_path: Path) -> None:
    path = written(tmp_path, frames=40, segment_bytes=4096)
    before = contents(path)
    journal = Journal.open(path)
    ack = int(sorted(path.glob("*.segment"))[2].name.split(".")[0])
    journal.trim(ack)
    journal.close()
    for name in sorted(before)[:2]:
        (path / name).write_bytes(before[name])
    again = Journal.open(path)
    assert again.floor == ack
    assert bodies(again) == list(range(ack, 40 * ROWS))
    assert min(path.glob("*.segment")).name == f"{ack:020d}.segment"
    again.close()


def test_interrupted_roll_is_no_damage(tmp_path: Path) -> None:
    path = written(tmp_path, frames=3)
    (path / f"{3 * ROWS:020d}.segment.unfinished").write_bytes(b"FLSG half a header")
    check_recovered(path, frames=3)
    assert list(path.glob("*.unfinished")) == []


def test_missing_room_to_keep_a_torn_tail_does_not_stop_the_start(tmp_path: Path) -> None:
    left = killed(tmp_path, synced=2, unsynced=1)
    segment = only_segment(left)
    segment.write_bytes(segment.read_bytes()[:-10])

    disk = FaultyDisk()
    disk.fail_write(errno.ENOSPC)
    journal = Journal.open(left, disk=disk)
    assert journal.safe == 2 * ROWS
    assert list(left.glob("*.broken")) == []
    journal.close()


def test_broken_tail_files_are_removed_with_their_segment(tmp_path: Path) -> None:
    left = killed(tmp_path, synced=2, unsynced=1)
    segment = only_segment(left)
    segment.write_bytes(segment.read_bytes()[:-10])
    journal = Journal.open(left, segment_bytes=64)
    assert len(list(left.glob("*.broken"))) == 1
    journal.append(numbered_events(journal.next_seq, ROWS))
    journal.append(numbered_events(journal.next_seq, ROWS))
    journal.sync()
    journal.trim(journal.safe)
    assert list(left.glob("*.broken")) == []
    journal.close()


def test_source_state_is_that_of_the_surviving_frames(tmp_path: Path) -> None:
    """A cursor moves with the lines that it stands for, or not at all."""
    left = killed(tmp_path, synced=2, unsynced=2)
    segment = only_segment(left)
    segment.write_bytes(segment.read_bytes()[: frame_offsets(segment)[3] + 30])
    check_recovered(left, frames=3)


def test_an_empty_journal_recovers(tmp_path: Path) -> None:
    check_recovered(written(tmp_path, frames=0), frames=0)


def test_batch_without_rows_changes_the_state_only(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, ID)
    journal.append(numbered_events(0, 0), {"cursor": 7})
    journal.append(numbered_events(0, ROWS))
    journal.sync()
    journal.close()
    again = Journal.open(tmp_path / ID)
    assert dict(again.state) == {"cursor": 7}
    assert bodies(again) == list(range(ROWS))
    assert pa.Table.from_batches(again.read(0, ROWS)).num_rows == ROWS
    again.close()
