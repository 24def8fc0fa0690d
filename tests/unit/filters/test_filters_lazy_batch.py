"""Batches that may go into Spark SQL without a look at their size."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flumeng.events.lazy_batch import (
    BYTES_AT_ONCE,
    ROWS_AT_ONCE,
    LargeRowsError,
    require_small_rows,
)


def rows(count: int, size: int) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array([b"x" * size] * count, pa.binary())})


def test_row_size_limit_counts_rows_that_are_returned_together() -> None:
    """Those that come back together are counted, however they are cut."""
    size = BYTES_AT_ONCE // ROWS_AT_ONCE
    small = [rows(ROWS_AT_ONCE // 4, size // 2)] * 20
    assert list(require_small_rows(iter(small))) == small
    one_large = [rows(10, 100), rows(1, 1_000_000), *[rows(ROWS_AT_ONCE, 100)] * 3]
    assert list(require_small_rows(iter(one_large))) == one_large
    for large in ([rows(ROWS_AT_ONCE, size)], [rows(1, 1_000_000)] * 100):
        with pytest.raises(LargeRowsError, match="rows for Spark SQL have"):
            list(require_small_rows(iter(large)))
