"""Access logs in a format of a site's own: as in configurations of nginx and Apache."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.config import SpecError, check_flow
from flumeng.filters import formats
from flumeng.filters.options import log_formats
from flumeng.filters.options.parse import ACCESS_LOG, Parse
from flumeng.platform.errors import UserError
from tests.testkit.formats import read_bodies

TIME = "09/Nov/2026:10:00:15 +0100"
MOMENT = datetime(2026, 11, 9, 9, 0, 15, tzinfo=UTC)
NGINX = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
    '"$http_referer" "$http_user_agent"'
)
APACHE = r"%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\""
MAIN = NGINX + ' "$http_x_forwarded_for" rt=$request_time ut="$upstream_response_time" ${host}'


def read(log_format: str, *lines: str) -> list[Any]:
    options = Parse("access_log", log_format=log_format)
    return read_bodies(options, *(line.encode() for line in lines))


def test_fields_of_an_nginx_format_become_columns() -> None:
    line = (
        f'192.0.2.1 - ann lee [{TIME}] "GET /a?b=1 HTTP/2.0" 200 12 "-" "a \\x22b\\x22" "10.0.0.1" '
        'rt=0.125 ut="0.1, 0.02" shop.example'
    )
    assert read(MAIN, line) == [
        {
            "client": "192.0.2.1", "user": "ann lee", "method": "GET", "path": "/a?b=1",
            "protocol": "HTTP/2.0", "status": 200, "bytes": 12, "referer": None,
            "agent": "a \\x22b\\x22", "http_x_forwarded_for": "10.0.0.1", "request_time": 0.125,
            "upstream_response_time": "0.1, 0.02", "vhost": "shop.example", "ts": MOMENT,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("log_format", "line", "expected"),
    [
        ("$msec|$status", "1794214815.250|404", {
            "status": 404, "ts": datetime(2026, 11, 9, 9, 0, 15, 250_000, tzinfo=UTC),
        }),
        ("$time_iso8601 $request_method $request_uri $uri", "2026-11-09T09:00:15Z GET /a?b /a", {
            "method": "GET", "path": "/a?b", "uri": "/a", "ts": MOMENT,
        }),
        (r'\"%{User-Agent}i\" %s', r'"a \" 1" 200', {"agent": 'a " 1', "status": 200}),
        ("100% $status", "100% 200", {"status": 200}),
        ("$time_local;$msec;$bytes_sent;", f"{TIME};1;-;", {
            "msec": "1", "bytes_sent": None, "ts": MOMENT,
        }),
        ("%v:%p %a %D %{us}T %I %O %{X-Forwarded-For}i 5%%", "s:443 ::1 7 8 1 2 - 5%", {
            "server_name": "s", "server_port": 443, "client_address": "::1", "duration_us": 7,
            "ust": 8, "bytes_received": 1, "bytes_sent": 2, "http_x_forwarded_for": None,
        }),
        ("%t %400,501{User-Agent}i", f"[{TIME}] curl", {"agent": "curl", "ts": MOMENT}),
    ],
)  # fmt: skip
def test_variables_have_their_types(log_format: str, line: str, expected: dict[str, Any]) -> None:
    assert read(log_format, line) == [expected]
    told = log_formats.columns(log_format)
    assert list(told) == [name for name in expected if name != "ts"]


words = st.text("ab-\\é'", min_size=1, max_size=4).filter(lambda text: not text.endswith("\\"))
lines = st.builds(
    lambda user, request, agent: (
        f'h - {user} [{TIME}] "{request}" 200 1 "-" "{agent}"', user, request, agent
    ),
    words, st.lists(words, min_size=1, max_size=4).map(" ".join), words,
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(lines, max_size=4))
def test_common_formats_are_read_as_without_a_format(made: list[tuple[str, ...]]) -> None:
    texts = [line for line, *_ in made]
    known = read_bodies(Parse("access_log"), *(text.encode() for text in texts))
    assert read(APACHE, *texts) == known
    for row in known:
        assert row.pop("ident") is None
    assert read(NGINX, *texts) == known


@pytest.mark.slow
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_bytes_are_read_or_have_a_reason(bodies: list[bytes]) -> None:
    for log_format in (MAIN, APACHE, "$a", " $a ", "$request", "%t"):
        assert len(read_bodies(Parse("access_log", log_format=log_format), *bodies)) == len(bodies)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "no '['"),
        (f"{TIME}] 200", "no '['"),
        ("[09/Nov/2026] 200", "no ' ' behind $status"),
        (f"[{TIME}]", "no '] ' behind $time_local"),
        (f"[{TIME}] 200 1.5 ms", "no ' s' behind $request_time"),
        (f"[{TIME}] 200 1.5 s more", "more than the format has"),
    ],
)
def test_line_that_does_not_fit_has_a_reason(line: str, reason: str) -> None:
    good = f"[{TIME}] 200 1.5 s"
    found = read("[$time_local] $status $request_time s", good, line)
    assert found[0] == {"status": 200, "request_time": 1.5, "ts": MOMENT}
    assert found[1] == f"access_log: {reason}"


def test_a_value_that_is_not_of_its_type_leaves_the_others() -> None:
    wanted = "[$time_local] $status $request_time s"
    feb = "31/Feb/2026:10:00:15 +0000"
    assert read(wanted, f"[{feb}] 200 1 s", f"[{TIME}] x 1 s") == [
        {
            "status": 200, "request_time": 1.0,
            "parse_error": f"access_log: $time_local is no time: {feb}",
        },
        {
            "status": None, "request_time": 1.0, "ts": MOMENT,
            "parse_error": "access_log: $status is no INT: x",
        },
    ]  # fmt: skip


def flow(log_format: str, form: str = "access_log") -> str:
    return (
        "flow: f\nsources: [tail: {paths: [/a]}]\nfilters:\n"
        f"  - parse: {{format: {form}, log_format: '{log_format}'}}\n"
        '  - where: "status > 1"\nsinks: [noop]\n'
    )


@pytest.mark.parametrize(
    ("log_format", "message"),
    [
        ("$status", ""),
        ("nothing", "log_format: expected variables"),
        ("$status$request", r"no text separates $status from $request"),
        ("$status $status", r"$status would make a second column status"),
        ("%s %{%Y}t", "%{%Y}t is not supported: write the time as %t"),
        ("%s %Z", "%Z is not supported"),
        ("$1 $status", "expected the name of a column"),
        ("$remote_addr", 'there is no column "status"'),
    ],
)
def test_invalid_formats_are_reported(log_format: str, message: str) -> None:
    try:
        check_flow(flow(log_format))
        assert not message
    except SpecError as error:
        assert message
        assert message in str(error)


def test_only_access_logs_have_the_option() -> None:
    with pytest.raises(SpecError, match="only format access_log takes this"):
        check_flow(flow("$status", "cri"))
    with pytest.raises(UserError, match="no text separates"):
        formats.reader(Parse("access_log", log_format="$a$b"))
    assert {*log_formats.columns(APACHE)} == {*ACCESS_LOG}


def test_nginx_lists_are_one_value() -> None:
    wanted = "$upstream_addr $upstream_status $request_id"
    found = read(
        wanted, "10.1.0.1:80 200 a", "10.1.0.1:80, 10.1.0.2:80 502, 200 b",
        "10.1.0.1:80, unix:/s : 10.1.0.2:80 502, 502 : 200 c", "- - d",
    )  # fmt: skip
    assert [tuple(row.values()) for row in found] == [
        ("10.1.0.1:80", "200", "a"),
        ("10.1.0.1:80, 10.1.0.2:80", "502, 200", "b"),
        ("10.1.0.1:80, unix:/s : 10.1.0.2:80", "502, 502 : 200", "c"),
        (None, None, "d"),
    ]
    (long,) = read(wanted, "a, " * 100_000 + "a 200 e")
    assert long == "access_log: a list of over 64 values"
