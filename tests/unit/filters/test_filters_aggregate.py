"""Windows of event time: for any cuts, put together they are those of all events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.config import SpecError, check_flow
from flumeng.filters.aggregate import AggregateStage
from flumeng.filters.options.aggregate import Value, value

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("host", pa.string()),
        pa.field("x", pa.int32()),
        pa.field("f", pa.float64()),
        pa.field("g", pa.float64()),
        pa.field("ok", pa.bool_()),
        pa.field("seq", pa.int64()),
    ]
)
VALUES = {
    "n": "count",
    "xs": "count(x)",
    "oks": "count_if(ok)",
    "sum": "sum(x)",
    "of_g": "histogram(g)",
    "low": "min(f)",
    "high": "max(ts)",
    "of_x": "histogram(x)",
}
STAGE = AggregateStage(
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
            "g": st.none() | st.floats(allow_subnormal=False),
            "ok": st.none() | st.booleans(),
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
            "oks": there(of, "ok").count(True),
            "sum": sum(there(of, "x")) if there(of, "x") else None,
            "low": min(there(of, "f"), default=None),
            "high": max(there(of, "ts"), default=None),
            "of_x": sorted(there(of, "x")),
            "of_g": sorted(filter(math.isfinite, there(of, "g"))),
        }
        for (window, host), of in groups.items()
    ]


@given(ROWS, st.integers(1, 30), st.integers(1, 12))
def test_aggregates_of_splits_add_up_to_those_of_all_events(
    rows: list[dict[str, Any]], size: int, at_once: int
) -> None:
    rows = [{**row, "seq": number} for number, row in enumerate(rows)]
    batches = pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=size)
    found = list(replace(STAGE, rows_at_once=at_once)(iter(batches)))
    assert all(each.schema == STAGE.schema(SCHEMA) for each in found)
    listed = [row for each in found for row in each.to_pylist()]
    wanted = model(rows)
    for row, exact in zip(sorted(listed, key=lambda row: row["seq"]), wanted, strict=True):
        for name in ("of_x", "of_g"):
            numbers, found_in = exact.pop(name), row.pop(name)
            assert (found_in is None) == (not numbers)
            assert within_one_percent(numbers, found_in or {"values": [], "counts": []})
        assert row == exact


def within_one_percent(numbers: Sequence[float], found: dict[str, list[Any]]) -> bool:
    """The histogram's value for each of the sorted ``numbers``; so for each quantile too."""
    pairs = list(zip(found["values"], found["counts"], strict=True))
    told = [value for value, count in pairs for _ in range(count)]
    assert found["values"] == sorted(set(found["values"]))
    return all(
        abs(value - number) <= 0.01000001 * abs(number)
        for value, number in zip(told, numbers, strict=True)
    )


def test_merged_histograms_give_quantiles_within_one_percent() -> None:
    generator = np.random.default_rng(7)
    took = generator.lognormal(3, 2, 20_000)
    table = pa.table({"ts": pa.array([EPOCH] * len(took), pa.timestamp("us", "UTC")), "took": took})
    stage = AggregateStage((), (("took", value("histogram(took)")),), 60_000_000)
    counts: Counter[float] = Counter()
    for batch in table.to_batches(max_chunksize=3000):
        (rows,) = stage(iter([batch]))
        (row,) = rows["took"].to_pylist()
        counts.update(dict(zip(row["values"], row["counts"], strict=True)))
    values, weights = np.array(sorted(counts.items())).T
    assert len(values) < 1000
    for part in (0.01, 0.5, 0.9, 0.99, 0.999):
        exact = np.quantile(took, part, method="inverted_cdf")
        found = values[np.searchsorted(np.cumsum(weights), part * len(took))]
        assert abs(found - exact) <= 0.01 * exact


def test_aggregate_without_a_key_has_one_row_for_each_window() -> None:
    stage = AggregateStage((), (("n", Value("count", None)),), 10_000_000)
    batch = pa.RecordBatch.from_pylist([{"ts": EPOCH + timedelta(seconds=n)} for n in range(15)])
    batch = batch.cast(pa.schema([SCHEMA.field("ts")]))
    assert [row["n"] for each in stage(iter([batch])) for row in each.to_pylist()] == [10, 5]


def problem(options: str, sink: str = "noop", more: str = "") -> str:
    text = (
        "flow: f\nsources: [tail: {paths: [/a]}]\nfilters:\n"
        "  - parse: {format: json, schema: 'a STRING, n INT, l ARRAY<INT>'}\n"
        f"  - aggregate: {options}\nsinks: [{sink}]\n{more}"
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
        ("{values: {c: 'mean(n)'}}", "noop", "", "use sum(x) and count(x)"),
        ("{values: {c: 'quantile(n, 0.9)'}}", "noop", "", "use histogram(x)"),
        ("{values: {c: 'count_if(n > 1)', h: histogram(n), d: 'count( * )'}}", "noop", "", ""),
        ("{values: {c: 'count_if(n)'}}", "noop", "", "count_if(n): expected a condition"),
        ("{values: {c: 'count_if(m > 1)'}}", "noop", "", 'there is no column "m"'),
        ("{values: {c: histogram(a)}}", "noop", "", "histogram(a): expected a fraction"),
        ("{values: {c: 'sum(a)'}}", "noop", "", "sum(a): expected a fraction, integer"),
        ("{values: {c: 'sum(b)'}}", "noop", "", "there is no column b"),
        ("{values: {host: count}, by: [host]}", "noop", "", "there is a column host already"),
        ("{values: {c: count}, by: [l]}", "noop", "", "l is a array"),
        ("{values: {c: count}, by: [ts]}", "noop", "", "as the start of the window"),
        ("{values: {c: count}}\n    when: 'n > 1'", "noop", "", "put a where before it"),
    ],
)
def test_invalid_options_are_reported(options: str, sink: str, more: str, message: str) -> None:
    found = problem(options, sink, more)
    assert message in found if message else found == ""
