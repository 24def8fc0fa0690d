"""Access logs, and the files of container runtimes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.filters.options.parse import ACCESS_LOG, Parse
from tests.testkit.formats import read_bodies

TIME = "09/Nov/2026:10:00:15 +0100"
MOMENT = datetime(2026, 11, 9, 9, 0, 15, tzinfo=UTC)


def access(line: str | bytes) -> Any:
    body = line if isinstance(line, bytes) else line.encode()
    (found,) = read_bodies(Parse("access_log"), body)
    if isinstance(found, str):
        return found
    assert set(found) <= {*ACCESS_LOG, "ts", "parse_error"}
    return {name: value for name, value in found.items() if value is not None}


GET = {"method": "GET", "path": "/a", "protocol": "HTTP/1.1", "status": 200, "bytes": 12}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f'h - - [{TIME}] "GET /a HTTP/1.1" 200 12', {"client": "h", **GET}),
        (
            f'192.0.2.1 id ann [{TIME}] "GET /a HTTP/1.1" 200 12 "http://x/y" "curl/8"',
            {
                "client": "192.0.2.1", "ident": "id", "user": "ann", **GET,
                "referer": "http://x/y", "agent": "curl/8",
            },
        ),
        (
            f'::1 - ann lee [{TIME}] "GET /a HTTP/1.1" 200 12 "-" "a \\"b\\" \\\\ c" "more" 0.1',
            {"client": "::1", "user": "ann lee", **GET, "agent": 'a "b" \\ c'},
        ),
        (f'h - - [{TIME}] "GET /a b HTTP/1.1" 304 -', {
            "client": "h", "method": "GET", "path": "/a b", "protocol": "HTTP/1.1", "status": 304,
        }),
        (f'h - - [{TIME}] "GET /a" 200 12', {
            "client": "h", "method": "GET", "path": "/a", "status": 200, "bytes": 12,
        }),
        (f'h - - [{TIME}] "\\x16\\x03" 400 0', {
            "client": "h", "path": "\\x16\\x03", "status": 400, "bytes": 0,
        }),
        (f'h - - [{TIME}] "-" 408 - "-" "-"', {"client": "h", "status": 408}),
        (f'h - - [{TIME}] "" 400 0', {"client": "h", "status": 400, "bytes": 0}),
        (f'h - - [{TIME}] "GET /a HTTP/1.1" 200 12 "cut', {"client": "h", **GET}),
        (f'h - "" [{TIME}] "GET /a HTTP/1.1" 200 12', {"client": "h", "user": '""', **GET}),
        (f'h - é [{TIME}] "GET /a HTTP/1.1" 200 12'.encode("latin-1"), {
            "client": "h", "user": "\ufffd", **GET,
        }),
    ],
)  # fmt: skip
def test_access_line_is_read_into_its_columns(line: str | bytes, expected: dict[str, Any]) -> None:
    assert access(line) == {**expected, "ts": MOMENT}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "too few fields"),
        ("h", "too few fields"),
        ("h - -", "too few fields"),
        (f"[{TIME}]", "too few fields"),
        (f'h - -[{TIME}] "GET /a HTTP/1.1" 200 12', "too few fields"),
        ("h - - [", "no request"),
        (f"h - - [{TIME}]", "no request"),
        (f"h - - [{TIME}] GET /a 200 12", "no request"),
        (f'h - - [{TIME}] "GET /a HTTP/1.1', "no request"),
    ],
)
def test_line_that_is_not_an_access_log_has_a_reason(line: str, reason: str) -> None:
    assert access(line) == f"access_log: {reason}"


@pytest.mark.parametrize(
    "time", ["09/Nov/2026:10:00:15", "31/Feb/2026:10:00:15 +0000", "09/Nox/2026:10:00:15 +0000"]
)
def test_a_bad_time_leaves_the_rest_of_an_access_log(time: str) -> None:
    found = access(f'h - - [{time}] "GET /a HTTP/1.1" 200 12 "-" "curl/8"')
    assert found == {
        "client": "h", **GET, "agent": "curl/8", "parse_error": f"access_log: bad time: {time}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "read"),
    [
        ("", {}),
        ("200", {"status": 200}),
        ("2000 1", {"bytes": 1}),
        ("200 1x", {"status": 200}),
        ("200 1111111111111111111", {"status": 200}),
    ],
)
def test_bad_numbers_leave_the_rest_of_an_access_log(numbers: str, read: dict[str, int]) -> None:
    found = access(f'h - - [{TIME}] "GET /a HTTP/1.1" {numbers}'.rstrip())
    assert found == {
        "client": "h", "method": "GET", "path": "/a", "protocol": "HTTP/1.1", **read, "ts": MOMENT,
        "parse_error": f"access_log: no status and bytes: {numbers}",
    }  # fmt: skip


@pytest.mark.parametrize(
    "front",
    [
        "shop.example:443 ", "[2001:db8::1]:443 ", "10.0.0.1:80 ", "shop.example ",
        "Nov  9 10:00:15 web1 nginx: ", "<190>Nov  9 10:00:15 web1 nginx[812]: ",
        "2026-11-09T10:00:15Z web1 httpd: ", "<190>1 2026-11-09T10:00:15Z web1 nginx 12 - - ",
    ],
)  # fmt: skip
@pytest.mark.parametrize("user", ["-", "ann"])
@pytest.mark.parametrize("client", ["192.0.2.1", "2001:db8::5"])
def test_known_prefixes_move_no_column(front: str, client: str, user: str) -> None:
    found = access(f'{front}{client} - {user} [{TIME}] "GET /a HTTP/1.1" 200 12')
    expected = {"client": client, **GET, "ts": MOMENT}
    assert found == (expected if user == "-" else {**expected, "user": user})


def test_client_behind_a_virtual_host_may_be_a_name() -> None:
    found = access(f'shop:80 dsl-7.example - - [{TIME}] "GET /a HTTP/1.1" 200 12')
    assert found == {"client": "dsl-7.example", **GET, "ts": MOMENT}


@pytest.mark.parametrize(
    "names",
    [
        "10.0.0.9 192.0.2.1 - -", "10.0.0.9 192.0.2.1 -", "shop 192.0.2.1 -", "a shop client - -",
        "2026-11-09T10:00:15.1Z stdout F 192.0.2.1 - -", "web_1  | 192.0.2.1 - -",
        "shop - 192.0.2.1 - -", "h - - -", "shop client - -", '"10.0.0.1, 10.0.0.2" 10.0.0.9 - -',
    ],
)  # fmt: skip
def test_unknown_prefixes_are_a_reason(names: str) -> None:
    found = access(f'{names} [{TIME}] "GET /a HTTP/1.1" 200 12')
    assert found == "access_log: not client, ident and user before the time"


def test_lines_with_and_without_a_prefix_are_read_together() -> None:
    line = f'192.0.2.1 - - [{TIME}] "GET /a HTTP/1.1" 200 12'.encode()
    rows = read_bodies(Parse("access_log"), line, b"shop:80 " + line, b"x", line)
    assert [isinstance(row, dict) and row["client"] for row in rows] == [
        "192.0.2.1", "192.0.2.1", False, "192.0.2.1",
    ]  # fmt: skip


WORD = r"(?:[^- \[][^ \[]*|-[^ \[]+)"
LINE = re.compile(
    rf"(?P<client>[^ ]*) (?P<ident>-) (?P<user>[^ \[]+| *{WORD}(?: +{WORD})* *) "
    r"\[09/Nov/2026:10:00:15 \+0100\] "
    r'"(?P<request>(?:[^"\\]|\\.)*)" (?P<status>[0-9]{1,3}|-) (?P<bytes>[0-9]{1,18}|-)(?: .*)?',
    re.DOTALL,
)
parts = st.text('ab -"\\', min_size=0, max_size=6)
access_lines = st.builds(
    lambda client, user, request, rest: f'{client} - {user} [{TIME}] "{request}" 200 1{rest}',
    st.text("ab.", min_size=1, max_size=3),
    st.text("ab -", min_size=1, max_size=4),
    parts,
    parts.map(lambda text: " " + text),
)


@pytest.mark.slow
@given(st.lists(access_lines | st.text(max_size=20), max_size=5))
def test_columns_agree_with_a_pattern_on_one_row(lines: list[str]) -> None:
    found = read_bodies(Parse("access_log"), *(line.encode() for line in lines))
    for row, line in zip(found, lines, strict=True):
        match = LINE.fullmatch(line)
        assert (isinstance(row, dict) and "parse_error" not in row) == (match is not None)
        if match is not None:
            said = {
                name: text if text not in ("", "-") else None
                for name, text in match.groupdict().items()
            }
            assert (row["client"], row["user"]) == (said["client"], said["user"])
            assert (row["status"], row["bytes"], row["ts"]) == (200, 1, MOMENT)


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_bytes_are_read_or_have_a_reason(bodies: list[bytes]) -> None:
    for form in ("access_log", "cri", "docker"):
        assert len(read_bodies(Parse(form), *bodies)) == len(bodies)


def test_large_bodies_are_read_like_others() -> None:
    large = b"x" * 1_000_000
    line = f'h - - [{TIME}] "GET /'.encode() + large + b' HTTP/1.1" 200 1'
    found = read_bodies(Parse("access_log"), line, large, b'"' * 1_000_000, b" " * 1_000_000)
    assert len(found[0]["path"]) == 1_000_001
    assert all(isinstance(row, str) for row in found[1:])
    (found_cri,) = read_bodies(Parse("cri"), b"2026-11-09T09:00:15Z stdout F " + large)
    assert len(found_cri["message"]) == 1_000_000


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2026-11-09T09:00:15Z stdout F a  b ", ("stdout", "F", "a  b ")),
        ("2026-11-09T10:00:15.000000000+01:00 stderr P ", ("stderr", "P", "")),
        ("2026-11-09T09:00:15Z stdout F", ("stdout", "F", "")),
        ("2026-11-09T09:00:15Z stdout P:more x", ("stdout", "P", "x")),
        ("2026-11-09T09:00:15Z stdin F x", "cri: no stream"),
        ("2026-11-09T09:00:15Z stdout X x", "cri: no tag"),
        ("2026-11-09T09:00:15Z stdout FF x", "cri: no tag"),
        ("2026-11-09T09:00:15Z", "cri: no stream"),
        ("", "cri: no stream"),
    ],
)
def test_cri_lines_are_read(line: str, expected: Any) -> None:
    (found,) = read_bodies(Parse("cri"), line.encode())
    if isinstance(found, dict):
        assert found.pop("ts") == MOMENT
        found = tuple(found.values())
    assert found == expected


def test_a_bad_time_leaves_the_rest_of_a_container_line() -> None:
    (cri,) = read_bodies(Parse("cri"), b"2026-13-09T09:00:15Z stdout F x")
    assert cri == {
        "stream": "stdout", "logtag": "F", "message": "x",
        "parse_error": "cri: no time: 2026-13-09T09:00:15Z",
    }  # fmt: skip
    (docker,) = read_bodies(Parse("docker"), b'{"log":"a","time":"soon"}')
    assert docker == {
        "stream": None, "logtag": "P", "message": "a",
        "parse_error": 'docker: time is no TIMESTAMP: "soon"',
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"log":"a\\n","stream":"stdout","time":"2026-11-09T09:00:15.5Z"}', ("stdout", "F", "a")),
        ('{"log":"a","stream":"stderr","attrs":{"x":"y"}}', ("stderr", "P", "a")),
        ('{"log":"\\n"}', (None, "F", "")),
        ('{"log":"a\\rb\\r\\n"}', (None, "F", "a\rb")),
        ('{"log":"a\\r"}', (None, "P", "a\r")),
        ('{"log":"é\\u001b[0m\\n"}', (None, "F", "é\x1b[0m")),
        ('{"stream":"stdout"}', "docker: no log"),
        ("[]", "docker: not an object"),
        ("a", "docker: malformed"),
    ],
)
def test_docker_lines_are_read(line: str, expected: Any) -> None:
    (found,) = read_bodies(Parse("docker"), line.encode())
    if isinstance(found, dict):
        assert found.pop("ts", MOMENT).replace(microsecond=0) == MOMENT
        found = tuple(found.values())
    assert found == expected
