"""CEF and LEEF: their headers, their escapes, and lines of real devices."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.filters.options.parse import CEF, LEEF, Parse
from tests.testkit.formats import read_bodies

HEAD = rb"CEF:0|acme|fire\|wall|1.0|100|a \\ name|7|"
HEADER = ["0", "acme", "fire|wall", "1.0", "100", "a \\ name", "7"]


def cef(body: bytes) -> Any:
    (found,) = read_bodies(Parse("cef", into="all"), body)
    return found if isinstance(found, str) else (list(found.values())[: len(CEF)], found["all"])


@pytest.mark.parametrize(
    ("extension", "expected"),
    [
        (b"", []),
        (b"src=192.0.2.1 spt=80", [("src", "192.0.2.1"), ("spt", "80")]),
        (b"msg=two words  act=a | b \r\n", [("msg", "two words"), ("act", "a | b")]),
        (rb"a=1\=2 b=c:\\x\\n c=x\ny\r\nz", [("a", "1=2"), ("b", "c:\\x\\n"), ("c", "x\ny\r\nz")]),
        (rb"a=\n\n\n\\\n", [("a", "\n\n\n\\\n")]),
        (b"url=http://x/?q=1&r=2 b=c=d", [("url", "http://x/?q=1&r=2"), ("b", "c=d")]),
        (b"a= b=", [("a", ""), ("b", "")]),
        (b"junk a=1 a=2", [("a", "2")]),
        (b"ad.x[0]=1 a-b=2 _c=3", [("ad.x[0]", "1"), ("a-b", "2"), ("_c", "3")]),
        (b"a=caf\xe9 b=\0", [("a", "caf\ufffd"), ("b", "\0")]),
        ("a=é ü=ö b=1".encode(), [("a", "é ü=ö"), ("b", "1")]),
    ],
)
def test_cef_extension_is_read_as_names_and_values(extension: bytes, expected: Any) -> None:
    for before in (b"", b"<13>Nov  9 10:00:15 host ", b"<13>1 2026-11-09T10:00:15Z h - - - - "):
        assert cef(before + HEAD + extension) == (HEADER, expected)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "no CEF:"),
        (b"<13>Nov  9 10:00:15 host app: text", "no CEF:"),
        (b"CEF:0|a|b|c|d|e", "too few fields"),
        (rb"CEF:0|a|b|c|d|e\|f", "too few fields"),
        (b"CEF:", "too few fields"),
    ],
)
def test_line_that_is_not_cef_has_a_reason(body: bytes, reason: str) -> None:
    assert cef(body) == f"cef: {reason}"


def test_cef_line_may_have_a_header_only() -> None:
    assert cef(b"CEF:0|a|b|c|d|e|5") == (["0", "a", "b", "c", "d", "e", "5"], [])


def test_columns_of_the_extension_have_their_types() -> None:
    options = Parse("cef", schema="src STRING, spt INT", fields={"bytes": "`in` BIGINT"})
    found = read_bodies(options, HEAD + b"spt=80 in=7", HEAD + b"spt=x", HEAD)
    assert [found[0][name] for name in ("src", "spt", "bytes")] == [None, 80, 7]
    assert found[1]["parse_error"] == "cef: spt is no INT: x"
    assert (found[1]["name"], found[1]["spt"]) == ("a \\ name", None)
    assert found[2]["name"] == "a \\ name"


def leef(body: bytes) -> Any:
    (found,) = read_bodies(Parse("leef", into="all"), body)
    return found if isinstance(found, str) else (list(found.values())[: len(LEEF)], found["all"])


PAIRS = [("src", "192.0.2.1"), ("msg", "two words"), ("x", "y=z")]


@pytest.mark.parametrize(
    "body",
    [
        b"LEEF:1.0|v|p|1|id|src=192.0.2.1\tmsg=two words\tx=y=z",
        b"<13>Nov  9 10:00:15 h LEEF:1.0|v|p|1|id|src=192.0.2.1\t\tmsg=two words\tx=y=z\t\r\n",
        b"LEEF:2.0|v|p|1|id|^|src=192.0.2.1^msg=two words^x=y=z",
        b"LEEF:2.0|v|p|1|id|x5E|src=192.0.2.1^msg=two words^x=y=z",
        b"LEEF:2.0|v|p|1|id|0x5e|src=192.0.2.1^msg=two words^x=y=z",
        b"LEEF:2.0|v|p|1|id|0x09|src=192.0.2.1\tmsg=two words\tx=y=z",
        b"LEEF:2.0|v|p|1|id||src=192.0.2.1\tmsg=two words\tx=y=z",
        b"LEEF:2.0|v|p|1|id|src=192.0.2.1\tmsg=two words\tx=y=z",
        b"LEEF:2.0|v|p|1|id|;|src=192.0.2.1;msg=two words;=1;alone;x=y=z",
    ],
)
def test_leef_attributes_are_split_by_the_delimiter_of_the_header(body: bytes) -> None:
    version = body.partition(b"LEEF:")[2][:3].decode()
    assert leef(body) == ([version, "v", "p", "1", "id"], PAIRS)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "leef: no LEEF:"),
        (b"LEEF:1.0|v|p|1", "leef: too few fields"),
        (b"LEEF:1.0|v|p|1|id", (["1.0", "v", "p", "1", "id"], [])),
        (b"LEEF:1.0|v|p|1|id|^|a=1^b=2", (["1.0", "v", "p", "1", "id"], [("^|a", "1^b=2")])),
        (b"LEEF:2.0|v|p|1|id|xyz|a=1", (["2.0", "v", "p", "1", "id"], [("xyz|a", "1")])),
        (b"LEEF:1.0|\xe9|p|1|id|a=\xe9", (["1.0", "\ufffd", "p", "1", "id"], [("a", "\ufffd")])),
    ],
)
def test_edge_cases_of_leef(body: bytes, expected: Any) -> None:
    assert leef(body) == expected


def test_rows_with_different_delimiters_are_read_as_if_each_were_alone() -> None:
    bodies = [b"LEEF:2.0|v|p|1|i|%c|a=1%cb=%d" % (byte, byte, byte) for byte in b"^;,\t~#%"]
    found = read_bodies(Parse("leef", into="all"), *bodies, b"x", *bodies[::-1])
    expected = [[("a", "1"), ("b", str(byte))] for byte in b"^;,\t~#%"]
    assert [row["all"] for row in found if isinstance(row, dict)] == expected + expected[::-1]


def test_names_are_searched_once() -> None:
    """Each of these might begin at the first of them: names of half a terabyte together."""
    assert cef(HEAD + b"a=" + b"=" * 1_000_000) == (HEADER, [("a", "=" * 1_000_000)])
    assert cef(HEAD + b"b" * 1_000_000 + b"=" * 100_000)[1] == [("b" * 1_000_000, "=" * 99_999)]


@pytest.mark.slow
def test_large_bodies_are_read_like_others() -> None:
    many = b" ".join(b"k%d=v" % number for number in range(50_000))
    found = read_bodies(
        Parse("cef", into="all"), HEAD + many, HEAD + b"a=" + b"\\" * 1_000_000, b"|" * 1_000_000
    )
    assert [len(found[0]["all"]), len(found[1]["all"][0][1])] == [50_000, 500_000]
    assert found[2] == "cef: no CEF:"


def model(body: bytes) -> Any:
    """The columns of one CEF row, by regular expressions."""
    text = body.decode("utf-8", "replace")
    head = re.search(r"CEF:((?:(?:[^\\|]|\\.)*\|){6}(?:[^\\|]|\\.)*)(\|(.*))?", text, re.DOTALL)
    if head is None:
        return "cef: too few fields" if "CEF:" in text else "cef: no CEF:"
    names = list(re.finditer(r"(?:^| )([A-Za-z0-9_.\[\]-]+)=", head[3] or ""))
    found: dict[str, str] = {}
    for match, following in zip_longest(names, names[1:]):
        value = head[3][match.end() : following.start() if following else None]
        found.pop(match[1], None)
        found[match[1]] = re.sub(r"\\([\\=|nr])", _said, value.rstrip(" "))
    return list(found.items())


def _said(escape: re.Match[str]) -> str:
    return {"n": "\n", "r": "\r"}.get(escape[1], escape[1])


extensions = st.lists(
    st.sampled_from(["a", "b", "=", " ", "\\", "n", "r", "|", "é", "-"]), max_size=14
)


@given(
    st.lists(st.builds("".join, extensions), max_size=4),
    st.sampled_from(["CEF:0|a|b|c|d|e|5|", ""]),
)
def test_columns_agree_with_patterns_on_one_row(extensions: list[str], head: str) -> None:
    bodies = [(head + extension).encode() for extension in extensions]
    found = read_bodies(Parse("cef", into="all"), *bodies)
    assert [row if isinstance(row, str) else row["all"] for row in found] == [
        model(body) for body in bodies
    ]


@given(
    st.lists(st.binary(max_size=30), max_size=3),
    st.sampled_from([b"CEF:", b"LEEF:2.0|a|b|c|", b""]),
)
def test_any_bytes_are_read_or_have_a_reason(bodies: list[bytes], head: bytes) -> None:
    for form in ("cef", "leef"):
        options = Parse(form, into="all", schema="a INT")
        assert len(read_bodies(options, *(head + body for body in bodies))) == len(bodies)
