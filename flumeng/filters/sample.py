"""Keeps a part of the events, or of the keys, chosen by a hash: so a repeat keeps the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.hashes import as_fractions, of_rows
from flumeng.filters.options.sample import Sample


class SampleFilter:
    tables = ()
    identified = False

    def __init__(self, options: Sample) -> None:
        self._options = options

    def apply(self, batch: LazyBatch) -> LazyBatch:
        stage = SampleStage(self._options.by or ("journal", "seq"), self._options.rate)
        return batch.arrow(stage, batch.schema)


@dataclass(frozen=True)
class SampleStage:
    columns: tuple[str, ...]
    rate: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            hashes = of_rows([batch[name] for name in self.columns])
            yield batch.filter(pa.array(as_fractions(hashes) < self.rate))
