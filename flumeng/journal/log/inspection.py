"""Inspects a journal's directory, damaged or not, without keeping its lock. Of a journal in use it
inspects only the events below the checkpoint."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log import directory as directories
from flumeng.journal.log.checkpoint import NO_BARRIER, Checkpoint
from flumeng.journal.log.encryption import NO_KEYS, Keyring
from flumeng.journal.log.errors import held
from flumeng.journal.log.frame import decode_state, identity
from flumeng.journal.log.frame_scanner import Bad, Good, scan
from flumeng.journal.log.recovery import merge_state
from flumeng.journal.log.segment import (
    BROKEN,
    SUFFIX,
    UNFINISHED,
    Link,
    SegmentHeader,
    files,
    open_segment,
)
from flumeng.platform.errors import CorruptError, UserError

QUARANTINE = "quarantine"


@dataclass(frozen=True)
class Finding:
    """An irregularity in a journal; ``damage`` when acknowledged events may be affected."""

    file: str
    offset: int | None
    what: str
    damage: bool = True

    def __str__(self) -> str:
        where = self.file if self.offset is None else f"{self.file} at byte {self.offset}"
        return f"{where}: {self.what}"


@dataclass(frozen=True)
class Run:
    """Valid frames with consecutive seqs in one file: bytes [offset, end), seqs [first, stop)."""

    path: Path
    offset: int
    end: int
    first: int
    stop: int
    term: int
    last_offset: int
    last_crc: int
    lost: tuple[tuple[int, int], ...] = ()


@dataclass
class Part:
    """One segment file. ``header`` is None when damaged. ``locked``: ids of missing keys."""

    path: Path
    size: int
    header: SegmentHeader | None = None
    first: int = 0
    state: dict[str, object] = field(default_factory=dict)
    problem: str = ""
    runs: list[Run] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    locked: set[str] = field(default_factory=set)

    @property
    def base(self) -> int:
        return int(self.path.name.removesuffix(SUFFIX))

    @property
    def whole(self) -> Run | None:
        """The frames right after the header, perhaps none; None when the header is damaged."""
        if self.header is None:
            return None
        if self.runs and (self.runs[0].offset, self.runs[0].first) == (self.first, self.base):
            return self.runs[0]
        term, base = self.header.term, self.base
        return Run(self.path, self.first, self.first, base, base, term, 0, 0)

    @property
    def link(self) -> Link:
        run = self.whole
        assert run is not None
        return Link(self.base, run.end, run.last_offset, run.last_crc)


@dataclass
class Inspection:
    """The result of an inspection; ``parts`` are the segments from the floor on, in order."""

    directory: Path
    journal: bytes
    in_use: bool
    checkpoint: Checkpoint | None
    parts: list[Part]
    findings: list[Finding]

    @property
    def damaged(self) -> bool:
        return any(finding.damage for finding in self.findings)


def inspect(directory: Path, *, locked: bool = False, keyring: Keyring = NO_KEYS) -> Inspection:
    """Check all files of a journal. Encrypted events are decoded only with their key. ``locked``:
    the caller holds the lock. Raises UserError for no journal, an unknown format or a foreign file;
    HeldError."""
    paths = files(directory)
    if not paths and not (directory / checkpoints.NAME).exists():
        raise UserError(f"{directory} holds no journal")
    journal = identity(directory.name)
    in_use = not locked and directories.in_use(directory)
    findings: list[Finding] = []
    checkpoint: Checkpoint | None = None
    try:
        checkpoint = checkpoints.read(directory / checkpoints.NAME, journal)
    except CorruptError as error:
        what = str(error).removeprefix(f"{directory / checkpoints.NAME}").lstrip(": ")
        findings.append(Finding(checkpoints.NAME, None, what))
    inspection = Inspection(directory, journal, in_use, checkpoint, [], findings)
    if checkpoint is not None and checkpoint.durability == "memory":
        findings.append(Finding(checkpoints.NAME, None, "its events are held in memory", False))
        return inspection
    findings += _left_overs(directory)
    floor = checkpoint.floor if checkpoint else 0
    newest = checkpoint.segment if checkpoint and in_use else None
    for path in paths.values():
        part = Part(path, 0)
        if part.base < floor:
            findings.append(Finding(path.name, None, "left over from a trim", False))
        elif newest is None or part.base <= newest:
            _look_at(part, journal, checkpoint if part.base == newest else None, keyring)
            inspection.parts.append(part)
    findings += _of_parts(inspection)
    findings += _of_chain(inspection)
    findings += _of_end(inspection)
    return inspection


def state_after(part: Part, journal: bytes) -> dict[str, object]:
    state = dict(part.state)
    for good in frames(part, journal):
        blob = good.frame.slice(64, good.header.state_bytes)
        merge_state(state, decode_state(blob))
    return state


def frames(part: Part, journal: bytes) -> Iterator[Good]:
    with part.path.open("rb") as file:
        for frame in scan(file.fileno(), part.first, part.size, journal):
            if isinstance(frame, Good):
                yield frame


def _look_at(part: Part, journal: bytes, until: Checkpoint | None, keyring: Keyring) -> None:
    """Read a segment file into ``part``, up to the checkpoint ``until`` if given."""
    try:
        segment, part.state = open_segment(part.path, journal)
        part.header, part.first = segment.header, segment.first
    except (CorruptError, OSError) as error:
        if isinstance(error, OSError) and (waits := held(str(part.path), error)):
            raise waits from error
        part.problem = str(error).removeprefix(str(part.path)).lstrip(": ")
    try:
        with part.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            part.size = min(size, until.offset) if until else size
            for frame in scan(file.fileno(), part.first, part.size, journal, keyring):
                if isinstance(frame, Bad):
                    part.bad.append(frame)
                else:
                    _add(part, frame)
                    part.locked |= {frame.locked} - {""}
    except FileNotFoundError:
        part.problem = "it was trimmed meanwhile"


def _add(part: Part, good: Good) -> None:
    header = good.header
    lost = ((header.first_seq, header.end),) if header.lost else ()
    end = good.offset + header.length
    last = part.runs[-1] if part.runs else None
    if last and (last.end, last.stop) == (good.offset, header.first_seq):
        part.runs[-1] = replace(
            last,
            end=end,
            stop=header.end,
            term=max(last.term, header.term),
            last_offset=good.offset,
            last_crc=header.crc,
            lost=last.lost + lost,
        )
        return
    part.runs.append(
        Run(
            part.path,
            good.offset,
            end,
            header.first_seq,
            header.end,
            header.term,
            good.offset,
            header.crc,
            lost,
        )
    )


def _left_overs(directory: Path) -> Iterator[Finding]:
    for path in sorted(directory.iterdir()):
        if path.name.endswith(UNFINISHED):
            yield Finding(path.name, None, "a segment that was never used", False)
        elif path.name.endswith(BROKEN):
            yield Finding(path.name, None, "a torn tail that was cut off", False)
        elif path.name == QUARANTINE:
            yield Finding(path.name, None, "put into quarantine by a repair", False)


def _of_parts(inspection: Inspection) -> Iterator[Finding]:
    for part in inspection.parts:
        if part.problem:
            yield Finding(part.path.name, 0, part.problem)
        for key in sorted(part.locked):
            what = f"encrypted with key {key}, which was not given: only its checksums are known"
            yield Finding(part.path.name, None, what, False)
        torn = _torn_from(part, inspection)
        spills = inspection.checkpoint and inspection.checkpoint.durability == "spill"
        tail = "a torn tail, not synced: " if spills else "a torn tail, never acknowledged: "
        for bad in part.bad:
            kind = tail if bad.offset >= torn else ""
            yield Finding(part.path.name, bad.offset, f"{kind}{bad.why}", not kind)
        if part.header and part.runs and part.runs[0].offset == part.first:
            first = part.runs[0].first
            if first != part.base:
                what = f"begins with seq {first}, its name says {part.base}"
                yield Finding(part.path.name, part.first, what)
        for before, after in itertools.pairwise(part.runs):
            if before.stop != after.first and after.offset < torn:
                what = f"seq {before.stop} is followed by seq {after.first}"
                yield Finding(part.path.name, after.offset, what)
        checkpoint = inspection.checkpoint
        if checkpoint and any(run.term > checkpoint.term for run in part.runs):
            what = f"it is older than the events in {part.path.name}"
            yield Finding(checkpoints.NAME, None, what)


def _of_chain(inspection: Inspection) -> Iterator[Finding]:
    """Yield findings about missing segments and headers that do not match the preceding segment."""
    checkpoint = inspection.checkpoint
    bases = [part.base for part in inspection.parts]
    for name in ("floor", "segment") if checkpoint else ():
        base = getattr(checkpoint, name)
        if base not in bases:
            yield Finding(f"{base:020d}{SUFFIX}", None, "the file is missing")
    for part, successor in itertools.pairwise(inspection.parts):
        if part.header is None or successor.header is None:
            continue
        previous = successor.header.previous
        if previous is None or previous.base != part.base:
            what = "does not follow the segment before it: one is missing"
            yield Finding(successor.path.name, None, what)
        elif previous != part.link or part.size != previous.length:
            what = f"it does not end as {successor.path.name} says"
            yield Finding(part.path.name, part.link.length, what)


def _of_end(inspection: Inspection) -> Iterator[Finding]:
    checkpoint = inspection.checkpoint
    if checkpoint is None:
        return
    stops = (run.stop for part in inspection.parts for run in part.runs)
    end = max(stops, default=checkpoint.floor)
    if end < checkpoint.safe:
        what = f"it ends at seq {checkpoint.safe}, the segments end at {end}"
        yield Finding(checkpoints.NAME, None, what)
    last = inspection.parts[-1] if inspection.parts else None
    whole = last.whole if last and last.base == checkpoint.segment else None
    unbroken = last and not last.bad and len(last.runs) <= 1
    if last and whole and unbroken and whole.end < checkpoint.offset:
        what = f"it has {checkpoint.offset} bytes for {last.path.name}, not {whole.end}"
        yield Finding(checkpoints.NAME, None, what)
    if checkpoint.barrier != NO_BARRIER:
        what = f"events from seq {checkpoint.barrier} on are lost; the loss is not accepted"
        yield Finding(checkpoints.NAME, None, what)
    elif checkpoint.lost:
        what = f"lost events, of an accepted loss: {checkpoint.lost}"
        yield Finding(checkpoints.NAME, None, what, False)


def _torn_from(part: Part, inspection: Inspection) -> int:
    """Return the offset from which bad frames are a torn tail; past the end if none can be."""
    checkpoint = inspection.checkpoint
    if checkpoint is None or part is not inspection.parts[-1] or part.header is None:
        return part.size + 1
    return checkpoint.offset if checkpoint.segment == part.base else part.first


Found = tuple[int, pa.RecordBatch] | Finding


def dump(
    directory: Path, start: int = 0, end: int | None = None, keyring: Keyring = NO_KEYS
) -> Iterator[Found]:
    """Yield the events of [start, end) in batches with their first seqs, and a finding for each
    unreadable range. Raises UserError for a directory without a journal or with a foreign file."""
    paths = files(directory)
    if not paths and not (directory / checkpoints.NAME).exists():
        raise UserError(f"{directory} holds no journal")
    journal = identity(directory.name)
    newest = synced = None
    if directories.in_use(directory):
        checkpoint = checkpoints.read(directory / checkpoints.NAME, journal)
        newest, synced = checkpoint.segment, checkpoint.offset
        end = checkpoint.safe if end is None else min(end, checkpoint.safe)
    followers = [*paths, None][1:]
    for (base, path), follows in zip(paths.items(), followers, strict=False):
        if (end is None or base < end) and (follows is None or follows > start):
            size = synced if base == newest else None
            yield from _of_segment(path, journal, (start, end), size, keyring)


def _of_segment(
    path: Path, journal: bytes, seqs: tuple[int, int | None], size: int | None, keyring: Keyring
) -> Iterator[Found]:
    start, end = seqs
    first = 0
    try:
        first = open_segment(path, journal)[0].first
    except CorruptError as error:
        yield Finding(path.name, 0, str(error).removeprefix(str(path)).lstrip(": "))
    with path.open("rb") as file:
        size = size or os.fstat(file.fileno()).st_size
        for frame in scan(file.fileno(), first, size, journal, keyring):
            if isinstance(frame, Bad):
                yield Finding(path.name, frame.offset, frame.why)
                continue
            header = frame.header
            begin, stop = max(start, header.first_seq), header.end
            if end is not None and header.first_seq >= end:
                return
            stop = stop if end is None else min(stop, end)
            if frame.batch is None and begin < stop:
                gone = f"encrypted with key {frame.locked}" if frame.locked else "lost"
                yield Finding(path.name, frame.offset, f"events {begin} to {stop} are {gone}")
            elif frame.batch is not None and begin < stop:
                yield begin, frame.batch.slice(begin - header.first_seq, stop - begin)
