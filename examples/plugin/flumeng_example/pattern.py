"""The filter ``pattern``: whole columns at once, never row by row.

A body may have any bytes, and so may its pattern: as text it would have to be valid UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.api import LazyBatch, changed, replaced
from flumeng_example.options import Pattern


class PatternFilter:
    tables = ()
    identified = False

    def __init__(self, options: Pattern) -> None:
        self._options = options

    def apply(self, batch: LazyBatch) -> LazyBatch:
        """Called in the driver once a batch: it adds a stage and computes nothing."""
        added = pa.field(self._options.column, pa.binary())
        return batch.arrow(PatternStage(self._options.column), replaced(batch.schema, added))


@dataclass(frozen=True)
class PatternStage:
    """Runs in executors. It is pickled, so it holds plain values only."""

    column: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pattern = pc.replace_substring_regex(batch["body"], rb"\d+", b"#")
            yield changed(batch, {self.column: pattern})
