"""Columns and attributes set, renamed and dropped, each as a dict of Python would have it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.config import SpecError, check_flow
from flumeng.events import attributes
from flumeng.filters.drop import DropStage
from flumeng.filters.options import templates
from flumeng.filters.rename import RenameStage
from flumeng.filters.set import SetStage, _type

ATTRS = pa.map_(pa.string(), pa.string())
KEYS = st.sampled_from(["a", "b", "c"])
ROWS = st.lists(st.dictionaries(KEYS, st.text(max_size=3)), max_size=12)


def put(
    before: list[dict[str, str]], key: str, values: list[str | None], skip: int
) -> list[dict[str, str]]:
    column = pa.array([list(row.items()) for row in before], ATTRS).slice(skip)
    found = attributes.put(column, key, pa.array(values, pa.string()).slice(skip))
    found.validate(full=True)
    return [dict(row) for row in found.to_pylist()]


@given(ROWS, KEYS, st.data(), st.integers(0, 2))
def test_entries_are_put_and_removed_as_in_a_dict(
    before: list[dict[str, str]], key: str, data: st.DataObject, skip: int
) -> None:
    texts = st.none() | st.text(max_size=3)
    values = data.draw(st.lists(texts, min_size=len(before), max_size=len(before)))
    expected = [
        row if value is None else {**row, key: value}
        for row, value in zip(before, values, strict=True)
    ]
    assert put(before, key, values, skip) == expected[skip:]
    column = pa.array([list(row.items()) for row in before], ATTRS).slice(skip)
    keys = [key, "b"]
    left = [[(k, v) for k, v in row.items() if k not in keys] for row in before[skip:]]
    assert attributes.without(column, keys).to_pylist() == left


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def set_in(batch: pa.RecordBatch, **texts: str) -> list[dict[str, Any]]:
    parsed = tuple((name.replace("__", "."), templates.parse(t)) for name, t in texts.items())
    fields = list(batch.schema)
    fields += [
        pa.field(name, _type(batch.schema, parts))
        for name, parts in parsed
        if name not in batch.schema.names and "." not in name
    ]
    (found,) = SetStage(parsed, pa.schema(fields))(iter([batch]))
    found.validate(full=True)
    assert found.schema == pa.schema(fields)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


EVENTS = batch_of(
    body=pa.array([b"x\xff", b"y"]),
    ts=pa.array([datetime(2026, 11, 21, 12, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
    host=pa.array(["h1", None]),
    attrs=pa.array([[("a", "1")], []], ATTRS),
    n=pa.array([7, None], pa.int32()),
    ok=pa.array([True, False]),
)


def test_set_filter_writes_constants_copies_and_templates() -> None:
    one, two = set_in(
        EVENTS,
        place="{host}-{attrs.a}/{n}{{x}}",
        env="production",
        number="{n}",
        key="{attrs.a}",
        all="{body} {ts} {ok}",
        body="{host}: new",
        host="{attrs.a}",
    )
    assert (one["place"], two["place"]) == ("h1-1/7{x}", "-/{x}")
    assert (one["env"], one["number"], two["number"]) == ("production", 7, None)
    assert (one["key"], two["key"]) == ("1", None)
    assert one["all"] == "x\ufffd 2026-11-21T12:00:00.000000Z true"
    assert (one["body"], two["body"]) == (b"h1: new", b": new")
    assert (one["host"], two["host"]) == ("1", None)


def test_entries_of_attrs_are_set() -> None:
    one, two = set_in(EVENTS, attrs__env="test", attrs__b="{attrs.a}", attrs__a="{n}")
    assert dict(one["attrs"]) == {"env": "test", "b": "1", "a": "7"}
    assert dict(two["attrs"]) == {"env": "test"}


def test_columns_are_renamed_and_dropped() -> None:
    schema = pa.schema([field.with_name(f"{field.name}_2") for field in EVENTS.schema])
    (renamed,) = RenameStage(schema)(iter([EVENTS]))
    assert renamed.schema == schema and renamed["host_2"].equals(EVENTS["host"])
    (left,) = DropStage(("a",), ("ts", "attrs"))(iter([EVENTS]))
    assert left.schema.names == ["ts", "attrs"]
    assert left["attrs"].to_pylist() == [[], []]


def problem(step: str) -> str:
    text = (
        "flow: f\nsources: [tail: {paths: [/a]}]\nfilters:\n"
        "  - parse: {format: json, schema: 'a STRING, n INT, l ARRAY<STRING>'}\n"
        f"  - {step}\nsinks: [noop]\n"
    )
    try:
        check_flow(text)
    except SpecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("set: {b: '{l}', host: '{a}', body: x, attrs.x: '{n}', ts: '{ts}'}", ""),
        ("set: {b: '{c}'}", "there is no column c"),
        ("set: {b: '{a'}", "set.b: expected columns in braces"),
        ("set: {b: 'x {l}'}", "l is a array, which cannot be in a text"),
        ("set: {n: 'x'}", "n is a integer, and its new value a string"),
        ("set: {attrs: 'x'}", "an entry of attrs"),
        ("set: {seq: 'x'}", "seq is the name of a column that flumeng sets: it cannot be changed"),
        ("set: {__seq: 'x'}", "not beginning with __"),
        ("set: {A: 'x'}", "there is a column A already"),
        ("set: {columns: {b: x}}", "expected a value"),
        ("set: x", "expected names with values"),
        ("rename: {a: n, n: a}", ""),
        ("rename: {a: host}", "there is a column host already"),
        ("rename: {b: c}", "there is no column b"),
        ("rename: {a: 'b c'}", "rename.a: expected the name of a column"),
        ("rename: {a: b}\n    when: \"n > 1\"", "rename takes no condition"),
        ("drop: [a, attrs.path, body]", ""),
        ("drop: [b]", "drop[0]: there is no column b"),
        ("drop: [attrs, attrs.x]", "drop[1]: attrs.x needs the column attrs"),
        ("drop: [body, ts, host, attrs, journal, seq, replayed, a, n, l]", "remove all columns"),
        ("drop: [a]\n    when: \"n > 1\"", "drop takes no condition"),
    ],
)  # fmt: skip
def test_invalid_options_are_reported(step: str, message: str) -> None:
    assert message in problem(step) if message else problem(step) == ""
