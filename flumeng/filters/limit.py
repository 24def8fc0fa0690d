"""Lets so many events of a key and a window of event time through."""

from __future__ import annotations

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.key_counts import FirstOfKey
from flumeng.filters.options.limit import Limit


class LimitFilter:
    tables = ()
    identified = False

    def __init__(self, options: Limit) -> None:
        self._stage = FirstOfKey(options.by, options.events, options.per_seconds)

    def apply(self, batch: LazyBatch) -> LazyBatch:
        return batch.arrow(self._stage, batch.schema)
