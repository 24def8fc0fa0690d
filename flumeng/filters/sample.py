"""The filter ``sample``: keeps a fraction of events or keys by a hash, the same when repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pandas.util import hash_array

from flumeng.events.lazy_batch import LazyBatch
from flumeng.filters.contract import EachBatch, Filter
from flumeng.filters.options.sample import Sample


class SampleFilter(Filter):
    def __init__(self, options: Sample) -> None:
        self._options = options

    def apply(self, batch: LazyBatch) -> LazyBatch:
        stage = SampleStage(self._options.by or ("journal", "seq"), self._options.rate)
        return batch.arrow(stage, batch.schema)


@dataclass(frozen=True)
class SampleStage(EachBatch):
    columns: tuple[str, ...]
    rate: float

    def each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        hashes = of_rows([batch[name] for name in self.columns])
        return batch.filter(pa.array(as_fractions(hashes) < self.rate))


Hashes = npt.NDArray[np.uint64]

_KEY = "flumeng of rows!"
_ODD = np.uint64(0x9E3779B97F4A7C15)
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
_BITS = 53


def of_rows(columns: Sequence[pa.Array]) -> Hashes:
    """Return a 64-bit hash of each row, the same in every process and version: SipHash of texts,
    and SplitMix64 for whole numbers and the combination of columns. Nulls are equal."""
    hashes = np.full(len(columns[0]), _ODD)
    for column in columns:
        hashes = _mixed(hashes * _ODD + _of_values(column))
    return hashes


def as_fractions(hashes: Hashes) -> npt.NDArray[np.float64]:
    fractions: npt.NDArray[np.float64] = (hashes >> np.uint64(64 - _BITS)) / 2.0**_BITS
    return fractions


def _of_values(column: pa.Array) -> Hashes:
    if pa.types.is_integer(column.type):
        numbers = column.cast(pa.int64()).fill_null(0).to_numpy(False).astype(np.uint64)
        return np.where(column.is_valid().to_numpy(False), _mixed(numbers + _ODD), 0)
    texts = column if pa.types.is_binary(column.type) else column.cast(pa.string())
    encoded = texts.cast(pa.binary()).dictionary_encode()
    values = encoded.dictionary.to_numpy(zero_copy_only=False)
    hashes = np.append(hash_array(values, hash_key=_KEY, categorize=False), np.uint64(0))
    row_hashes: Hashes = hashes[encoded.indices.fill_null(len(values)).to_numpy(False)]
    return row_hashes


def _mixed(numbers: Hashes) -> Hashes:
    for shift, factor in _STEPS:
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers
