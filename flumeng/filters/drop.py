"""The filter ``drop``: removes columns, and entries of ``attrs``."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from flumeng.events import attributes
from flumeng.events.columns import changed
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.contract import EachBatch, Filter
from flumeng.filters.options.drop import Drop
from flumeng.filters.options.templates import ATTRIBUTE


class DropFilter(Filter):
    def __init__(self, options: Drop) -> None:
        self._names = options.columns

    def apply(self, batch: LazyBatch) -> LazyBatch:
        there = batch.schema.names
        entries = [name for name in self._names if name not in there]
        matches = [ATTRIBUTE.fullmatch(name) for name in entries]
        keys = tuple(entry["key"] for entry in matches if entry is not None)
        schema = pa.schema([field for field in batch.schema if field.name not in self._names])
        return batch.arrow(DropStage(keys, tuple(schema.names)), schema)


@dataclass(frozen=True)
class DropStage(EachBatch):
    """Removes the entries ``keys`` of the column ``attrs``, and all columns but ``kept``."""

    keys: tuple[str, ...]
    kept: tuple[str, ...]

    def each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        left = batch.select(self.kept)
        if self.keys and "attrs" in self.kept:
            left = changed(left, {"attrs": attributes.without(left["attrs"], self.keys)})
        return left
