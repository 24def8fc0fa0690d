"""Mergeable histograms, for quantiles within 1 % of the values.

The buckets are those of DDSketch (Masson, Rim, Lee: "DDSketch", PVLDB 12, 2019): bucket i holds the
numbers in (GAMMA^(i-1), GAMMA^i], whose relative distance from the value of the bucket is at most
ACCURACY. Zero and negative numbers have buckets of their own. Null, NaN and infinite values are in
no bucket.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from flumeng.events.byte_column import Positions

ACCURACY = 0.01
GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
TYPE = pa.struct(
    [pa.field("values", pa.list_(pa.float64())), pa.field("counts", pa.list_(pa.int64()))]
)
"""Histograms as in Elasticsearch: ``values`` ascend, ``counts``: numbers that each represents."""
_LOG_GAMMA = math.log(GAMMA)
_ZERO = 1 << 20
"""Greater than the number of any bucket, so one number encodes bucket and sign."""


def buckets(numbers: pa.ChunkedArray) -> pa.Array:
    """Return the bucket of each number as an int32 that sorts like the number; null for none."""
    doubles = numbers.cast(pa.float64(), safe=False).combine_chunks()
    given = doubles.fill_null(math.nan).to_numpy(False)
    sizes = np.abs(given)
    countable = np.isfinite(given)
    filled = countable & (sizes > 0)
    number = np.zeros(len(given), np.int32)
    exponents = np.ceil(np.log(sizes[filled]) / _LOG_GAMMA).astype(np.int32)
    number[filled] = np.copysign(exponents + _ZERO, given[filled])
    return pa.array(number, mask=~countable)


def values(of: Positions) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    size = np.exp((np.abs(of) - _ZERO) * _LOG_GAMMA - math.log((1 + GAMMA) / 2))
    size = np.minimum(size, np.finfo(np.float64).max)
    return np.where(of == 0, 0.0, np.copysign(size, of))


def histograms(
    rows: Positions, of: pa.Array, counts: pa.ChunkedArray, length: int
) -> pa.StructArray:
    """Build ``length`` histograms: row ``rows[i]`` gets ``counts[i]`` in the bucket ``of[i]``,
    unless that is null. A row without buckets is null."""
    there = of.is_valid().to_numpy(False)
    numbers, rows = of.drop_null().to_numpy().astype(np.int64), rows[there]
    order = np.lexsort((numbers, rows))
    lengths = np.bincount(rows, minlength=length)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    lists = (values(numbers[order]), counts.to_numpy()[there][order])
    return pa.StructArray.from_arrays(
        [pa.ListArray.from_arrays(offsets, pa.array(each)) for each in lists],
        fields=list(TYPE),
        mask=pa.array(lengths == 0),
    )
