"""Pairs in lines: the shapes that programs write, quotes where none belong, and damage."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.filters import formats
from flumeng.filters.formats.key_value import PairsReader
from flumeng.filters.options.parse import Parse
from tests.testkit.formats import read_bodies


def pairs(form: Any, body: bytes, **options: str) -> Any:
    (found,) = read_bodies(Parse(form, into="all", **options), body)  # type: ignore[arg-type]
    return dict(found["all"]) if isinstance(found, dict) else found


CASES: list[tuple[bytes, Any, Any]] = [
    (b"a=1 b=2", {"a": "1", "b": "2"}, None),
    (b'  a=1\t\tb="x y" \r\n', {"a": "1", "b": "x y"}, None),
    (b'a= b="" c=1', {"a": "", "b": "", "c": "1"}, None),
    (b"a=b=c", {"a": "b=c"}, None),
    (b'a="b=c d=e" f=g', {"a": "b=c d=e", "f": "g"}, None),
    (b'a="x \\" y" b="\\\\"', {"a": 'x " y', "b": "\\"}, None),
    (b'a="c:\\dir\\new"', {"a": "c:\\dir\\new"}, {"a": "c:\\dir\\new"}),
    (b'a="1\\n\\t\\u00e9"', {"a": "1\\n\\t\\u00e9"}, {"a": "1\n\té"}),
    (b'"a b"=1 "c"="d"', {"a b": "1", "c": "d"}, None),
    (b"a=1 a=2", {"a": "2"}, None),
    (b"debug a=1", {"a": "1"}, {"debug": "true", "a": "1"}),
    (b'a=1 "two words"', {"a": "1"}, {"a": "1", "two words": "true"}),
    (b"=x a=1 =", {"a": "1"}, None),
    (b'd=5" b=2', {"d": '5"', "b": "2"}, None),
    (b'a="open b=2', {"a": '"open', "b": "2"}, None),
    (b'a="x"y b=2', {"a": '"x"y', "b": "2"}, None),
    (b'a="x z"=y', {"a": '"x', 'z"': "y"}, None),
    (b'a=\\"b c="d e"', {"a": '\\"b', "c": "d e"}, None),
    (b"a=caf\xe9", {"a": "caf\ufffd"}, None),
    (b"a=\0 b=1", {"a": "\0", "b": "1"}, None),
    ("ключ=\"знач ение\"".encode(), {"ключ": "знач ение"}, None),
    (
        b"type=USER_AUTH msg=audit(1.2:3): msg='op=PAM acct=\"root\" res=success'\x1dUID=\"me\"",
        {
            "type": "USER_AUTH", "msg": 'op=PAM acct="root" res=success',
            "op": "PAM", "acct": "root", "res": "success", "UID": "me",
        },
        {
            "type": "USER_AUTH", "msg": "'op=PAM", "acct": "root",
            "res": "success'\x1dUID=\"me\"",
        },
    ),
    (b"key=(null)\x1dARCH=x86_64", {"key": "(null)", "ARCH": "x86_64"},
     {"key": "(null)\x1dARCH=x86_64"}),
    (b"a='x y' b='' c='it's' d=it's", {"a": "x y", "b": "", "c": "'it's'", "d": "it's"},
     {"a": "'x", "y'": "true", "b": "''", "c": "'it's'", "d": "it's"}),
    (b"a='open b=2", {"a": "'open", "b": "2"}, {"a": "'open", "b": "2"}),
    (b"a=\"it='x y'\" b=1", {"a": "it='x y'", "b": "1"}, {"a": "it='x y'", "b": "1"}),
    (b"a='c:\\d \"q\"' b=1", {"a": 'c:\\d "q"', "b": "1"},
     {"a": "'c:\\d", "\"q\"'": "true", "b": "1"}),
    (b"hello world", "key_value: no pair", "logfmt: no pair"),
    (b"", "key_value: no pair", "logfmt: no pair"),
    (b'"', "key_value: no pair", "logfmt: no pair"),
    (
        b'level=info ts=2026-11-09T10:00:15Z msg="GET /a \\"q\\"" took=1.5ms',
        {"level": "info", "ts": "2026-11-09T10:00:15Z", "msg": 'GET /a "q"', "took": "1.5ms"},
        None,
    ),
    (
        b'date=2026-11-09 devname="FG 100" type="traffic" srcip=192.0.2.1 action="accept"',
        {
            "date": "2026-11-09", "devname": "FG 100", "type": "traffic", "srcip": "192.0.2.1",
            "action": "accept",
        },
        None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected", "logfmt"), CASES)
def test_pairs_are_read_from_single_and_mixed_lines(
    body: bytes, expected: Any, logfmt: Any
) -> None:
    assert pairs("key_value", body) == expected
    assert pairs("logfmt", body) == (logfmt or expected)


def test_each_row_is_read_as_if_it_were_alone() -> None:
    bodies = [body for body, _, _ in CASES]
    for form in ("key_value", "logfmt"):
        found = read_bodies(Parse(form, into="all"), *bodies)
        assert [dict(it["all"]) if isinstance(it, dict) else it for it in found] == [
            pairs(form, body) for body in bodies
        ]


@pytest.mark.parametrize(
    ("options", "body", "expected"),
    [
        ({"pair_separator": ","}, b'a=1 , b = "x, y",,c=z z', {"a": "1", "b": "x, y", "c": "z z"}),
        ({"pair_separator": ",;"}, b"a=1;b=2,c=3", {"a": "1", "b": "2", "c": "3"}),
        ({"pair_separator": "|", "value_separator": ":"}, b"a: 1|b:2:3", {"a": "1", "b": "2:3"}),
        ({"pair_separator": ","}, b"a= 'x, y' ,b=1\x1d2", {"a": "x, y", "b": "1\x1d2"}),
        ({"pair_separator": "tab"}, b"a=x y\tb=2", {"a": "x y", "b": "2"}),
        ({"value_separator": ":"}, b"a:1 b:c=d", {"a": "1", "b": "c=d"}),
        ({"pair_separator": ","}, b"a" + b" " * 50 + b"=" + b" " * 50 + b'"x"', {"a": "x"}),
    ],
)
def test_separators_are_options(options: dict[str, str], body: bytes, expected: Any) -> None:
    assert pairs("key_value", body, **options) == expected


def test_columns_have_their_types() -> None:
    wanted = Parse(
        "key_value", schema="a INT, b STRING, ts TIMESTAMP", fields={"c": "`x.y` DOUBLE"}
    )
    found = read_bodies(
        wanted,
        b"a=1 b=x x.y=2.5",
        b"b=",
        b"a= c=1",
        b"a=x",
        b'a="7" ts="2026-11-09 10:00:00"',
        b"-",
    )
    assert found[:4] == [
        {"a": 1, "b": "x", "c": 2.5},
        {"a": None, "b": "", "c": None},
        {"a": None, "b": None, "c": None},
        "key_value: a is no INT: x",
    ]
    assert (found[4]["a"], str(found[4]["ts"]), found[5]) == (
        7, "2026-11-09 10:00:00+00:00", "key_value: no pair",
    )  # fmt: skip


@pytest.mark.slow
def test_large_input_takes_time_proportional_to_its_bytes() -> None:
    many = b" ".join(b"k%d=v" % number for number in range(100_000))
    bodies = [many, b'"' * 1_000_000, b"\\" * 1_000_000, b" " * 1_000_000, b'a="' + b"\\" * 99_999]
    found = read_bodies(Parse("key_value", into="all"), *bodies, b"a=1")
    assert [len(found[0]["all"]), *found[1:4]] == [100_000, *["key_value: no pair"] * 3]
    assert found[5] == {"all": [("a", "1")]}
    separated = Parse("key_value", into="all", pair_separator=",", value_separator=":")
    read_bodies(separated, *bodies)
    spaces = b" " * 200_000
    stray = (b'a:"x"y' + spaces + b"z", b'x"y' + spaces + b"z:1", b'a:b"c,' + spaces)
    found = read_bodies(separated, *stray)
    assert found[0] == {"all": [("a", f'"x"y{spaces.decode()}z')]}
    assert found[2] == {"all": [("a", 'b"c')]}


def model(reader: PairsReader, body: bytes) -> Any:
    """The pairs of one row, by a scanner from left to right."""
    found: dict[str, str] = {}
    paired = False
    for name, value in reader.scanned(body):
        paired |= value is not None
        key = unescaped(reader.form, name)
        found.pop(key, None)
        found[key] = "true" if value is None else unescaped(reader.form, value)
    return {"all": list(found.items())} if paired else f"{reader.form}: no pair"


def unescaped(form: str, written: bytes) -> str:
    text = written.decode("utf-8", "replace")
    if form == "logfmt":
        try:
            return msgspec.json.decode(f'"{text}"'.encode(), type=str)
        except msgspec.DecodeError:
            pass
    return "".join(
        "\\" if piece == "\\\\" else piece.replace('\\"', '"') for piece in _pieces(text)
    )


def _pieces(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        width = 2 if text[at] == "\\" and at + 1 < len(text) else 1
        found.append(text[at : at + width])
        at += width
    return found


alphabet = st.sampled_from(
    [b"a", b"b", b"=", b" ", b'"', b"'", b"\x1d", b"\\", b",", b"\t", b"\xe9", b"1", b":"]
)
lines = st.lists(st.builds(b"".join, st.lists(alphabet, max_size=14)), max_size=5)


@given(lines, st.sampled_from([
    Parse("key_value", into="all"), Parse("logfmt", into="all"),
    Parse("key_value", into="all", pair_separator=",", value_separator=":"),
]))  # fmt: skip
def test_columns_agree_with_a_scanner_of_one_row(bodies: list[bytes], options: Parse) -> None:
    reader = formats.reader(options)
    assert isinstance(reader, PairsReader)
    assert read_bodies(options, *bodies) == [model(reader, body) for body in bodies]


@given(st.lists(st.binary(max_size=30), max_size=4))
@pytest.mark.slow
def test_any_bytes_are_read_or_have_a_reason(bodies: list[bytes]) -> None:
    for form in ("key_value", "logfmt"):
        options = Parse(form, into="all", schema="a INT")
        assert len(read_bodies(options, *bodies)) == len(bodies)


def test_a_slice_of_a_column_is_read_like_a_column() -> None:
    bodies = pa.array([b'x="', b"a=1", b'b="2"', b'"c'], pa.binary()).slice(1, 2)
    found = formats.reader(Parse("key_value", into="all")).read(bodies, pa.nulls(2))
    assert found.columns[0].to_pylist() == [[("a", "1")], [("b", "2")]]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (r"\x1b[31mred\x1b[0m\nsecond\tx", "\x1b[31mred\x1b[0m\nsecond\tx"),
        (r"\a\v\U0001f600\303\251", "\a\v\U0001f600\u00e9"),
        (r"\xe2\x82\xac \xff \ud83d\ude00", "\u20ac \ufffd \U0001f600"),
        (r"c:\dir\new", r"c:\dir\new"),
    ],
)
def test_go_escapes_are_decoded_and_others_kept(written: str, said: str) -> None:
    (found,) = read_bodies(Parse("logfmt", schema="m STRING"), f'm="{written}"'.encode())
    assert found == {"m": said}
