"""A row for each entry of an array, and no event lost."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.config import SpecError, check_flow
from flumeng.filters.explode import BYTES_AT_ONCE, ExplodeStage

ATTRS = pa.map_(pa.string(), pa.string())
ERROR = ("parse_error", "explode: items is no JSON array")


def exploded(items: pa.Array) -> list[dict[str, Any]]:
    count = len(items)
    batch = pa.RecordBatch.from_pydict(
        {
            "seq": pa.array(range(count), pa.int64()),
            "items": items,
            "attrs": pa.array([[]] * count, ATTRS),
        }
    )
    entry = items.type.value_type if pa.types.is_list(items.type) else pa.string()
    fields = [*batch.schema.remove(1), pa.field("item", entry)]
    found = list(ExplodeStage("items", pa.schema(fields))(iter([batch])))
    for each in found:
        each.validate(full=True)
    return [row for each in found for row in each.to_pylist()]


@given(
    st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=4), max_size=9),
    st.integers(0, 2),
)
def test_an_array_is_a_row_for_each_entry(rows: list[list[int | None] | None], skip: int) -> None:
    column = pa.array(rows, pa.list_(pa.int64())).slice(skip)
    found = [(row["seq"], row["item"]) for row in exploded(column)]
    assert found == [(n, item) for n, row in enumerate(rows[skip:]) for item in row or [None]]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)


def as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


@given(st.lists(st.none() | VALUES, max_size=6), st.sampled_from(["", " ", "x"]), st.booleans())
def test_json_is_a_row_for_each_entry(rows: list[Any], behind: str, binary: bool) -> None:
    texts = [None if row is None else f"{json.dumps(row)}{behind}" for row in rows]
    column = pa.array(texts, pa.string())
    found = exploded(column.cast(pa.binary()) if binary else column)
    expected: list[tuple[int, str | None, bool]] = []
    for number, row in enumerate(rows):
        good = behind != "x" and isinstance(row, list)
        entries = [as_text(entry) for entry in row] if good and row else [None]
        wrong = not good and row is not None
        expected += [(number, entry, wrong) for entry in entries]
    assert [(row["seq"], row["item"], row["attrs"] == [ERROR]) for row in found] == expected


@pytest.mark.slow
def test_shared_columns_are_not_multiplied_in_one_batch() -> None:
    bodies = [b"x" * (BYTES_AT_ONCE // 2), b"", b"y" * BYTES_AT_ONCE]
    batch = pa.RecordBatch.from_pydict({"body": pa.array(bodies), "n": [[1, 2, 3], [], [4, 5]]})
    schema = pa.schema([pa.field("body", pa.binary()), pa.field("n", pa.int64())])
    found = list(ExplodeStage("n", schema)(iter([batch])))
    assert [each["n"].to_pylist() for each in found] == [[1], [2], [3, None], [4], [5]]
    assert [each.num_rows for each in ExplodeStage("n", schema)(iter([batch.slice(0, 0)]))] == [0]


def problem(step: str, sink: str = "noop") -> str:
    text = (
        "flow: f\nsources: [tail: {paths: [/a]}]\nfilters:\n"
        "  - parse: {format: json, schema: 'a STRING, n INT, l ARRAY<INT>'}\n"
        f"  - {step}\nsinks: [{sink}]\n"
    )
    try:
        check_flow(text)
    except SpecError as error:
        return str(error)
    return ""


SEARCH = "elasticsearch: {hosts: ['http://s:9200'], index: a"


@pytest.mark.parametrize(
    ("step", "sink", "message"),
    [
        ("explode: l\n  - where: 'l > 1'", "noop", ""),
        ("explode: {column: a, to: b}\n  - where: \"b = 'x'\"", "noop", ""),
        ("explode: body\n  - parse: {format: json, fields: {b: b}}", "noop", ""),
        ("explode: {column: body, to: b}\n  - where: \"b = 'x'\"", "noop", ""),
        ("explode: l\n    when: 'n > 1'", "noop", "explode takes no condition"),
        ("explode: n", "noop", "n is a integer, not an array or JSON"),
        ("explode: m", "noop", "there is no column m"),
        ("explode: journal", "noop", "journal is the name of a column that flumeng sets"),
        ("explode: {column: l, to: A}", "noop", "there is a column A already"),
        ("select: [a]\n  - explode: a", "noop", "JSON needs the column attrs"),
        ("explode: l", f"{SEARCH}}}", "several rows of an event, and elasticsearch"),
        ("explode: l", f"{SEARCH}, id: none}}", ""),
    ],
)
def test_invalid_options_are_reported(step: str, sink: str, message: str) -> None:
    assert message in problem(step, sink) if message else problem(step, sink) == ""
