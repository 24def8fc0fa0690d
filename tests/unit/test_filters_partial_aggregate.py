"""Partial sums: whatever the cuts, put together they are the sums of all events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.filters import partial_aggregate
from flumeng.filters.partial_aggregate import PartialAggregateStage
from flumeng.spec import SpecError, check_flow
from flumeng.spec.filters.partial_aggregate import Value, value

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("host", pa.string()),
        pa.field("x", pa.int32()),
        pa.field("f", pa.float64()),
        pa.field("seq", pa.int64()),
    ]
)
VALUES = {"n": "count", "xs": "count(x)", "sum": "sum(x)", "low": "min(f)", "high": "max(ts)"}
STAGE = PartialAggregateStage(
    ("host",),
    (("seq", Value("first", "seq")), *((name, value(text)) for name, text in VALUES.items())),
    60_000_000,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "ts": st.none() | st.integers(-200, 200).map(lambda s: EPOCH + timedelta(seconds=s)),
            "host": st.none() | st.sampled_from(["a", "b"]),
            "x": st.none() | st.integers(-(2**31), 2**31 - 1),
            "f": st.none() | st.sampled_from([0.5, -1.0, 2.0]),
        }
    ),
    max_size=30,
)


def model(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for row in rows:
        minute = timedelta(minutes=1)
        window = row["ts"] and EPOCH + (row["ts"] - EPOCH) // minute * minute
        groups.setdefault((window, row["host"]), []).append(row)

    def there(of: list[dict[str, Any]], name: str) -> list[Any]:
        return [row[name] for row in of if row[name] is not None]

    return [
        {
            "ts": window,
            "host": host,
            "seq": of[0]["seq"],
            "n": len(of),
            "xs": len(there(of, "x")),
            "sum": sum(there(of, "x")) if there(of, "x") else None,
            "low": min(there(of, "f"), default=None),
            "high": max(there(of, "ts"), default=None),
        }
        for (window, host), of in groups.items()
    ]


@given(ROWS, st.integers(1, 30), st.integers(1, 12))
def test_they_are_the_sums_of_the_split(
    rows: list[dict[str, Any]], size: int, at_once: int
) -> None:
    rows = [{**row, "seq": number} for number, row in enumerate(rows)]
    batches = pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_aggregate, "ROWS_AT_ONCE", at_once)
        found = list(STAGE(iter(batches)))
    assert all(each.schema == STAGE.schema(SCHEMA) for each in found)
    listed = [row for each in found for row in each.to_pylist()]
    assert sorted(listed, key=lambda row: row["seq"]) == model(rows)


def test_without_a_key_there_is_one_for_each_window() -> None:
    stage = PartialAggregateStage((), (("n", Value("count", None)),), 10_000_000)
    batch = pa.RecordBatch.from_pylist([{"ts": EPOCH + timedelta(seconds=n)} for n in range(15)])
    batch = batch.cast(pa.schema([SCHEMA.field("ts")]))
    assert [row["n"] for each in stage(iter([batch])) for row in each.to_pylist()] == [10, 5]


def problem(options: str, sink: str = "noop", more: str = "") -> str:
    text = (
        "flow: f\nsources: [tail: {paths: [/a]}]\nfilters:\n"
        "  - parse: {format: json, schema: 'a STRING, n INT, l ARRAY<INT>'}\n"
        f"  - partial_aggregate: {options}\nsinks: [{sink}]\n{more}"
    )
    try:
        check_flow(text)
    except SpecError as error:
        return str(error)
    return ""


SEARCH = "elasticsearch: {hosts: ['http://s:9200'], index: a}"


@pytest.mark.parametrize(
    ("options", "sink", "more", "message"),
    [
        ("{by: [host, a], values: {c: count, n: 'sum(n)', t: 'max(ts)'}}", "noop", "", ""),
        ("{values: {c: count}}", SEARCH, "", ""),
        ("{values: {c: count}}", SEARCH, "delivery: exactly-once\n", "would keep both"),
        ("{values: {c: sum}}", "noop", "", "values.c: expected count, count(x)"),
        ("{values: {c: 'mean(n)'}}", "noop", "", "expected count, count(x)"),
        ("{values: {c: 'sum(a)'}}", "noop", "", "sum(a): expected one of fraction, integer"),
        ("{values: {c: 'sum(b)'}}", "noop", "", "there is no column b"),
        ("{values: {host: count}, by: [host]}", "noop", "", "there is a column host already"),
        ("{values: {c: count}, by: [l]}", "noop", "", "l is a array"),
        ("{values: {c: count}, by: [ts]}", "noop", "", "by its window"),
        ("{values: {c: count}}\n    when: 'n > 1'", "noop", "", "put a where before it"),
    ],
)
def test_problems_are_told(options: str, sink: str, more: str, message: str) -> None:
    found = problem(options, sink, more)
    assert message in found if message else found == ""
