"""JSON bodies as columns: the values of each type, misfits, and damage."""

from __future__ import annotations

import json
import pickle
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flumeng.filters import formats
from flumeng.filters.options.parse import Parse
from flumeng.platform.errors import UserError
from tests.testkit.formats import read_bodies

TEXTS = Path(__file__).parent / "corpora" / "json" / "texts.yaml"
MALFORMED, OTHER = "json: malformed", "json: not of the schema"
MISFIT = "a value is not of its type"


def with_schema(schema: str, *bodies: bytes) -> list[Any]:
    return read_bodies(Parse("json", schema=schema), *bodies)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("STRING", '"a"', "a"),
        ("STRING", '"a\\n\\u00e9\\ud83d\\ude00\\"\\\\ud83d"', 'a\né😀"\\ud83d'),
        ("STRING", '"\\ud83d \\ude00"', "\ufffd \ufffd"),
        ("STRING", "1.50", "1.50"),
        ("STRING", '{"a": [1, "x"]}', '{"a": [1, "x"]}'),
        ("STRING", "true", "true"),
        ("STRING", "null", None),
        ("INT", "-7", -7),
        ("INT", "1.0", OTHER),
        ("INT", "1e3", OTHER),
        ("INT", '"7"', OTHER),
        ("INT", "2147483648", OTHER),
        ("TINYINT", "127", 127),
        ("BIGINT", "-9223372036854775808", -(2**63)),
        ("BIGINT", "9223372036854775808", OTHER),
        ("DOUBLE", "7", 7.0),
        ("DOUBLE", "-1.5e3", -1500.0),
        ("DOUBLE", "1e999", float("inf")),
        ("DOUBLE", '"-Infinity"', float("-inf")),
        ("DOUBLE", '"1"', OTHER),
        ("FLOAT", "1e39", float("inf")),
        ("BOOLEAN", "false", False),
        ("BOOLEAN", "0", OTHER),
        ("BOOLEAN", '"true"', OTHER),
        ("DECIMAL(5,2)", "1.005", Decimal("1.01")),
        ("DECIMAL(5,2)", "1000", OTHER),
        ("DATE", '"2026-02-28"', date(2026, 2, 28)),
        ("DATE", '"2026-02-30"', OTHER),
        ("TIMESTAMP", '"2026-02-28T01:02:03.5+01:00"', datetime(2026, 2, 28, 0, 2, 3, 500000, UTC)),
        ("TIMESTAMP", '"2026-02-28 01:02:03"', datetime(2026, 2, 28, 1, 2, 3, tzinfo=UTC)),
        ("TIMESTAMP", "1772240523", datetime(2026, 2, 28, 1, 2, 3, tzinfo=UTC)),
        ("TIMESTAMP", "1772240523.5", datetime(2026, 2, 28, 1, 2, 3, 500000, UTC)),
        ("TIMESTAMP", "1772240523.4320688", datetime(2026, 2, 28, 1, 2, 3, 432068, UTC)),
        ("TIMESTAMP", "1.772240523e9", datetime(2026, 2, 28, 1, 2, 3, tzinfo=UTC)),
        ("TIMESTAMP", "-0.5", datetime(1969, 12, 31, 23, 59, 59, 500000, UTC)),
        ("TIMESTAMP", "1e30", OTHER),
        ("TIMESTAMP", '"yesterday"', OTHER),
        ("TIMESTAMP", "99999999999999", OTHER),
        ("BINARY", '"AAE="', b"\0\1"),
        ("BINARY", '"!"', OTHER),
        ("ARRAY<INT>", "[1, null]", [1, None]),
        ("ARRAY<INT>", '[1, "2"]', OTHER),
        ("ARRAY<INT>", "{}", OTHER),
        ("ARRAY<ARRAY<STRING>>", '[["a"], [], null]', [["a"], [], None]),
        ("MAP<STRING, INT>", '{"a": 1, "b": null, "a": 2}', [("a", 2), ("b", None)]),
        ("STRUCT<x: INT, y: STRING>", '{"y": "b", "z": 1}', {"x": None, "y": "b"}),
        ("STRUCT<x: INT, y: STRING>", '{"x": "b"}', OTHER),
        ("STRUCT<x: ARRAY<STRUCT<y: INT>>>", '{"x": [{"y": 1}]}', {"x": [{"y": 1}]}),
    ],
)
def test_value_has_its_type_or_the_reason_names_it(kind: str, text: str, value: Any) -> None:
    body = f'{{"before": [{{}}], "v": {text}, "w": 1}}'.encode()
    (found,) = with_schema(f"v {kind}, w INT", body)
    assert found["w"] == 1
    if value is OTHER:
        named = re.escape(kind.partition("<")[0]).replace(",", ", ")
        assert re.fullmatch(f"json: v is no {named}: {re.escape(text)}", found["parse_error"])
    else:
        assert found == {"v": value, "w": 1}


@pytest.mark.parametrize(
    ("number", "unit"),
    [
        ("1795169472123", "milliseconds (unix_ms)"),
        ("1795169472123456", "microseconds (unix_us)"),
        ("1795169472123456789", "nanoseconds (unix_ns)"),
    ],
)
def test_timestamp_too_large_for_seconds_is_refused_with_its_unit(number: str, unit: str) -> None:
    (found,) = with_schema("t TIMESTAMP, a STRING", f'{{"t": {number}, "a": "x"}}'.encode())
    assert found == {
        "t": None,
        "a": "x",
        "parse_error": f"json: t is no TIMESTAMP: {number} (seconds are expected: take {unit} as a "
        "BIGINT column, then the filter time)",
    }


def test_names_within_a_type_of_fields_keep_their_case() -> None:
    kind = "array<struct<sku: STRING, Quantity: int>>"
    body = b'{"o": {"items": [{"sku": "a", "Quantity": 2}]}}'
    (found,) = read_bodies(Parse("json", fields={"items": f"o.items {kind}"}), body)
    assert found == {"items": [{"sku": "a", "Quantity": 2}]}


def test_a_long_value_is_cut_in_the_reason() -> None:
    (found,) = with_schema("v INT, w INT", b'{"v": "' + b"x" * 1000 + b'", "w": 1}')
    assert found["parse_error"] == f'json: v is no INT: "{"x" * 99}...'


def test_missing_fields_are_null_and_others_ignored() -> None:
    bodies = (b"{}", b'{"c": 1, "a": 2}', b'{"A": 1, "a": 3, "a": 4}')
    assert with_schema("a INT, b STRING", *bodies) == [
        {"a": None, "b": None}, {"a": 2, "b": None}, {"a": 4, "b": None},
    ]  # fmt: skip


def test_json_body_must_be_one_object() -> None:
    bodies = (
        b' {"a": "x"}\r\n', b"{}}", b'{"a": "x"} y', b"{'a': 'x'}", b'["a"]', b"1", b"",
        b"\0", b'{"a": "\0"}', b'{"a": "caf\xe9"}', b'\xef\xbb\xbf{"a": "x"}',
    )  # fmt: skip
    assert with_schema("a STRING", *bodies) == [
        {"a": "x"}, *[MALFORMED] * 3, *[OTHER] * 2, *[MALFORMED] * 3, {"a": "caf\ufffd"}, MALFORMED,
    ]  # fmt: skip


def test_bodies_that_are_objects_only_together_are_malformed() -> None:
    bodies = (b'{"a":[{}', b"{}]}", b"{},{}", b"{}{}", b'{"a":"}', b'{"}')
    assert with_schema("a STRING", *bodies, b'{"a":1}') == [*[MALFORMED] * 6, {"a": "1"}]


def test_a_body_of_two_objects_does_not_shift_those_behind_it() -> None:
    bodies = (b'{"a":1}{"a":2}', b'{"a":3}', b'{"a":4}\n{"a":5}', b'{"a":6}')
    assert with_schema("a STRING", *bodies) == [MALFORMED, {"a": "3"}, MALFORMED, {"a": "6"}]


def test_deep_nesting_does_not_overflow_the_stack() -> None:
    bodies = [b'{"a":' * depth + b"1" + b"}" * depth for depth in (1, 300, 50_000)]
    found = with_schema("a STRING", *bodies, *(b"[" * depth for depth in range(900, 1000)))
    assert [row == MALFORMED for row in found[:3]] == [False, False, True]
    for depth in range(100, 1100, 7):
        (row,) = with_schema("a STRUCT<a: STRING>", b'{"a":' * depth + b"1" + b"}" * depth)
        assert row == MALFORMED or set(row) == {"a"}


def test_fields_ts_and_host_set_those_of_the_event() -> None:
    reader = formats.reader(Parse("json", schema="ts TIMESTAMP, host STRING, a INT"))
    bodies = [b'{"ts":"2026-02-28T01:02:03Z","host":"h","a":1}', b'{"ts":"x","host":"h"}', b"{}"]
    found = reader.read(pa.array(bodies, pa.binary()), pa.nulls(3))
    assert reader.columns.names == ["a"]
    assert found.host is not None
    assert found.ts is not None
    assert found.host.to_pylist() == ["h", "h", None]
    assert found.ts.to_pylist() == [datetime(2026, 2, 28, 1, 2, 3, tzinfo=UTC), None, None]


NESTED = b'{"user":{"name":"ann","a.b":7},"took":{"ms":12},"tags":["x"],"n":null,"t":true}'


def test_values_at_paths_become_columns() -> None:
    wanted = {
        "name": "user.name", "ms": "took.ms BIGINT", "dotted": "user.`a.b` int", "tags": "tags",
        "first": "tags ARRAY<STRING>", "none": "took.ms.more", "n": "n",
    }  # fmt: skip
    found = read_bodies(
        Parse("json", fields=wanted), NESTED, b"{}", b'{"took":{"ms":"x"}}', b"[]", b"x"
    )
    assert found == [
        {
            "name": "ann", "ms": 12, "dotted": 7, "tags": '["x"]', "first": ["x"], "none": None,
            "n": None,
        },
        dict.fromkeys(wanted),
        'json: ms is no BIGINT: "x"',
        OTHER,
        MALFORMED,
    ]  # fmt: skip


def test_whole_document_goes_into_a_map_of_texts() -> None:
    found = read_bodies(
        Parse("json", into="all"), NESTED, b'{"a":1,"b":"\\u00e9","a":"2"}', b"{}", b"1"
    )
    assert found == [
        {
            "all": [
                ("user", '{"name":"ann","a.b":7}'), ("took", '{"ms":12}'), ("tags", '["x"]'),
                ("n", None), ("t", "true"),
            ]
        },
        {"all": [("a", "2"), ("b", "é")]},
        {"all": []},
        OTHER,
    ]  # fmt: skip


def test_fields_and_a_map_go_together() -> None:
    (found,) = read_bodies(
        Parse("json", fields={"ms": "took.ms INT"}, into="all"), b'{"took":{"ms":1}}'
    )
    assert found == {"ms": 1, "all": [("took", '{"ms":1}')]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Parse("json", schema="user STRNG,"), "not a list of columns"),
        (Parse("json", schema="INT"), "not a list of columns"),
        (Parse("json", schema="a INT, A INT"), "not a list of columns"),
        (Parse("json", schema="ts STRING"), "the event column ts must"),
        (Parse("json", schema="a ARRAY<MAP<INT, INT>>"), "needs keys of the type STRING"),
        (Parse("json", fields={"host": "a INT"}), "the event column host must"),
    ],
)
def test_invalid_options_are_refused(options: Parse, message: str) -> None:
    with pytest.raises(UserError, match=message):
        formats.reader(options)


def test_texts_of_the_corpus_are_read_as_judged_there() -> None:
    corpus = yaml.load(TEXTS.read_text(), yaml.CSafeLoader)
    groups = [(corpus["valid"], True), (corpus["invalid"], False)]
    groups += [(group["texts"], group["taken"]) for group in corpus["free"].values()]
    for texts, taken in groups:
        bodies = [bytes.fromhex(it["hex"]) if isinstance(it, dict) else it.encode() for it in texts]
        for options in (Parse("json", schema="a STRING"), Parse("json", into="all")):
            found = read_bodies(options, *bodies)
            assert [row != MALFORMED for row in found] == [taken] * len(bodies)


def test_body_of_a_megabyte_is_read_like_others() -> None:
    large = b'{"a":"' + b"x\\n" * 350_000 + b'"}'
    found = with_schema("a STRING", b'{"a":"1"}', large, large[:-1])
    assert [len(found[1]["a"]), found[0], found[2]] == [700_000, {"a": "1"}, MALFORMED]


def test_reader_can_be_pickled() -> None:
    reader = formats.reader(Parse("json", fields={"a": "b INT"}, into="all"))
    assert pickle.loads(pickle.dumps(reader)) == reader


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
documents = st.dictionaries(
    st.sampled_from(["a", "b", "c"]) | st.text(max_size=2), values, max_size=4
)
written = st.builds(
    lambda it, plain: json.dumps(it, ensure_ascii=plain).encode("utf-8", "replace"),
    documents,
    st.booleans(),
)
bodies = written | st.binary(max_size=20)


def model(body: bytes) -> Any:
    """The expected value of ``a INT`` for one body."""
    try:
        found = json.loads(body.decode("utf-8", "replace"), parse_float=repr, parse_constant=int)
    except (ValueError, RecursionError):
        return MALFORMED
    if not isinstance(found, dict):
        return OTHER
    number = found.get("a")
    fits = type(number) is int and -(2**31) <= number < 2**31
    return {"a": number} if fits or number is None else MISFIT


@given(st.lists(bodies, max_size=6))
def test_columns_agree_with_the_standard_library_row_by_row(bodies: list[bytes]) -> None:
    for found, body in zip(with_schema("a INT", *bodies), bodies, strict=True):
        wanted = model(body)
        misfit = isinstance(found, str) and found.startswith("json: a is no INT: ")
        assert wanted == (MISFIT if misfit else found)


@given(st.lists(documents, max_size=4))
def test_map_has_the_values_of_the_document(documents: list[dict[str, Any]]) -> None:
    found = read_bodies(
        Parse("json", into="all"), *(json.dumps(document).encode() for document in documents)
    )
    for row, document in zip(found, documents, strict=True):
        said = dict(row["all"])
        assert list(said) == [key.encode("utf-8", "replace").decode() for key in document]
        for key, value in document.items():
            if isinstance(value, str):
                assert said[key] == value
            else:
                assert json.loads(said[key] or "null") == value
