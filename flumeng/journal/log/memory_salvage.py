"""Turns a journal held in memory into a closed one on disk: with the unacked events after an
orderly stop, otherwise with frames that mark these as lost, so that the seqs are never reused."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log import segment
from flumeng.journal.log.checkpoint import NO_BOOT, Checkpoint, CheckpointFile
from flumeng.journal.log.disk import Disk
from flumeng.journal.log.frame import MAX_LOST, FrameHeader
from flumeng.journal.log.segment import SegmentHeader
from flumeng.platform.durable_files import write_durably
from flumeng.platform.errors import CorruptError

log = logging.getLogger(__name__)

STATE = "state.json"


def keep_state(directory: Path, state: Mapping[str, object]) -> None:
    """Store the source state as of the last acked event, durably."""
    write_durably(directory / STATE, json.dumps(dict(state)))


def of_killed(directory: Path, checkpoint: Checkpoint, disk: Disk) -> Checkpoint:
    """Write the journal of a killed process to disk, with all unacked events marked as lost; return
    its checkpoint. Raises CorruptError, OSError."""
    try:
        state = json.loads((directory / STATE).read_text())
    except FileNotFoundError:
        state = {}
    except ValueError as error:
        raise CorruptError(f"{directory / STATE} is not JSON: {error}") from error
    lost = checkpoint.safe - checkpoint.floor
    if lost or checkpoint.boot != disk.boot():
        log.error(
            "journal %s was held in memory: %s %d events, from seq %d to %d, are lost unless they "
            "are acked already",
            directory.name,
            "up to" if checkpoint.boot == disk.boot() else "the machine went down, at least",
            lost,
            checkpoint.floor,
            checkpoint.safe,
        )
    headers = lost_frames(checkpoint.journal, checkpoint.term, checkpoint.floor, checkpoint.safe)
    frames = [(header, [header.pack()]) for header in headers]
    return lay_down(directory, replace(checkpoint, lost=lost), state, frames, disk)


def lay_down(
    directory: Path,
    checkpoint: Checkpoint,
    state: Mapping[str, object],
    frames: Sequence[tuple[FrameHeader, Sequence[Any]]],
    disk: Disk,
) -> Checkpoint:
    """Write the frames as the journal's only segment, then the checkpoint, which is returned. An
    interrupted call can be repeated."""
    base = frames[0][0].first_seq if frames else checkpoint.safe
    for old in directory.glob(f"*{segment.SUFFIX}"):
        old.unlink()
    only = segment.create(
        directory, SegmentHeader(checkpoint.journal, checkpoint.term, base, None), state, disk
    )
    with only.path.open("r+b") as file:
        for header, parts in frames:
            disk.write(file.fileno(), parts, only.length)
            only.grow(header)
        disk.sync(file.fileno())
    disk.sync_directory(directory)
    kept = replace(
        checkpoint,
        segment=base,
        offset=only.length,
        floor=base,
        closed=True,
        durability="disk",
        boot=NO_BOOT,
    )
    file_ = CheckpointFile(directory / checkpoints.NAME, disk)
    try:
        file_.write(kept)
        file_.sync(now=True)
    finally:
        file_.close()
    return kept


def lost_frames(journal: bytes, term: int, start: int, end: int) -> Iterable[FrameHeader]:
    """Yield headers of frames that mark the events of [start, end) as lost."""
    while start < end:
        count = min(end - start, MAX_LOST)
        yield FrameHeader(journal, term, start, count, 0, 0, 0, lost=True)
        start += count
