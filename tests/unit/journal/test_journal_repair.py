"""Findings, output and repairs of the tools for operators, on a journal that is not open.

A repair keeps every intact event, opens again, and lets no reader pass a loss silently.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log.errors import DataLossError
from flumeng.journal.log.frame import identity
from flumeng.journal.log.inspection import QUARANTINE, Finding, Part, dump, frames, inspect
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.repair import repair
from flumeng.journal.log.segment import SEGMENT_HEADER_BYTES
from flumeng.platform.errors import CorruptError, FlumengError, UserError
from tests.testkit.journal import FaultyDisk, KilledError, numbered_events

ID = "web.n1.0.0a1b2c3d"
SEGMENT = 3500
ROWS = 10
SEGMENT_ROWS = 30
EVENTS = 200


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A journal of several segments; the floor is above 0."""
    journal = Journal.create(tmp_path, ID, segment_bytes=SEGMENT)
    for first in range(0, EVENTS, ROWS):
        journal.append(numbered_events(first, ROWS), {"at": first, f"key{first % 3}": first})
        journal.sync()
    journal.trim(60)
    journal.close()
    return tmp_path / ID


def parts(directory: Path) -> list[Part]:
    return inspect(directory).parts


def frame_offsets(part: Part) -> list[int]:
    return [good.offset for good in frames(part, identity(ID))]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def events(journal: Journal, start: int, end: int) -> list[int]:
    read = list(journal.read(start, end))
    numbers = [int(body.as_py().rstrip(b".")) for batch in read for body in batch["body"]]
    assert numbers == [seq for batch in read for seq in batch["seq"].to_pylist()]
    return numbers


def read_all(directory: Path) -> list[int]:
    with contextlib.closing(Journal.open(directory, segment_bytes=SEGMENT)) as journal:
        return events(journal, journal.floor, journal.safe)


@dataclass(frozen=True)
class Damage:
    """``lost`` is the number of lost events; the inspection has to report ``names``."""

    do: Callable[[Path], None]
    lost: int
    names: str


def _flip_payload(directory: Path) -> None:
    part = parts(directory)[1]
    flip(part.path, frame_offsets(part)[1] + 100)


def _flip_frame_header(directory: Path) -> None:
    part = parts(directory)[1]
    flip(part.path, frame_offsets(part)[0] + 30)


def _flip_last_synced_frame(directory: Path) -> None:
    part = parts(directory)[-1]
    flip(part.path, frame_offsets(part)[-1] + 100)


def _flip_segment_header(directory: Path) -> None:
    flip(parts(directory)[1].path, 40)


def _flip_first_segment_header(directory: Path) -> None:
    flip(parts(directory)[0].path, 40)


def _flip_last_segment_header(directory: Path) -> None:
    flip(parts(directory)[-1].path, 40)


def _flip_state(directory: Path) -> None:
    flip(parts(directory)[1].path, SEGMENT_HEADER_BYTES + 3)


def _remove_middle(directory: Path) -> None:
    parts(directory)[1].path.unlink()


def _remove_first(directory: Path) -> None:
    parts(directory)[0].path.unlink()


def _remove_last(directory: Path) -> None:
    parts(directory)[-1].path.unlink()


def _cut_middle(directory: Path) -> None:
    part = parts(directory)[1]
    part.path.write_bytes(part.path.read_bytes()[: frame_offsets(part)[2]])


def _cut_last(directory: Path) -> None:
    part = parts(directory)[-1]
    part.path.write_bytes(part.path.read_bytes()[: frame_offsets(part)[-1] + 70])


def _append_garbage_to_sealed(directory: Path) -> None:
    with parts(directory)[1].path.open("ab") as file:
        file.write(b"garbage" * 30)


def _foreign_segment(directory: Path) -> None:
    other = Journal.create(directory.parent / "elsewhere", "other.n1.0.00000000")
    other.append(numbered_events(0, ROWS))
    other.close()
    (foreign,) = (directory.parent / "elsewhere" / "other.n1.0.00000000").glob("*.segment")
    shutil.copy(foreign, parts(directory)[1].path)
    shutil.rmtree(directory.parent / "elsewhere")


def _copy_under_another_name(directory: Path) -> None:
    shutil.copy(
        parts(directory)[1].path, directory / f"{parts(directory)[1].base + ROWS:020d}.segment"
    )


def _remove_checkpoint(directory: Path) -> None:
    (directory / checkpoints.NAME).unlink()


def _flip_checkpoint(directory: Path) -> None:
    flip(directory / checkpoints.NAME, 20)


def _empty_checkpoint(directory: Path) -> None:
    (directory / checkpoints.NAME).write_bytes(b"")


def _older_checkpoint(directory: Path) -> None:
    older = (directory / checkpoints.NAME).read_bytes()
    journal = Journal.open(directory, segment_bytes=SEGMENT)
    journal.append(numbered_events(EVENTS, 0), {"more": 1})
    journal.close()
    (directory / checkpoints.NAME).write_bytes(older)


DAMAGES = {
    "a flipped payload": Damage(_flip_payload, ROWS, "payload's checksum"),
    "a flipped frame header": Damage(_flip_frame_header, ROWS, "header's checksum"),
    "a flipped last frame": Damage(_flip_last_synced_frame, ROWS, "payload's checksum"),
    "a flipped segment header": Damage(_flip_segment_header, 0, "segment's header"),
    "a flipped first header": Damage(_flip_first_segment_header, 0, "segment's header"),
    "a flipped last header": Damage(_flip_last_segment_header, 0, "segment's header"),
    "flipped source state": Damage(_flip_state, 0, "source state"),
    "a missing segment": Damage(_remove_middle, SEGMENT_ROWS, "one is missing"),
    "a missing first segment": Damage(_remove_first, SEGMENT_ROWS, "the file is missing"),
    "a missing last segment": Damage(_remove_last, 2 * ROWS, "the file is missing"),
    "a shortened segment": Damage(_cut_middle, ROWS, "does not end as"),
    "a shortened last segment": Damage(_cut_last, ROWS, "cut short"),
    "garbage behind a sealed segment": Damage(_append_garbage_to_sealed, 0, "no frame begins"),
    "a foreign segment": Damage(_foreign_segment, SEGMENT_ROWS, "another journal"),
    "a segment under a second name": Damage(_copy_under_another_name, 0, "its header says"),
    "no checkpoint": Damage(_remove_checkpoint, 0, "missing"),
    "a flipped checkpoint": Damage(_flip_checkpoint, 0, "checksum"),
    "an older checkpoint": Damage(_older_checkpoint, 0, "it is older than the events"),
    "an empty checkpoint": Damage(_empty_checkpoint, 0, "0 bytes"),
}
every_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


def test_undamaged_journal_has_no_findings(directory: Path) -> None:
    found = inspect(directory)
    assert found.findings == []
    assert not found.in_use
    assert len(found.parts) >= 4


@pytest.mark.slow
@every_damage
def test_repaired_journal_serves_the_intact_events_and_no_gap(
    directory: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    floor = inspect(directory).parts[0].base
    damage.do(directory)
    found = inspect(directory)
    assert found.damaged
    assert damage.names in "\n".join(map(str, found.findings)), found.findings
    with pytest.raises(CorruptError):
        read_all(directory)

    repaired = repair(directory)
    lost = [seq for start, end in repaired.lost for seq in range(start, end)]
    assert len(lost) == damage.lost
    kept = [seq for seq in range(floor, EVENTS) if seq not in lost]
    journal = Journal.open(directory, segment_bytes=SEGMENT)
    journal.check()
    assert (journal.floor, journal.safe, journal.lost) == (floor, EVENTS, len(lost))
    assert journal.readable == min([EVENTS, *lost])
    readable = [seq for seq in kept if seq < journal.readable]
    assert events(journal, journal.floor, journal.readable) == readable
    assert ("readers stop at seq" in caplog.text) == bool(lost)
    if lost:
        assert journal.closed, "seqs could be used twice"
        with pytest.raises(DataLossError, match="accept-loss"):
            events(journal, journal.readable, EVENTS)
    journal.close()
    assert inspect(directory).damaged == bool(lost), "the loss waits to be accepted"

    accepted = repair(directory, accept_loss=True)
    assert (accepted.lost, accepted.waits_at, accepted.events) == ((), None, len(lost))
    journal = Journal.open(directory, segment_bytes=SEGMENT)
    assert events(journal, journal.floor, EVENTS) == kept
    journal.check()
    journal.trim(EVENTS)
    journal.close()
    assert not inspect(directory).damaged


@pytest.mark.long
@every_damage
def test_interrupted_repair_is_repeated(tmp_path: Path, directory: Path, damage: Damage) -> None:
    """Killed at any write or sync: the journal is refused, or it has the loss in it."""
    damage.do(directory)
    original = tmp_path / "original"
    shutil.copytree(directory, original)
    wanted = repair(directory)
    for step in range(1000):
        shutil.rmtree(directory)
        shutil.copytree(original, directory)
        disk = FaultyDisk()
        disk.lives_for = step
        try:
            repair(directory, disk=disk)
        except KilledError:
            pass
        else:
            break
        with contextlib.suppress(FlumengError):
            journal = Journal.open(directory, segment_bytes=SEGMENT)
            with contextlib.closing(journal):
                assert events(journal, wanted.floor, wanted.end) == list(
                    range(wanted.floor, wanted.end)
                ), "a gap was served in silence"
        again = repair(directory)
        assert (again.events, again.waits_at, again.floor, again.end, again.closed) == (
            wanted.events,
            wanted.waits_at,
            wanted.floor,
            wanted.end,
            wanted.closed,
        )
    assert step > 1


def test_damaged_files_are_kept_in_quarantine_unchanged(directory: Path) -> None:
    _flip_payload(directory)
    _flip_checkpoint(directory)
    damaged = [parts(directory)[1].path, directory / checkpoints.NAME]
    before = {path.name: path.read_bytes() for path in damaged}
    repaired = repair(directory)
    assert sorted(repaired.quarantined) == sorted(before)
    for name, data in before.items():
        assert (directory / QUARANTINE / name).read_bytes() == data


def test_source_state_is_restored_behind_a_damaged_header(directory: Path) -> None:
    """It is taken from the segments before, so a tail reads no line twice."""
    wanted = Journal.open(directory, segment_bytes=SEGMENT)
    wanted.close()
    _flip_last_segment_header(directory)
    repair(directory)
    journal = Journal.open(directory, segment_bytes=SEGMENT)
    assert journal.state == wanted.state
    journal.close()


def test_torn_tail_is_truncated_and_nothing_else_happens(directory: Path) -> None:
    last = parts(directory)[-1].path
    before = last.read_bytes()
    with last.open("ab") as file:
        file.write(b"FLFR torn")
    found = inspect(directory)
    assert not found.damaged
    assert [str(finding) for finding in found.findings] == [
        f"{last.name} at byte {len(before)}: a torn tail, never acknowledged: "
        "the header is cut short"
    ]
    repaired = repair(directory)
    assert (repaired.lost, repaired.quarantined, repaired.closed) == ((), (), False)
    assert last.read_bytes() == before


def test_torn_tail_of_a_spilling_journal_may_have_been_acknowledged(tmp_path: Path) -> None:
    Journal.create(tmp_path, "spilling", durability="spill").close()
    (last,) = parts(tmp_path / "spilling")
    with last.path.open("ab") as file:
        file.write(b"FLFR torn")
    (found,) = inspect(tmp_path / "spilling").findings
    assert (found.what, found.damage) == ("a torn tail, not synced: the header is cut short", False)


def test_repair_of_a_killed_journal_loses_its_torn_tail_only(
    tmp_path: Path, directory: Path
) -> None:
    """Behind damage further up as well: a repair keeps all that recovery would have kept."""
    journal = Journal.open(directory, segment_bytes=SEGMENT)
    journal.append(numbered_events(EVENTS, ROWS))
    journal.append(numbered_events(EVENTS + ROWS, ROWS))
    killed = tmp_path / "killed" / ID
    shutil.copytree(directory, killed)
    journal.close()
    last = parts(killed)[-1].path
    last.write_bytes(last.read_bytes()[:-7])
    _flip_payload(killed)
    repaired = repair(killed)
    assert (repaired.end, repaired.events) == (EVENTS + ROWS, ROWS)
    assert not list((killed / QUARANTINE).glob(last.name)), "a torn tail is no damage"
    repair(killed, accept_loss=True)
    assert len(read_all(killed)) == EVENTS + ROWS - repaired.floor - ROWS


def test_journal_in_use_is_inspected_and_not_changed(directory: Path) -> None:
    journal = Journal.open(directory, segment_bytes=SEGMENT)
    journal.append(numbered_events(EVENTS, 1))
    found = inspect(directory)
    assert found.in_use
    assert found.findings == []
    with pytest.raises(UserError, match="in use"):
        repair(directory)
    assert sum(b.num_rows for _, b in batches(directory)) == EVENTS - journal.floor
    journal.close()


def batches(
    directory: Path, start: int = 0, end: int | None = None
) -> list[tuple[int, pa.RecordBatch]]:
    return [found for found in dump(directory, start, end) if not isinstance(found, Finding)]


def test_directory_without_a_journal_is_refused(tmp_path: Path) -> None:
    for tool in (inspect, repair, lambda path: list(dump(path))):
        with pytest.raises(UserError):
            tool(tmp_path)


def test_dump_has_exactly_the_requested_events(directory: Path) -> None:
    for start, end in [(60, 200), (95, 96), (60, 61), (150, None), (199, 300)]:
        numbers = [
            seq + row
            for seq, batch in batches(directory, start, end)
            for row in range(batch.num_rows)
        ]
        assert numbers == list(range(start, min(end or EVENTS, EVENTS)))


def test_dump_continues_behind_damage_and_names_it(directory: Path) -> None:
    _flip_payload(directory)
    _flip_segment_header(directory)
    found = list(dump(directory))
    rows = sum(batch.num_rows for _, batch in batches(directory))
    assert rows == EVENTS - parts(directory)[0].base - ROWS
    assert len([finding for finding in found if isinstance(finding, Finding)]) >= 2
