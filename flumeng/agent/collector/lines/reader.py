"""Reads partitions as multiline events, and reports their progress. Keeps only needed lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.agent.collector.lines import JoinedRange
from flumeng.agent.collector.lines.containers import unwrap
from flumeng.agent.collector.lines.joining import REASONS, find_groups, join
from flumeng.agent.collector.lines.rules import Rules
from flumeng.connectors.api.ranged import Progress, Range, UnreadableError
from flumeng.connectors.ranged import reports
from flumeng.connectors.ranged.reading import Reader
from flumeng.platform.errors import CorruptError, UnavailableError, UserError

STEP_ROWS = 100_000
STEP_BYTES = 32 * 2**20


@dataclass(frozen=True)
class JoinLines:
    reader: Reader
    rules: Rules
    step_rows: int = STEP_ROWS

    @property
    def schema(self) -> pa.Schema:
        return self.reader.schema

    @property
    def modules(self) -> frozenset[str]:
        return self.reader.modules

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Yield the events that begin at ``piece.emitted`` or later, then note the JoinedRange of
        the partition. Raises UnreadableError."""
        at = Progress(piece.start, piece.emitted, piece.sure)
        joining = Joining(self.rules, at, self.step_rows)
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
        reports.note(piece.partition, joined)


class Joining:
    """Joins the lines of one partition. ``closed``: number of events by the reasons of REASONS."""

    def __init__(self, rules: Rules, at: Progress, step_rows: int = STEP_ROWS) -> None:
        self.progress = at
        self.closed: dict[str, int] = dict.fromkeys(REASONS.values(), 0)
        self.unfinished = False
        self._rules, self._step_rows = rules, step_rows
        self._lines: list[pa.RecordBatch] = []
        self._fresh = self._bytes = self._kept = 0

    def add(self, lines: pa.RecordBatch) -> None:
        self._lines.append(lines)
        self._fresh += lines.num_rows
        self._bytes += lines.nbytes

    @property
    def ready(self) -> bool:
        """Whether enough lines were added for a step, and at least as many as it rereads."""
        enough = self._fresh >= self._step_rows or self._bytes >= STEP_BYTES
        return enough and self._fresh >= self._kept

    def step(self, end: int, *, flush: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the events of the added lines, which must be all lines up to the offset ``end``."""
        if not self._lines:
            self.progress = Progress(end, end)
            return
        lines, container = pa.concat_batches(self._lines), self._rules.container
        unwrapped = None if container is None else unwrap(lines, container)
        groups = find_groups(
            lines, self.progress, end, self._rules, flush=flush, unwrapped=unwrapped
        )
        self.progress, self.unfinished = groups.progress, groups.unfinished
        for number, name in REASONS.items():
            self.closed[name] += int((groups.reasons == number).sum())
        rest = lines.filter(pc.greater_equal(lines["seq"], self.progress.offset))
        self._lines, self._kept = [rest], rest.num_rows
        self._fresh = self._bytes = 0
        events = lines if unwrapped is None else unwrapped.events(lines)
        yield from join(events, groups, counted=not self._rules.alone)
