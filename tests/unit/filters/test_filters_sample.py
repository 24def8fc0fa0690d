"""Samples of many events: the same ones each time, at the configured rate, none by chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.config import SpecError, check_flow
from flumeng.filters import key_counts
from flumeng.filters.key_counts import FirstOfKey
from flumeng.filters.sample import SampleStage, as_fractions, of_rows

HASHES = [16979304146520694294, 1571087896789861852]
BINARY = 7927195487774692348
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_hashes_are_stable_over_versions() -> None:
    """Flows in other versions, and batches that are repeated by them, choose alike."""
    columns = [pa.array(["web.n1.0", None]), pa.array([7, None], pa.int32())]
    assert of_rows(columns).tolist() == HASHES
    assert of_rows([c.slice(1) for c in columns]).tolist() == HASHES[1:]
    assert of_rows([pa.array([b"\xff"])]).tolist() == [BINARY]


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.5, 1.0])
def test_sample_has_its_rate_for_any_cut_of_batches(rate: float) -> None:
    count = 20_000
    table = pa.table({"journal": ["web.n1.0"] * count, "seq": range(count)})
    stage = SampleStage(("journal", "seq"), rate)
    kept = pa.Table.from_batches(stage(iter(table.to_batches())))
    assert abs(kept.num_rows - rate * count) <= 4 * np.sqrt(count * rate * (1 - rate))
    again = pa.Table.from_batches(stage(iter(table.to_batches(max_chunksize=777))))
    assert again.equals(kept)
    half = SampleStage(("journal", "seq"), rate / 2)(iter(kept.to_batches()))
    less = pa.Table.from_batches(half, kept.schema)
    assert set(less["seq"].to_pylist()) <= set(kept["seq"].to_pylist())


def test_events_of_a_key_are_kept_together() -> None:
    table = pa.table({"user": [f"u{n % 100}" for n in range(5000)], "n": range(5000)})
    (kept,) = SampleStage(("user",), 0.3)(iter(table.combine_chunks().to_batches()))
    assert set(Counter(kept["user"].to_pylist()).values()) == {50}
    assert as_fractions(np.array([0, 2**64 - 1], np.uint64)).max() < 1


def model(rows: Sequence[dict[str, Any]], by: str, events: int, window: int | None) -> list[int]:
    """The same with one dict, row by row."""
    seen: Counter[tuple[Any, ...]] = Counter()
    kept = []
    for row in rows:
        key = tuple(row[name] for name in by)
        if window is not None:
            key += (row["ts"] and (row["ts"] - EPOCH) // timedelta(seconds=window),)
        seen[key] += 1
        if None in key or seen[key] <= events:
            kept.append(row["n"])
    return kept


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "a": st.none() | st.sampled_from(["x", "y", ""]),
            "b": st.none() | st.integers(0, 2),
            "ts": st.none() | st.integers(-3, 5).map(lambda s: EPOCH + timedelta(seconds=s)),
        }
    ),
    max_size=30,
)
SCHEMA = pa.schema(
    [
        pa.field("a", pa.string()),
        pa.field("b", pa.int32()),
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("n", pa.int64()),
    ]
)


@given(
    ROWS,
    st.sampled_from(["a", "b", "ab", "ba"]),
    st.integers(1, 3),
    st.none() | st.integers(1, 3),
    st.integers(1, 30),
)
def test_sample_passes_the_first_events_of_each_key(
    rows: list[dict[str, Any]], by: str, events: int, window: int | None, size: int
) -> None:
    rows = [{**row, "n": number} for number, row in enumerate(rows)]
    batches = pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=size)
    stage = FirstOfKey(tuple(by), events, window)
    expected = model(rows, by, events, window)
    found = [n for batch in stage(iter(batches)) for n in batch["n"].to_pylist()]
    assert found == expected
    counts = key_counts.KeyCounts()
    before = [counts.before([batch["n"]]).tolist() for batch in batches]
    assert before == [[0] * len(batch) for batch in batches]


def test_counts_continue_over_several_batches() -> None:
    count = key_counts.ROWS_AT_ONCE
    batches = [pa.RecordBatch.from_pydict({"a": ["x", "y"] * (count // 2), "n": range(count)})] * 3
    found = list(FirstOfKey(("a",), count // 2 + 3, None)(iter(batches)))
    assert [batch.num_rows for batch in found] == [count, 6, 0]


def problem(step: str) -> str:
    text = f"flow: f\nsources: [tail: {{paths: [/a]}}]\nfilters:\n{step}\nsinks: [noop]\n"
    try:
        check_flow(text)
    except SpecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("  - sample: {rate: 0.1, by: [host, seq]}\n    when: \"host = 'a'\"", ""),
        ("  - sample: {rate: 1.1}", "expected a number from 0 to 1"),
        ("  - sample: {rate: 0.1, by: [attrs]}", "attrs is a map: expected one of"),
        ("  - select: [host]\n  - sample: {rate: 0.1}", "put select after sample"),
        ("  - select: [host]\n  - sample: {rate: 0.1, by: [host]}", ""),
        ("  - limit: {events: 5, by: [host]}", ""),
        ("  - limit: {events: 5}", 'missing "by"'),
        ("  - limit: {events: 5, by: [host]}\n    when: \"host = 'a'\"", "a null there are kept"),
        ("  - select: [host]\n  - limit: {events: 5, by: [host]}", "put select after limit"),
        ("  - dedupe: [host, body]", ""),
        ("  - dedupe: [hst]", "there is no column hst"),
        ("  - select: [host]\n  - dedupe: [host]", ""),
        (
            "  - select: [host]\n  - dedupe: {by: [host], within_seconds: 1 min}",
            "keep ts in select",
        ),
    ],
)
def test_invalid_options_are_reported(step: str, message: str) -> None:
    assert message in problem(step) if message else problem(step) == ""
