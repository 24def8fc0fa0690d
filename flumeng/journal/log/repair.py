"""Repairs a damaged journal so that it opens again, without hiding a loss.

A torn tail is truncated. Whole frames are kept, frames marked "lost" replace damaged or missing
acknowledged events, and damaged files go to quarantine. After a loss, or without a valid checkpoint
of the last term, the journal permanently rejects appends, so that no seq is reused. Readers stop at
the first loss until an operator accepts it.

An interrupted repair can be repeated: the checkpoint records the loss before any file is replaced,
and files are replaced by renaming.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log import directory as directories
from flumeng.journal.log import recovery
from flumeng.journal.log.checkpoint import NO_BARRIER, NO_BOOT, Checkpoint, CheckpointFile
from flumeng.journal.log.disk import Disk
from flumeng.journal.log.frame import encode_whole_state, padded
from flumeng.journal.log.inspection import QUARANTINE, Inspection, Part, Run, inspect, state_after
from flumeng.journal.log.memory_salvage import lost_frames
from flumeng.journal.log.segment import (
    SEGMENT_HEADER_BYTES,
    UNFINISHED,
    Link,
    Segment,
    SegmentHeader,
    file_name,
)
from flumeng.platform.errors import UserError

_COPY_BYTES = 1 << 20
_UNDER_REPAIR = 2**63 - 1
"""A length that no segment has, so that recovery rejects a half-repaired journal."""

Piece = Run | tuple[int, int]
"""A run of valid frames, or the seqs [start, end) of lost events."""


@dataclass(frozen=True)
class Repaired:
    """The result of a repair. ``lost``: seqs [start, end) newly found lost; ``events``: the number
    of all lost events. ``waits_at``: the seq at which readers stop until the loss is accepted."""

    lost: tuple[tuple[int, int], ...]
    events: int
    quarantined: tuple[str, ...]
    floor: int
    end: int
    closed: bool
    waits_at: int | None


@dataclass
class _Slot:
    base: int
    end: int
    part: Part | None
    pieces: list[Piece]
    last: bool

    @property
    def lost(self) -> list[tuple[int, int]]:
        return [piece for piece in self.pieces if isinstance(piece, tuple)]

    @property
    def sound(self) -> bool:
        """Whether the segment's file may stay; the last file may have a torn tail."""
        if self.part is None or (whole := self.part.whole) is None:
            return False
        ends = self.last or whole.end == self.part.size
        return ends and (whole.first, whole.stop) == (self.base, self.end)


def repair(directory: Path, *, accept_loss: bool = False, disk: Disk | None = None) -> Repaired:
    """Repair the journal in a directory. Raises UserError when it is open or held in memory,
    HeldError, and CorruptError when it cannot be repaired."""
    with directories.plain_errors(directory):
        lock = directories.lock(directory)
        try:
            return _Repair(directory, disk or Disk()).run(accept_loss=accept_loss)
        finally:
            os.close(lock)


class _Repair:
    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._inspection: Inspection = inspect(directory, locked=True)
        self._quarantined: list[str] = []

    def run(self, *, accept_loss: bool) -> Repaired:
        inspection = self._inspection
        if inspection.checkpoint and inspection.checkpoint.durability == "memory":
            raise UserError(f"journal {self._directory} was in memory: there is nothing to repair")
        lost: list[tuple[int, int]] = []
        damaged_checkpoint = self._directory / checkpoints.NAME
        if inspection.checkpoint is None and damaged_checkpoint.exists():
            self._set_aside(damaged_checkpoint)
        if inspection.damaged:
            slots = self._slots()
            lost = [range_ for slot in slots for range_ in slot.lost]
            checkpoint = self._judge(slots, lost)
            self._write_checkpoint(checkpoint)
            checkpoint = self._rebuild(slots, checkpoint)
        else:
            assert inspection.checkpoint is not None
            checkpoint = inspection.checkpoint
        if accept_loss:
            checkpoint = replace(checkpoint, barrier=NO_BARRIER)
        self._write_checkpoint(checkpoint)
        recovered = recovery.recover(self._directory, inspection.journal, self._disk)
        return Repaired(
            lost=tuple(lost),
            events=checkpoint.lost,
            quarantined=tuple(self._quarantined),
            floor=checkpoint.floor,
            end=recovered.next_seq,
            closed=checkpoint.closed,
            waits_at=None if checkpoint.barrier == NO_BARRIER else checkpoint.barrier,
        )

    def _slots(self) -> list[_Slot]:
        """Return the repaired journal's segments. A file remains one unless frames of another span
        its first seq. With a damaged header, valid frames must begin or end there."""
        inspection = self._inspection
        checkpoint = inspection.checkpoint
        runs = [run for part in inspection.parts for run in part.runs]
        borders = {seq for run in runs for seq in (run.first, run.stop)}
        parts = {
            part.base: part
            for part in inspection.parts
            if (part.header or part.base in borders)
            and not any(run.first < part.base < run.stop for run in runs)
        }
        floor = checkpoint.floor if checkpoint else min([*parts, *borders], default=0)
        end = checkpoint.safe if checkpoint else max([floor, *borders])
        for run in sorted(runs, key=lambda run: run.first):
            if run.first <= end:  # nothing behind a torn frame was acknowledged
                end = max(end, run.stop)
        bases = sorted({floor, *(base for base in parts if floor <= base <= end)})
        return [
            _Slot(
                base,
                stop,
                parts.get(base),
                _fill(base, stop, runs, parts.get(base)),
                at == len(bases),
            )
            for at, (base, stop) in enumerate(itertools.pairwise([*bases, end]), 1)
        ]

    def _judge(self, slots: Sequence[_Slot], lost: Sequence[tuple[int, int]]) -> Checkpoint:
        inspection = self._inspection
        checkpoint = inspection.checkpoint
        terms = [run.term for part in inspection.parts for run in part.runs]
        terms += [part.header.term for part in inspection.parts if part.header]
        runs = [piece for slot in slots for piece in slot.pieces if isinstance(piece, Run)]
        all_lost = [*lost, *(range_ for run in runs for range_ in run.lost)]
        newest = max([checkpoint.term if checkpoint else 1, *terms])
        unsure = bool(lost) or checkpoint is None or newest > checkpoint.term
        barrier = checkpoint.barrier if checkpoint else NO_BARRIER
        return Checkpoint(
            inspection.journal,
            term=newest,
            segment=slots[-1].base,
            offset=_UNDER_REPAIR,
            safe=slots[-1].end,
            floor=slots[0].base,
            closed=unsure or (checkpoint is not None and checkpoint.closed),
            durability=checkpoint.durability if checkpoint else "disk",
            boot=NO_BOOT if unsure or checkpoint is None else checkpoint.boot,
            barrier=min([barrier, *(start for start, _ in lost)]),
            lost=sum(end - start for start, end in all_lost),
        )

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        path = self._directory / checkpoints.NAME
        path.touch(mode=0o600)
        file = CheckpointFile(path, self._disk)
        try:
            file.write(checkpoint)
            file.sync(now=True)
        finally:
            file.close()
        os.truncate(path, checkpoints.BLOCK_BYTES)
        self._disk.sync_directory(self._directory)

    def _rebuild(self, slots: Sequence[_Slot], checkpoint: Checkpoint) -> Checkpoint:
        link: Link | None = None
        before: Part | None = None
        offset = 0
        for slot in slots:
            if slot.sound and slot.part and slot.part.header:
                part = slot.part
                header = part.header
                assert header is not None
                if link is not None and header.previous != link:
                    self._relink(part, replace(header, previous=link))
            else:
                part = self._replace(slot, link, before)
            link, before = part.link, part
            whole = part.whole
            assert whole is not None
            offset = whole.end
        bases = {slot.base for slot in slots}
        for extra in self._inspection.parts:
            if extra.base not in bases:
                self._set_aside(extra.path)
                extra.path.unlink()
        self._disk.sync_directory(self._directory)
        return replace(checkpoint, offset=offset)

    def _replace(self, slot: _Slot, link: Link | None, before: Part | None) -> Part:
        """Rewrite a segment from its pieces; the old file goes to quarantine."""
        old = slot.part.header if slot.part else None
        state = dict(slot.part.state) if slot.part and old else {}
        if old is None and before is not None:
            state = state_after(before, self._inspection.journal)
        term = old.term if old else (before.header.term if before and before.header else 0)
        header = SegmentHeader(self._inspection.journal, term, slot.base, link)
        path = self._directory / file_name(slot.base)
        draft = path.with_name(path.name + UNFINISHED)
        blob = encode_whole_state(state)
        head = [header.pack(blob), blob.ljust(padded(len(blob)), b"\0")]
        segment = Segment(path, self._inspection.journal, header, sum(map(len, head)))
        run = Run(path, segment.first, segment.first, slot.base, slot.base, term, 0, 0)
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._disk.write(fd, head, 0)
            for piece in slot.pieces:
                run = self._write(fd, run, piece)
            self._disk.sync(fd)
        finally:
            os.close(fd)
        if path.exists():
            self._set_aside(path)
        draft.replace(path)
        self._disk.sync_directory(self._directory)
        return Part(path, run.end, header, segment.first, state, runs=[run])

    def _write(self, fd: int, run: Run, piece: Piece) -> Run:
        """Append a piece to the file of ``run``; return the longer run."""
        if isinstance(piece, Run):
            _copy(self._disk, piece, fd, run.end)
            return replace(
                run,
                end=run.end + piece.end - piece.offset,
                stop=piece.stop,
                term=piece.term,
                last_offset=run.end + piece.last_offset - piece.offset,
                last_crc=piece.last_crc,
            )
        for header in lost_frames(self._inspection.journal, run.term, *piece):
            self._disk.write(fd, [header.pack()], run.end)
            run = replace(
                run,
                end=run.end + header.length,
                stop=header.end,
                last_offset=run.end,
                last_crc=header.crc,
            )
        return run

    def _relink(self, part: Part, header: SegmentHeader) -> None:
        fd = os.open(part.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            state_bytes = os.pread(fd, part.first - SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES)
            blob = state_bytes.rstrip(b"\0")
            self._disk.write(fd, [header.pack(blob)], 0)
            self._disk.sync(fd)
        finally:
            os.close(fd)
        part.header = header

    def _set_aside(self, path: Path) -> None:
        """Keep a file in quarantine under an unused name: a segment as a hard link, the checkpoint
        as a copy, since it is overwritten in place."""
        quarantine = self._directory / QUARANTINE
        quarantine.mkdir(mode=0o700, exist_ok=True)
        names = (path.name if not n else f"{path.name}.{n}" for n in itertools.count())
        target = next(quarantine / name for name in names if not (quarantine / name).exists())
        try:
            if path.name == checkpoints.NAME:
                shutil.copyfile(path, target)
            else:
                os.link(path, target)
        except PermissionError:  # a file system without links
            shutil.copyfile(path, target)
        self._disk.sync_directory(quarantine)
        self._quarantined.append(target.name)


def _fill(base: int, end: int, runs: Sequence[Run], part: Part | None) -> list[Piece]:
    """Return valid frames of [base, end), preferably of ``part``, and lost seqs in between."""
    pieces: list[Piece] = []
    seq = base
    own = part.path if part else None
    for run in sorted(runs, key=lambda run: (run.first, run.path != own)):
        if run.first < seq or run.stop > end or run.stop == run.first:
            continue
        if run.first > seq:
            pieces.append((seq, run.first))
        pieces.append(run)
        seq = run.stop
    if seq < end:
        pieces.append((seq, end))
    return pieces


def _copy(disk: Disk, run: Run, target: int, to: int) -> None:
    with run.path.open("rb") as file:
        for offset in range(run.offset, run.end, _COPY_BYTES):
            block: Any = os.pread(file.fileno(), min(_COPY_BYTES, run.end - offset), offset)
            disk.write(target, [block], to + offset - run.offset)
