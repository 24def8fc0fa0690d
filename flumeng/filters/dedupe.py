"""Keeps the first of events that are alike in some columns."""

from __future__ import annotations

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.key_counts import FirstOfKey
from flumeng.filters.options.dedupe import Dedupe


class DedupeFilter:
    tables = ()
    identified = False

    def __init__(self, options: Dedupe) -> None:
        self._stage = FirstOfKey(options.by, 1, options.within_seconds)

    def apply(self, batch: LazyBatch) -> LazyBatch:
        return batch.arrow(self._stage, batch.schema)
