"""Dumps the readable events in a journal's directory. Reads only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log import directory as directories
from flumeng.journal.log.encryption import NO_KEYS, Keyring
from flumeng.journal.log.frame import identity
from flumeng.journal.log.frame_scanner import Bad, scan
from flumeng.journal.log.inspection import Finding
from flumeng.journal.log.segment import SUFFIX, open_segment
from flumeng.platform.errors import CorruptError, UserError

Found = tuple[int, pa.RecordBatch] | Finding


def dump(
    directory: Path, start: int = 0, end: int | None = None, keyring: Keyring = NO_KEYS
) -> Iterator[Found]:
    """Yields the events of [start, end) in batches with their first seqs, and findings for
    unreadable ones. Of an open journal only what its checkpoint covers is read. Raises UserError
    for a directory without a journal."""
    paths = sorted(directory.glob(f"*{SUFFIX}"))
    if not paths and not (directory / checkpoints.NAME).exists():
        raise UserError(f"{directory} holds no journal")
    journal = identity(directory.name)
    newest = synced = None
    if directories.in_use(directory):
        known = checkpoints.read(directory / checkpoints.NAME, journal)
        newest, synced = known.segment, known.offset
        end = known.safe if end is None else min(end, known.safe)
    bases = [int(path.name.removesuffix(SUFFIX)) for path in paths]
    for number, path in enumerate(paths):
        follows = bases[number + 1] if number + 1 < len(bases) else None
        if (end is None or bases[number] < end) and (follows is None or follows > start):
            size = synced if bases[number] == newest else None
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
        for found in scan(file.fileno(), first, size, journal, keyring):
            if isinstance(found, Bad):
                yield Finding(path.name, found.offset, found.why)
                continue
            header = found.header
            begin, stop = max(start, header.first_seq), header.end
            if end is not None and header.first_seq >= end:
                return
            stop = stop if end is None else min(stop, end)
            if found.batch is None and begin < stop:
                gone = f"encrypted with key {found.locked}" if found.locked else "lost"
                yield Finding(path.name, found.offset, f"events {begin} to {stop} are {gone}")
            elif found.batch is not None and begin < stop:
                yield begin, found.batch.slice(begin - header.first_seq, stop - begin)
