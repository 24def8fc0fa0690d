"""JSON made column by column equals that of the standard library for the same rows."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.events import json_text
from flumeng.platform.errors import UserError

MAP = pa.map_(pa.string(), pa.string())
MICROS = pa.timestamp("us", "UTC")


def texts(*, nulls: bool = False, **columns: pa.Array) -> list[str]:
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    return [text.decode() for text in json_text.rows(batch, nulls=nulls).to_pylist()]


def one(values: pa.Array) -> list[Any]:
    return [json.loads(text).get("x") for text in texts(x=values)]


def test_row_is_written_as_a_json_object_byte_for_byte() -> None:
    found = texts(
        body=pa.array([b'a "quoted"\\ line\n', None, b""], pa.binary()),
        ts=pa.array([0, 1, None], MICROS),
        host=pa.array(["h1", None, "gr\u00fcn"]),
        attrs=pa.array([[("a", "b"), ("c", None)], [], None], MAP),
        seq=pa.array([1, 2, 3]),
        replayed=pa.array([True, False, False]),
    )
    assert found == [
        '{"body":"a \\"quoted\\"\\\\ line\\n","ts":"1970-01-01T00:00:00.000000Z","host":"h1",'
        '"attrs":{"a":"b","c":null},"seq":1,"replayed":true}',
        '{"ts":"1970-01-01T00:00:00.000001Z","attrs":{},"seq":2,"replayed":false}',
        '{"body":"","host":"gr\u00fcn","seq":3,"replayed":false}',
    ]


@pytest.mark.parametrize("code", range(0x21))
def test_every_control_character_is_escaped_also_alone_in_a_column(code: int) -> None:
    assert one(pa.array([chr(code), "~"])) == [chr(code), "~"]


def test_fields_missing_in_some_rows_are_left_out() -> None:
    found = texts(a=pa.array([1, None, None]), b=pa.array(["{,", "x", None]))
    assert found == ['{"a":1,"b":"{,"}', '{"b":"x"}', "{}"]
    assert texts(a=pa.nulls(1), b=pa.nulls(1)) == ["{}"]
    assert texts(nulls=True, a=pa.array([1, None]), b=pa.nulls(2)) == [
        '{"a":1,"b":null}',
        '{"a":null,"b":null}',
    ]


def test_empty_batches_and_rows_without_columns() -> None:
    assert texts(a=pa.array([], pa.int64()), body=pa.array([], pa.binary())) == []
    empty = pa.RecordBatch.from_pylist([{}, {}], pa.schema([]))
    assert json_text.rows(empty).to_pylist() == [b"{}"] * len(empty)


BAD = [
    b"caf\xe9 \n",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98",
    b"\xff\x00\xfe",
    b"\xe2\x82\n\x82",
    b"\xc0\xaf",
]


def test_bodies_that_are_not_utf8_are_exact_too() -> None:
    bodies = [*BAD, b"plain", None, "gr\u00fcn".encode(), b""]
    rows = [json.loads(text) for text in texts(body=pa.array(bodies, pa.binary()))]
    for body, row in zip(bodies, rows, strict=True):
        assert row.get("body") == (None if body is None else body.decode("utf-8", "replace"))
        exact = base64.b64decode(row["body_base64"]) if "body_base64" in row else None
        assert exact == (body if body in BAD else None)


def test_other_binary_columns_are_base64() -> None:
    assert one(pa.array([b"\xff", None], pa.binary())) == ["/w==", None]


def test_floats_stay_floats_and_values_unknown_to_json_are_left_out() -> None:
    values = [1.0, -0.0, 1e10, 123456789012.0, 1e20, 1e300, 5e-324, 0.1, -2.5]
    found = texts(x=pa.array([*values, float("nan"), float("inf"), None]))
    assert [json.loads(text).get("x") for text in found] == [*values, None, None, None]
    assert all(isinstance(json.loads(text)["x"], float) for text in found[: len(values)])
    assert one(pa.array([1.5, 3e9], pa.float32())) == [1.5, 3e9]
    assert one(pa.array([[1.0, float("nan")]])) == [[1.0, None]]


def test_numbers_keep_all_their_digits() -> None:
    digits = [Decimal("12345678901234567890.1234567"), Decimal("-0.0000001"), None]
    found = texts(x=pa.array(digits, pa.decimal128(38, 7)))
    assert [json.loads(t, parse_float=Decimal).get("x") for t in found] == digits
    for kind in (pa.int8(), pa.int64(), pa.uint64()):
        limits = [0, 127, None]
        assert one(pa.array(limits, kind)) == limits
    assert one(pa.array([2**64 - 1], pa.uint64())) == [2**64 - 1]


def test_timestamps_of_every_year_are_written() -> None:
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
    assert one(pa.array([first, last, None], MICROS)) == [
        "0001-01-01T00:00:00.000000Z",
        "9999-12-31T23:59:59.999999Z",
        None,
    ]
    far = pa.array([253_402_300_800_000_000, -(2**63), 2**63 - 1, 0], MICROS)
    assert one(far) == [
        "+10000-01-01T00:00:00.000000Z",
        "-290308-12-21T19:59:05.224193Z",
        "+294247-01-10T04:00:54.775807Z",
        "1970-01-01T00:00:00.000000Z",
    ]
    assert one(pa.array([0], pa.timestamp("ns"))) == ["1970-01-01T00:00:00.000000"]
    assert one(pa.array([0], pa.timestamp("s", "Europe/Berlin"))) == ["1970-01-01T00:00:00.000000Z"]


def test_dates_of_every_year_are_written() -> None:
    days = [date(1, 1, 1), date(9999, 12, 31), None]
    assert one(pa.array(days, pa.date32())) == ["0001-01-01", "9999-12-31", None]
    far = pa.array([2_932_897, -719_529], pa.date32())
    assert one(far) == ["+10000-01-01", "-0001-12-31"]


def test_nested_columns_are_written() -> None:
    inner = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    values = [{"a": 1, "b": ["x", None, '"']}, {"a": None, "b": []}, {"a": 2, "b": None}, None]
    assert one(pa.array(values, inner)) == [
        {"a": 1, "b": ["x", None, '"']},
        {"b": []},
        {"a": 2},
        None,
    ]
    lists = [[values[0], None], [], None]
    assert one(pa.array(lists, pa.list_(inner))) == [[values[0], None], [], None]
    nested = pa.map_(pa.int32(), pa.list_(pa.bool_()))
    assert one(pa.array([[(1, [True, None])], [(2, None)]], nested)) == [
        {"1": [True, None]},
        {"2": None},
    ]
    assert one(pa.array([["a", "b"]], pa.list_(pa.string(), 2))) == [["a", "b"]]
    assert one(pa.array(["a", None, "a"]).dictionary_encode()) == ["a", None, "a"]
    by_day = pa.map_(pa.date32(), pa.string())
    assert one(pa.array([[(date(2026, 1, 2), "x")]], by_day)) == [{"2026-01-02": "x"}]


def test_slices_write_their_own_rows() -> None:
    maps = pa.array([[("k", str(n))] if n % 3 else None for n in range(10)], MAP)
    lists = pa.array([[str(n)] * (n % 3) for n in range(10)])
    bodies = pa.array([b"%d\xff" % n if n % 2 else None for n in range(10)], pa.binary())
    for column in (maps, lists, bodies):
        name = "body" if column is bodies else "x"
        whole = texts(**{name: column})
        for start, end in ((3, 7), (0, 1), (9, 10), (5, 5)):
            assert texts(**{name: column.slice(start, end - start)}) == whole[start:end]


def test_names_are_escaped_and_unknown_types_are_named() -> None:
    assert texts(**{'a"\n': pa.array([1])}) == ['{"a\\"\\n":1}']
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(UserError, match="column x has the type sparse_union"):
        texts(x=union)


def drawn(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, min_size=4, max_size=4)


COLUMNS = st.fixed_dictionaries(
    {
        "body": drawn(st.binary(max_size=12)),
        "text": drawn(st.text(max_size=12)),
        "number": drawn(st.floats()),
        "entries": drawn(st.dictionaries(st.text(max_size=4), st.none() | st.text(max_size=4))),
        "words": drawn(st.lists(st.none() | st.text(max_size=4), max_size=3)),
    }
)


@given(columns=COLUMNS, nulls=st.booleans())
def test_any_row_is_read_back_by_the_standard_library(
    columns: dict[str, list[Any]], nulls: bool
) -> None:
    entries = [e if e is None else list(e.items()) for e in columns["entries"]]
    found = texts(
        nulls=nulls,
        body=pa.array(columns["body"], pa.binary()),
        text=pa.array(columns["text"], pa.string()),
        number=pa.array(columns["number"], pa.float64()),
        entries=pa.array(entries, MAP),
        words=pa.array(columns["words"], pa.list_(pa.string())),
    )
    for row, text in enumerate(found):
        assert "\n" not in text
        wanted = {name: values[row] for name, values in columns.items()}
        body, number = wanted["body"], wanted["number"]
        if body is not None:
            wanted["body"] = body.decode("utf-8", "replace")
            if wanted["body"].encode() != body:
                wanted["body_base64"] = base64.b64encode(body).decode()
        if number is not None and not math.isfinite(number):
            wanted["number"] = None
        read = json.loads(text)
        if nulls:
            wanted.setdefault("body_base64", None)
        else:
            wanted = {name: value for name, value in wanted.items() if value is not None}
        assert read == wanted
