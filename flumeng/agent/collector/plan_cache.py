"""Cached batches: Spark's analysed plans of a flow's filters. Analysing a statement takes Spark
longer than running a small batch. Plans take the driver's memory, several times the size of their
tables; the least recently used are evicted."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.refreshed_table import Version

MOST = 100
"""A plan with a join takes two megabytes of the driver's memory, however small its table is."""
MOST_TABLE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class _Kept:
    batch: LazyBatch
    versions: tuple[Version | None, ...]

    @property
    def table_bytes(self) -> int:
        return sum(version.table.nbytes for version in self.versions if version is not None)


class PlanCache:
    """Cached plans, thread-safe. ``pipeline`` is the key of a pipeline."""

    def __init__(self, most: int = MOST, most_table_bytes: int = MOST_TABLE_BYTES) -> None:
        self._most = most
        self._most_table_bytes = most_table_bytes
        self._kept: OrderedDict[tuple[Hashable, int], _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def take(
        self,
        pipeline: Hashable,
        splits: int,
        versions: Sequence[Version | None],
        prepare: Callable[[], LazyBatch],
    ) -> LazyBatch:
        """Return the batch cached for these arguments, else prepare and cache a new one."""
        key = pipeline, splits
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.versions == tuple(versions):
                self._kept.move_to_end(key)
                return kept.batch
            self._kept.pop(key, None)
        made = _Kept(prepare(), tuple(versions))
        with self._lock:
            self._kept[key] = made
            self._make_room()
        return made.batch

    def forget(self, pipeline: Hashable) -> None:
        """Evict a pipeline's plans, after a failed batch for which they may be the cause."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == pipeline]:
                del self._kept[key]

    def _make_room(self) -> None:
        used = sum(kept.table_bytes for kept in self._kept.values())
        while len(self._kept) > 1 and (
            len(self._kept) > self._most or used > self._most_table_bytes
        ):
            used -= self._kept.popitem(last=False)[1].table_bytes
