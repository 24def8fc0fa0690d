"""The filter ``rename``: gives columns other names."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.contract import EachBatch, Filter
from flumeng.filters.options.rename import Rename


class RenameFilter(Filter):
    def __init__(self, options: Rename) -> None:
        self._columns = options.columns

    def apply(self, batch: LazyBatch) -> LazyBatch:
        fields = [
            field.with_name(self._columns.get(field.name, field.name)) for field in batch.schema
        ]
        schema = pa.schema(fields)
        return batch.arrow(RenameStage(schema), schema)


@dataclass(frozen=True)
class RenameStage(EachBatch):
    schema: pa.Schema

    def each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
