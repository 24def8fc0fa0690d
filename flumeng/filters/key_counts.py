"""The filters ``dedupe`` and ``limit``: the first rows of each key in a split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import Positions
from flumeng.events.columns import gathered
from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.contract import Filter
from flumeng.filters.options.dedupe import Dedupe
from flumeng.filters.options.limit import Limit

ROWS_AT_ONCE = 65_536
"""Batches are gathered to this many rows, since each count compares them with all known keys."""
SECOND = 1_000_000


class FirstOfKeyFilter(Filter):
    def __init__(self, options: Dedupe | Limit) -> None:
        if isinstance(options, Limit):
            self._stage = FirstOfKey(options.by, options.events, options.per_seconds)
        else:
            self._stage = FirstOfKey(options.by, 1, options.within_seconds)

    def apply(self, batch: LazyBatch) -> LazyBatch:
        return batch.arrow(self._stage, batch.schema)


@dataclass(frozen=True)
class FirstOfKey:
    """Keeps the first ``events`` rows of each key in the columns ``by`` and, with
    ``window_seconds``, of each window of ``ts``. Rows with null in the key or ``ts`` all pass."""

    by: tuple[str, ...]
    events: int
    window_seconds: float | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = KeyCounts()
        for table in gathered(batches, ROWS_AT_ONCE):
            (batch,) = table.combine_chunks().to_batches() or [
                pa.RecordBatch.from_pylist([], table.schema)
            ]
            keys = self._keys(batch)
            there = np.ones(len(batch), np.bool_)
            for key in keys:
                there &= key.is_valid().to_numpy(False)
            if not there.all():
                keys = [key.filter(pa.array(there)) for key in keys]
            kept = np.ones(len(batch), np.bool_)
            kept[there] = counts.before(keys) < self.events
            yield batch.filter(pa.array(kept))

    def _keys(self, batch: pa.RecordBatch) -> list[pa.Array]:
        keys = [batch[name] for name in self.by]
        if self.window_seconds is not None:
            length = round(self.window_seconds * SECOND)
            micros = batch["ts"].cast(pa.int64())
            windows = micros.fill_null(0).to_numpy(False) // length
            keys.append(pc.if_else(micros.is_valid(), pa.array(windows), None))
        return keys


class KeyCounts:
    """Counts rows by key: ``_counts[i]`` rows so far had the key ``_keys[...][i]``."""

    def __init__(self) -> None:
        self._keys: list[pa.Array] = []
        self._counts: Positions = np.zeros(0, np.int64)

    def before(self, keys: Sequence[pa.Array]) -> Positions:
        """Count rows; return how many before each, in all calls, had its key. No key is null."""
        if self._keys:
            pairs = zip(self._keys, keys, strict=True)
            keys = [pa.concat_arrays(both) for both in pairs]
        first, group = groups(keys)
        prior = np.zeros(len(first), np.int64)
        prior[group[: len(self._counts)]] = self._counts
        mine = group[len(self._counts) :]
        self._keys = [key.take(pa.array(first)) for key in keys]
        self._counts = prior + np.bincount(mine, minlength=len(first))
        counts: Positions = prior[mine] + _rank(mine)
        return counts


def groups(keys: Sequence[pa.Array]) -> tuple[Positions, Positions]:
    """Return each distinct key's first row, and each row's index among them. Nulls are equal."""
    first = group = np.zeros(0, np.int64)
    for number, key in enumerate(keys):
        encoded = key.dictionary_encode("encode")
        codes = encoded.indices.to_numpy().astype(np.int64)
        if number:
            codes = group * len(encoded.dictionary) + codes
        _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    return first, group


def _rank(groups: Positions) -> Positions:
    """Return the number of earlier rows in the same group, for each row."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return rank
