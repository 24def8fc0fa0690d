"""Gives columns other names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.options.rename import Rename


class RenameFilter:
    tables = ()
    identified = False

    def __init__(self, options: Rename) -> None:
        self._columns = options.columns

    def apply(self, batch: LazyBatch) -> LazyBatch:
        fields = [
            field.with_name(self._columns.get(field.name, field.name)) for field in batch.schema
        ]
        schema = pa.schema(fields)
        return batch.arrow(RenameStage(schema), schema)


@dataclass(frozen=True)
class RenameStage:
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
