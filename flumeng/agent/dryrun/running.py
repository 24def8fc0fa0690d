"""Tries a flow on lines: one thread reads them, one filters, the caller takes results. More filter
threads would be slower: Arrow and numpy keep waiting for Python's lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from flumeng.agent.collector.lines.reader import Joining
from flumeng.agent.collector.lines.rules import Rules
from flumeng.agent.dryrun.filter_tree import FilterTree, Output
from flumeng.agent.dryrun.reading import in_order, lines
from flumeng.agent.dryrun.received_lines import ReceivedLines
from flumeng.config.multiline import Multiline
from flumeng.connectors.api.ranged import Progress
from flumeng.events.attributes import parse_errors


@dataclass
class EventCounts:
    """Event counts of a dry run. ``out``: events after the filters; ``parse_errors`` of these."""

    received: int = 0
    out: int = 0
    parse_errors: int = 0
    dead_letters: int = 0

    def add(self, output: Output) -> None:
        if output.failed:
            self.dead_letters += count(output.batches)
        else:
            self.out += count(output.batches)
            self.parse_errors += sum(map(parse_errors, output.batches))


def run(
    tree: FilterTree, received: ReceivedLines, inputs: Sequence[Path], counts: EventCounts
) -> Iterator[list[Output]]:
    def filtered(batches: list[pa.RecordBatch]) -> tuple[int, list[Output]]:
        return count(batches), list(tree.run(batches))

    for events, outputs in in_order(filtered, _events(received, inputs)):
        counts.received += events
        for output in outputs:
            counts.add(output)
        yield outputs


def first(
    received: ReceivedLines, inputs: Sequence[Path], events: int
) -> Iterator[list[pa.RecordBatch]]:
    """Yield the first ``events`` events, reading no more input than needed."""
    left = events
    for piece in _events(received, inputs):
        taken = []
        for batch in piece:
            taken.append(batch.slice(0, left))
            left -= taken[-1].num_rows
            if not left:
                break
        yield taken
        if not left:
            return


def _events(received: ReceivedLines, inputs: Sequence[Path]) -> Iterator[list[pa.RecordBatch]]:
    cut = lines(inputs, received.max_line_bytes, received.encoding)
    pieces = (received.events(piece) for piece in cut)
    return joined(pieces, received.multiline)


def joined(
    pieces: Iterable[list[pa.RecordBatch]], multiline: Multiline | None, first: int = 0
) -> Iterator[list[pa.RecordBatch]]:
    """Yield lines joined to multiline events if configured. ``first``: seq of the first line."""
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
    return sum(batch.num_rows for batch in batches)
