"""Grok patterns: the meaning of the names of the library, and the fields of a match."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.filters import formats
from flumeng.filters.options import grok
from flumeng.filters.options.parse import Parse
from flumeng.platform.errors import UserError
from tests.testkit.formats import read_bodies

NO_MATCH = "grok: no match"


def read(pattern: str | tuple[str, ...], *bodies: str | bytes, **patterns: str) -> list[Any]:
    options = Parse("grok", pattern=pattern, patterns=patterns or None)
    return read_bodies(options, *(it.encode() if isinstance(it, str) else it for it in bodies))


@pytest.mark.parametrize(
    ("name", "texts", "others"),
    [
        ("USERNAME", ["ann.lee-7_x"], ["a b", ""]),
        ("EMAILADDRESS", ["a.b+c@mail.example.com"], ["a@", "@b"]),
        ("INT", ["-12", "+0"], ["1.5", "x"]),
        ("NUMBER", ["12", "-1.5", ".5", "+3.25"], ["1.", "x"]),
        ("BASE16NUM", ["0xFF", "ff"], ["0x", "g"]),
        ("POSINT", ["10"], ["0", "-1"]),
        ("WORD", ["a_1"], ["a-b", ""]),
        ("QUOTEDSTRING", ['"a \\" b"', "'x'", '""'], ['"a', "a"]),
        ("UUID", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567-e89b"]),
        ("MAC", ["00:1b:44:11:3a:b7", "00-1B-44-11-3A-B7", "001b.4411.3ab7"], ["00:1b"]),
        ("IPV4", ["192.0.2.1", "255.255.255.255"], ["256.1.1.1", "1.2.3"]),
        (
            "IPV6",
            ["::1", "2001:db8::7", "fe80::1%eth0", "::ffff:192.0.2.1", "1:2:3:4:5:6:7:8"],
            ["10:00:15", "1:2", "g::1"],
        ),
        ("IPORHOST", ["192.0.2.1", "::1", "web-1.example.com"], ["-", "a b"]),
        ("HOSTPORT", ["web:80", "192.0.2.1:8080"], ["web", "web:0"]),
        ("UNIXPATH", ["/var/log/a.log", "/"], ["var", "/a b"]),
        ("WINPATH", ["C:\\dir\\file.txt", "\\\\host\\share"], ["C:", "/a"]),
        ("URI", ["https://u:p@h.example:8443/a/b?c=d", "ftp://h"], ["h.example/a"]),
        ("MONTH", ["Jan", "March", "dec"], ["Foo"]),
        ("TIMESTAMP_ISO8601", ["2026-11-09T10:00:15.123Z", "2026-11-09 10:00"], ["2026-11"]),
        ("SYSLOGTIMESTAMP", ["Nov  9 10:00:15"], ["Nov 10:00"]),
        ("HTTPDATE", ["09/Nov/2026:10:00:15 +0100"], ["09/Nov/2026"]),
        ("DATE", ["11/09/2026", "09.11.2026"], ["2026"]),
        ("LOGLEVEL", ["INFO", "warning", "Error", "EMERG"], ["LOUD"]),
        ("JAVACLASS", ["com.example.Foo$Bar"], ["1a", "a..b"]),
        ("SYSLOGPROG", ["sshd[12]", "kernel"], ["a b"]),
    ],
)  # fmt: skip
def test_each_library_name_matches_its_documented_texts(
    name: str, texts: list[str], others: list[str]
) -> None:
    pattern = f"^%{{{name}:found}}$"
    assert [row if isinstance(row, str) else row["found"] for row in read(pattern, *texts)] == texts
    assert read(pattern, *others) == [NO_MATCH] * len(others)


def test_each_name_of_the_library_is_a_pattern_of_re2() -> None:
    for name in grok.library():
        written = grok.written_out(f"%{{{name}:found}}", {})
        pc.extract_regex(pa.array([""]), written.regex)


def test_fields_have_types_and_empty_ones_are_null() -> None:
    pattern = (
        "%{IP:client} %{WORD:verb} (?:%{NUMBER:bytes:int}|-) %{NUMBER:took:float} %{DATA:rest}$"
    )
    found = read(
        pattern, "192.0.2.1 GET 5000000000 0.25 x", "::1 GET - 1 ", "192.0.2.1 GET 1.5 1 ", "x"
    )
    assert found == [
        {"client": "192.0.2.1", "verb": "GET", "bytes": 5_000_000_000, "took": 0.25, "rest": "x"},
        {"client": "::1", "verb": "GET", "bytes": None, "took": 1.0, "rest": None},
        {
            "client": "192.0.2.1", "verb": "GET", "bytes": None, "took": 1.0, "rest": None,
            "parse_error": "grok: bytes is no BIGINT: 1.5",
        },
        NO_MATCH,]  # fmt: skip


def test_fields_ts_and_host_set_those_of_the_event() -> None:
    (found,) = read("%{TIMESTAMP_ISO8601:ts:timestamp} %{HOST:host} %{GREEDYDATA:text}",
                    "2026-11-08T10:00:15+01:00 web1 hello")  # fmt: skip
    assert found == {
        "text": "hello", "host": "web1", "ts": datetime(2026, 11, 8, 9, 0, 15, tzinfo=UTC),
    }  # fmt: skip


def test_patterns_are_tried_in_their_order() -> None:
    patterns = ("^a=%{INT:a:int}", "^b=%{WORD:b}", "^%{DATA:b}!$")
    assert read(patterns, "b=x", "a=1", "y!", "z", "a=x!") == [
        {"a": None, "b": "x"}, {"a": 1, "b": None}, {"a": None, "b": "y"}, NO_MATCH,
        {"a": None, "b": "a=x"},
    ]  # fmt: skip


def test_custom_patterns_and_named_groups_of_other_dialects_are_read() -> None:
    pattern = r"(?<order>%{ORDER}) (took|lasted) %{INT:ms:int} \(ms\)[(x)]"
    assert read(pattern, "AB12 took 7 (ms)x", "AB12 lasted 8 (ms)(", "ab12 took 1 (ms)x",
                ORDER="[A-Z]{2}[0-9]+") == [
        {"order": "AB12", "ms": 7}, {"order": "AB12", "ms": 8}, NO_MATCH,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "text"),
    [("(?m)", "b\nc"), ("(?im)", "b\nc"), ("(?s)", "b\nc"), ("", "b"), ("(?i)", "b")],
)
def test_flag_m_makes_the_dot_match_newlines_as_in_ruby(flags: str, text: str) -> None:
    """RE2's own ``(?m)`` lets ``^`` match at each line."""
    assert read(f"{flags}^c%{{GREEDYDATA:rest}}", "b\nc") == [NO_MATCH]
    assert read(f"{flags}^a %{{GREEDYDATA:rest}}", "a b\nc") == [{"rest": text}]


def test_flag_m_is_limited_to_its_group_and_literal_when_escaped() -> None:
    found = read(r"^(?m:%{GREEDYDATA:two}-)%{GREEDYDATA:one}", "a\nb-c\nd")
    assert found == [{"two": "a\nb", "one": "c"}]
    assert read(r"^\(?m:%{GREEDYDATA:rest}", "(m:a\nb") == [{"rest": "a"}]


def test_field_may_occur_in_several_alternatives() -> None:
    assert read("^(?:ip %{IP:who}|name %{WORD:who})", "ip ::1", "name x") == [
        {"who": "::1"}, {"who": "x"},
    ]  # fmt: skip


def test_the_access_log_of_apache() -> None:
    (found,) = read(
        "^%{COMBINEDAPACHELOG}$",
        'h.example - ann [09/Nov/2026:10:00:15 +0100] "GET /a?b HTTP/1.1" 200 12 "-" "curl/8 (x)"',
    )
    assert found == {
        "clientip": "h.example", "ident": "-", "auth": "ann", "verb": "GET", "request": "/a?b",
        "timestamp": "09/Nov/2026:10:00:15 +0100", "httpversion": "1.1", "rawrequest": None,
        "response": "200", "bytes": "12", "referrer": "-", "agent": "curl/8 (x)",
    }  # fmt: skip


def test_damaged_lines_are_read_or_do_not_match() -> None:
    found = read(
        "^%{WORD:a} %{GREEDYDATA:b}", b"x \xff", b"x \0y", b"", b"\xff", b"x " + b"y" * 1_000_000
    )
    assert found[:4] == [{"a": "x", "b": "\ufffd"}, {"a": "x", "b": "\0y"}, NO_MATCH, NO_MATCH]
    assert len(found[4]["b"]) == 1_000_000


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("%{NOPE:x}", "unknown pattern NOPE"),
        ("%{INTT:x}", 'did you mean "INT"'),
        ("%{INT}", "expected a field"),
        ("%{INT:a.b}", "letters, digits and _"),
        ("%{INT:[a][b]}", "letters, digits and _"),
        ("%{INT:a:integer}", "unknown type integer"),
        ("%{INT:a:int} %{INT:a:float}", "two types"),
        ("%{A:x}", "contains itself"),
        ("%{WIDE:x}", "characters"),
        ("%{INT:x", "expected %{NAME}"),
        ("(?=%{INT:x})", "look-ahead"),
        ("(?>%{INT:x})", "regular expression|atomic"),
        ("%{INT:x}(", "regular expression"),
        ("%{INT:ts}", "the event column ts must"),
        ("%{INT:seq}", "every event has a column seq"),
    ],
)
def test_invalid_pattern_is_reported(pattern: str, problem: str) -> None:
    wide = {f"W{level}": f"%{{W{level + 1}}}" * 4 for level in range(20)}
    more = {"A": "%{B}", "B": "x%{A}", "W20": "x", "WIDE": "%{W0}", **wide}
    (told,) = Parse("grok", pattern=pattern, patterns=more).problems()
    assert told[0] == "pattern"
    assert re.search(problem, told[1])
    if "column" not in problem:
        with pytest.raises(UserError, match=problem):
            formats.reader(Parse("grok", pattern=pattern, patterns=more))


PATTERN = "^%{INT:a:int}(?: %{WORD:b})?(?:=%{DATA:c})?$"
COMPILED = re.compile(grok.written_out(PATTERN, {}).regex.replace("$", r"\Z"), re.ASCII)


def model(line: str) -> Any:
    match = COMPILED.search(line)
    if match is None:
        return NO_MATCH
    if not -(2**63) <= int(match["f0"]) < 2**63:
        return "grok: a is no BIGINT"
    return {"a": int(match["f0"]), "b": match["f1"] or None, "c": match["f2"] or None}


@given(st.lists(st.text("12 +-a=_", max_size=8) | st.text(max_size=10), max_size=5))
def test_columns_agree_with_a_pattern_on_one_row(lines: list[str]) -> None:
    lines = [line.encode("utf-8", "replace").decode() for line in lines]
    assert read(PATTERN, *lines) == [model(line) for line in lines]
