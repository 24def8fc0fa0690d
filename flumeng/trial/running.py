"""A flow tried on lines: one thread reads and cuts them, others filter and show what comes out, and
the caller writes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.filters.reasons import PARSE_ERROR
from flumeng.inputs import Progress
from flumeng.inputs.lines.rules import Rules
from flumeng.inputs.lines.steps import Joining
from flumeng.spec.multiline import Multiline
from flumeng.trial.reading import in_order, lines
from flumeng.trial.received import ReceivedLines
from flumeng.trial.ways import Found, Way

MOST_THREADS = 4
"""That filter. One that reads lines and one that writes have enough to do for so many."""


@dataclass
class Tally:
    """How many events there were, how many came out, how many of those could not be parsed, and how
    many became dead letters instead."""

    received: int = 0
    out: int = 0
    parse_errors: int = 0
    dead_letters: int = 0

    def add(self, found: Found) -> None:
        """What came out of a piece at one end."""
        if found.failed:
            self.dead_letters += count(found.batches)
        else:
            self.out += count(found.batches)
            self.parse_errors += sum(map(not_parsed, found.batches))


def run(
    way: Way,
    received: ReceivedLines,
    inputs: Sequence[Path],
    tally: Tally,
    show: Callable[[Found], list[memoryview]],
    *,
    alone: bool = False,
) -> Iterator[list[memoryview]]:
    """What ``show`` makes of what comes out of the flow's filters, piece by piece, as soon as lines
    are there. ``alone``: no two threads filter at once; nor do they where Spark is needed."""
    cores = 1 if alone or not way.in_arrow else len(os.sched_getaffinity(0))

    def taken() -> Iterator[list[pa.RecordBatch]]:
        for batches in _events(received, inputs):
            tally.received += count(batches)
            yield batches

    def shown(batches: list[pa.RecordBatch]) -> tuple[Tally, list[memoryview]]:
        came, texts = Tally(), []
        for found in way.run(batches):
            came.add(found)
            texts += show(found)
        return came, texts

    for came, texts in in_order(shown, taken(), min(cores, MOST_THREADS)):
        tally.out += came.out
        tally.parse_errors += came.parse_errors
        tally.dead_letters += came.dead_letters
        yield texts


def first(
    received: ReceivedLines, inputs: Sequence[Path], events: int
) -> Iterator[list[pa.RecordBatch]]:
    """The first so many events, as soon as they are there; no more is read than brings them."""
    wanted = events
    for piece in _events(received, inputs):
        taken = []
        for batch in piece:
            taken.append(batch.slice(0, wanted))
            wanted -= taken[-1].num_rows
            if not wanted:
                break
        yield taken
        if not wanted:
            return


def _events(received: ReceivedLines, inputs: Sequence[Path]) -> Iterator[list[pa.RecordBatch]]:
    pieces = (received.events(piece) for piece in lines(inputs, received.max_line_bytes))
    return joined(pieces, received.multiline)


def joined(
    pieces: Iterable[list[pa.RecordBatch]], multiline: Multiline | None, first: int = 0
) -> Iterator[list[pa.RecordBatch]]:
    """The events of these lines, of which the first has the seq ``first``; the last of a stream is
    one when nothing more comes."""
    if multiline is None:
        yield from pieces
        return
    joining, end = Joining(Rules.of(multiline), Progress(first, first)), first
    for piece in pieces:
        for batch in piece:
            joining.add(batch)
            end = batch["seq"][-1].as_py() + 1
        yield list(joining.step(end))
    yield list(joining.step(end, flush=True))


def count(batches: Sequence[pa.RecordBatch]) -> int:
    """Events in all of them."""
    return sum(batch.num_rows for batch in batches)


def not_parsed(events: pa.RecordBatch) -> int:
    """How many have the attribute ``parse_error``."""
    if "attrs" not in events.schema.names or not pa.types.is_map(events.schema.field("attrs").type):
        return 0
    keys = events["attrs"].keys
    return int(pc.sum(pc.equal(keys, PARSE_ERROR)).as_py() or 0)
