"""Records of separated values: the standard library's reading of each row, for all rows at once."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.filters import formats
from flumeng.filters.options.parse import Parse
from flumeng.platform.errors import UserError
from tests.testkit.formats import read_bodies

TEXTS = "a STRING, b STRING, c STRING"
MALFORMED, COUNT = "csv: malformed quotes", "csv: not 3 fields"


def record(body: bytes, **options: str) -> Any:
    (found,) = read_bodies(Parse("csv", schema=TEXTS, **options), body)  # type: ignore[arg-type]
    return list(found.values()) if isinstance(found, dict) else found


CASES: list[tuple[bytes, Any]] = [
    (b"1,2,3", ["1", "2", "3"]),
    (b"1,2,3\r\n", ["1", "2", "3"]),
    (b",,", ["", "", ""]),
    (b" 1 , 2,3 ", [" 1 ", " 2", "3 "]),
    (b'"a,b","c ""d""",""', ["a,b", 'c "d"', ""]),
    (b'"""","x\ny",z', ['"', "x\ny", "z"]),
    (b'a"b,c"d,e', ['a"b', 'c"d', "e"]),
    (b'1,2,"a"b', MALFORMED),
    (b'1,2,"a', MALFORMED),
    (b'1,"2,3', MALFORMED),
    (b'1,2,"', MALFORMED),
    (b"1,2", COUNT),
    (b"1,2,3,", COUNT),
    (b"", COUNT),
    (b"\xe9,\0,x", ["\ufffd", "\0", "x"]),
    (b'\xe9,"a"b",x', MALFORMED),
    (b'\xe9,a"b",x', ["\ufffd", 'a"b"', "x"]),
]


@pytest.mark.parametrize(("body", "expected"), CASES)
def test_a_record_is_read_or_has_a_reason(body: bytes, expected: Any) -> None:
    assert record(body) == expected


def test_each_row_is_read_as_if_it_were_alone() -> None:
    found = read_bodies(Parse("csv", schema=TEXTS), *(body for body, _ in CASES))
    assert [list(it.values()) if isinstance(it, dict) else it for it in found] == [
        expected for _, expected in CASES
    ]


def test_delimiter_and_quote_are_options() -> None:
    assert record(b"1\t'a\t''b'\t\"", delimiter="tab", quote="'") == ["1", "a\t'b", '"']
    assert record(b"1|2,|3", delimiter="|") == ["1", "2,", "3"]


def test_columns_have_their_types() -> None:
    schema = "n INT, x DOUBLE, ts TIMESTAMP, ok BOOLEAN, d DATE, s STRING"
    found = read_bodies(
        Parse("csv", schema=schema),
        b"7,2.5,2026-11-09T11:00:00+01:00,True,2026-11-09,",
        b',,,,,""',
        b"n,x,ts,ok,d,s",
        b"0x7,,,,,",
    )
    assert (found[0]["n"], found[0]["x"], found[0]["ok"], found[0]["s"]) == (7, 2.5, True, "")
    assert (str(found[0]["ts"]), str(found[0]["d"])) == ("2026-11-09 10:00:00+00:00", "2026-11-09")
    assert found[1:] == [
        {"n": None, "x": None, "ok": None, "d": None, "s": ""},
        {
            "n": None,
            "x": None,
            "ok": None,
            "d": None,
            "s": "s",
            "parse_error": "csv: n is no INT: n",
        },
        {
            "n": None,
            "x": None,
            "ok": None,
            "d": None,
            "s": "",
            "parse_error": "csv: n is no INT: 0x7",
        },
    ]


def test_large_fields_are_read_like_others() -> None:
    large = b"x" * 1_000_000
    found = read_bodies(
        Parse("csv", schema=TEXTS),
        large + b',"' + large + b'",y"',
        b"," * 1_000_000,
        b'"' * 999_999,
    )
    assert [len(found[0]["b"]), *found[1:]] == [1_000_000, COUNT, MALFORMED]


def test_invalid_schema_is_refused() -> None:
    with pytest.raises(UserError, match="not a list of columns"):
        formats.reader(Parse("csv", schema="a STRNG"))


def model(body: bytes) -> Any:
    text = body.decode().rstrip("\n").rstrip("\r") if body.endswith(b"\n") else body.decode()
    text = text.rstrip("\r") if text.endswith("\r") else text
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return MALFORMED
    fields = rows[0] if rows else [""]
    return dict(zip("abc", fields, strict=True)) if len(fields) == 3 else COUNT


lines = st.lists(st.text('",a b', max_size=12).map(str.encode), max_size=5)


@given(lines)
def test_columns_agree_with_the_standard_library_row_by_row(bodies: list[bytes]) -> None:
    assert read_bodies(Parse("csv", schema=TEXTS), *bodies) == [model(body) for body in bodies]


@given(st.lists(st.binary(max_size=30), max_size=4))
def test_any_bytes_are_read_or_have_a_reason(bodies: list[bytes]) -> None:
    assert len(read_bodies(Parse("csv", schema="a INT, b STRING"), *bodies)) == len(bodies)
