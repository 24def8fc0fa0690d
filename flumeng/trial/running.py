"""A flow tried on lines: what is read, filtered and shown, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.filters.reasons import PARSE_ERROR
from flumeng.inputs import Progress
from flumeng.inputs.lines.rules import Rules
from flumeng.inputs.lines.steps import Joining
from flumeng.spec.multiline import Multiline
from flumeng.trial.reading import ahead, lines
from flumeng.trial.received import ReceivedLines
from flumeng.trial.ways import Found, Way


@dataclass
class Tally:
    """How many events there were, how many came out, how many of those could not be parsed, and how
    many became dead letters instead."""

    received: int = 0
    out: int = 0
    parse_errors: int = 0
    dead_letters: int = 0


def run(
    way: Way, received: ReceivedLines, inputs: Sequence[Path], tally: Tally
) -> Iterator[list[Found]]:
    """What comes out of the flow's filters, piece by piece, as soon as lines are there."""

    def filtered() -> Iterator[list[Found]]:
        for batches in ahead(_events(received, inputs)):
            tally.received += count(batches)
            yield list(way.run(batches))

    for ends in ahead(filtered()):
        for found in ends:
            if found.failed:
                tally.dead_letters += count(found.batches)
            else:
                tally.out += count(found.batches)
                tally.parse_errors += sum(map(not_parsed, found.batches))
        yield ends


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
    pieces: Iterable[list[pa.RecordBatch]], multiline: Multiline | None
) -> Iterator[list[pa.RecordBatch]]:
    """The events of these lines; the last of a stream is one when nothing more comes."""
    if multiline is None:
        yield from pieces
        return
    joining, end = Joining(Rules.of(multiline), Progress(0, 0)), 0
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
