"""Reads partitions as events of several lines, and tells how far they are emitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from flumeng.agent.collector.lines.joined import JoinedRange
from flumeng.agent.collector.lines.rules import Rules
from flumeng.agent.collector.lines.steps import Joining
from flumeng.connectors.api.ranged import Progress, Range, UnreadableError
from flumeng.connectors.ranged.accumulator import AccumulatorHandle
from flumeng.connectors.ranged.reading import Reader
from flumeng.platform.errors import CorruptError, UnavailableError, UserError


@dataclass(frozen=True)
class JoinLines:
    """A ``Reader`` of events whose lines ``reader`` reads."""

    reader: Reader
    rules: Rules
    task: str
    joined: AccumulatorHandle[JoinedRange]

    @property
    def schema(self) -> pa.Schema:
        return self.reader.schema

    @property
    def modules(self) -> frozenset[str]:
        return self.reader.modules

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Of a range, the events that begin from ``piece.emitted`` on. Raises UnreadableError."""
        joining = Joining(self.rules, Progress(piece.start, piece.emitted, piece.sure))
        offset = piece.start
        try:
            for batch in self.reader.read(piece, address):
                offset = batch["seq"][-1].as_py() + 1
                joining.add(batch)
                if joining.ready:
                    yield from joining.step(offset)
        except (CorruptError, UserError, UnavailableError) as error:
            damaged = not isinstance(error, UnavailableError)
            raise UnreadableError(piece.partition, offset, str(error), damaged=damaged) from error
        yield from joining.step(piece.end, flush=piece.flush)
        joined = JoinedRange(piece, joining.progress, joining.closed, joining.unfinished)
        self.joined.add({(self.task, piece.partition): joined})
