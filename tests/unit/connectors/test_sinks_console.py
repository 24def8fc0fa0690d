"""The console's output of events, for any values."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from flumeng.connectors.console.sink import show

UTC = pa.timestamp("us", "UTC")


def shown(column: pa.Array) -> list[dict[str, Any]]:
    (batch,) = show(iter([pa.RecordBatch.from_arrays([column], ["ts"])]))
    (row,) = batch.to_pylist()
    assert row["events"] == len(column)
    return [json.loads(line) for line in row["lines"]]


@pytest.mark.parametrize(
    ("micros", "expected"),
    [
        (253_402_300_799_999_999, "9999-12-31 23:59:59.999999+00:00"),
        (253_402_304_399_000_000, "10000-01-01 00:59:59.000000Z"),
        (-62_135_596_800_000_001, "0000-12-31 23:59:59.999999Z"),
        (2**63 - 1, "32103-01-10 04:00:54.775807Z"),
    ],
)
def test_time_beyond_the_years_of_python_is_shown(micros: int, expected: str) -> None:
    assert shown(pa.array([micros], UTC)) == [{"ts": expected}]


def test_nested_time_beyond_the_years_of_python_is_reported() -> None:
    (event,) = shown(pa.array([[2**62]], pa.list_(UTC)))
    assert event == {"ts": "a time outside of the years 1 to 9999"}
