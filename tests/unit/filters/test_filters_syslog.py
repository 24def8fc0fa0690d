"""Syslog lines to columns: the RFCs' own examples, lines of real devices, and garbage."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from flumeng.filters.formats import syslog

RECEIVED = datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC)
NAMES = [field.name for field in syslog.COLUMNS]


def parse(
    *lines: bytes | None, received: datetime = RECEIVED, timezone: str | None = None
) -> list[dict[str, Any]]:
    times = pa.array([received] * len(lines), pa.timestamp("us", "UTC"))
    parsed = syslog.parse(pa.array(lines, pa.binary()), times, timezone)
    for column, field in zip(parsed.columns, syslog.COLUMNS, strict=True):
        assert column.type == field.type
        column.validate(full=True)
    named = dict(zip(NAMES, parsed.columns, strict=True))
    named |= {"host": parsed.host, "ts": parsed.ts, "reason": parsed.reasons}
    rows: list[dict[str, Any]] = pa.RecordBatch.from_pydict(named).to_pylist()
    return rows


def one(line: bytes, **wanted: object) -> None:
    """Require exactly these columns of the line; the others are null, the reason too."""
    (found,) = parse(line)
    everything = {**dict.fromkeys([*NAMES, "host", "reason"]), "ts": RECEIVED, **wanted}
    assert found == everything


def test_rfc_5424_examples() -> None:
    one(
        b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' "
        b"failed for lonvick on /dev/pts/8",
        facility=4,
        severity=2,
        app="su",
        msgid="ID47",
        message="'su root' failed for lonvick on /dev/pts/8",
        host="mymachine.example.com",
        ts=datetime(2003, 10, 11, 22, 14, 15, 3000, tzinfo=UTC),
    )
    one(
        b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time.",
        facility=20,
        severity=5,
        app="myproc",
        procid="8710",
        message="%% It's time.",
        host="192.0.2.1",
        ts=datetime(2003, 8, 24, 12, 14, 15, 3, tzinfo=UTC),
    )
    one(
        b'<165>1 2003-10-11T22:14:15.003Z mymachine evntslog - ID47 [ex@32473 iut="3"]'
        b'[other@1 x="a\\]b c"] An event',
        facility=20,
        severity=5,
        app="evntslog",
        msgid="ID47",
        structured='[ex@32473 iut="3"][other@1 x="a\\]b c"]',
        message="An event",
        host="mymachine",
        ts=datetime(2003, 10, 11, 22, 14, 15, 3000, tzinfo=UTC),
    )


def test_rfc_5424_without_a_message_and_with_all_fields_nil() -> None:
    one(b"<0>1 - - - - - -", facility=0, severity=0, message="")
    one(b"<0>1 - - - - - - ", facility=0, severity=0, message="")
    one(b"<191>1 - - - - - [a]", facility=23, severity=7, structured="[a]", message="")


def test_rfc_3164_examples() -> None:
    one(
        b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed",
        facility=4,
        severity=2,
        app="su",
        message="'su root' failed",
        host="mymachine",
        ts=datetime(2025, 10, 11, 22, 14, 15, tzinfo=UTC),
    )
    one(
        b"<13>Feb  5 17:32:18 10.0.0.99 Use the BFG!",
        facility=1,
        severity=5,
        message="Use the BFG!",
        host="10.0.0.99",
        ts=datetime(2025, 2, 5, 17, 32, 18, tzinfo=UTC),
    )


def test_rfc_3164_as_senders_write_it() -> None:
    time = {"facility": 1, "severity": 5, "ts": datetime(2025, 8, 24, 5, 34, tzinfo=UTC)}
    one(
        b"<13>Aug 24 05:34:00 h sshd[77]: hi",
        app="sshd",
        procid="77",
        message="hi",
        host="h",
        **time,
    )
    one(
        b"<13>Aug 24 05:34:00 h sshd[77] hi",
        app="sshd",
        procid="77",
        message="hi",
        host="h",
        **time,
    )
    one(
        b"<13>Aug 24 05:34:00 sshd[77]: no host", app="sshd", procid="77", message="no host", **time
    )
    one(b"<13>Aug 24 05:34:00 cron: no host", app="cron", message="no host", **time)
    one(b"<13>Aug 24 05:34:00 h app[: x", message="app[: x", host="h", **time)
    one(b"<13>Aug 24 05:34:00 ::1 app: x", app="app", message="x", host="::1", **time)
    one(b"<13>Aug 24 05:34:00", message="", **time)
    one(b"<13>Aug 24 05:34:00 alone", host="alone", message="", **time)


def test_rfc_3164_with_the_time_of_rfc_3339_as_rsyslog_forwards_it() -> None:
    one(
        b"<13>2024-01-02T03:04:05.5+01:00 h app[1]: x",
        facility=1,
        severity=5,
        app="app",
        procid="1",
        message="x",
        host="h",
        ts=datetime(2024, 1, 2, 2, 4, 5, 500_000, tzinfo=UTC),
    )


def test_structured_data_ends_outside_of_quotes() -> None:
    for structured in (
        b'[x a="y] z"]',
        b'[x a="\\""]',
        b'[x a="\\\\"]',
        b'[x a="b\\\\\\" ] c"][y]',
        b'[x a="[" b="]"]',
    ):
        one(
            b"<13>1 - - - - - " + structured + b' said "a] b"',
            facility=1,
            severity=5,
            structured=structured.decode(),
            message='said "a] b"',
        )


TIME = datetime(2025, 11, 5, 9, 15, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("stamp", "moment"),
    [
        ("Nov 5 09:15:07", TIME),
        ("Nov 5 9:15:07", TIME),
        ("NOV  5 09:15:07", TIME),
        ("nov 05 09:15:07:", TIME),
        (" Nov  5 09:15:07", TIME),
        ("Nov  5 2025 09:15:07", TIME),
        ("Nov  5 2025 09:15:07:", TIME),
        ("Nov  5 1999 09:15:07.25", TIME.replace(year=1999, microsecond=250_000)),
        ("Nov  5 09:15:07 2019", TIME.replace(year=2019)),
        ("Nov 15 09:15:07.5 2019:", TIME.replace(year=2019, day=15, microsecond=500_000)),
        ("2019 Nov  5 09:15:07", TIME.replace(year=2019)),
        ("Nov  5 09:15:07.123456789", TIME.replace(microsecond=123_456)),
        ("Nov  5 09:15:07,123", TIME.replace(microsecond=123_000)),
        ("34: Nov  5 09:15:07", TIME),
        ("000034: *Nov  5 09:15:07.123:", TIME.replace(microsecond=123_000)),
        ("34: .Nov  5 2025 09:15:07:", TIME),
        (": 2025 Nov  5 09:15:07", TIME),
        ("*Mar  1 00:02:15", datetime(2025, 3, 1, 0, 2, 15, tzinfo=UTC)),
        ("2025-11-05T09:15:07", TIME),
        ("2025-11-05 09:15:07.5", TIME.replace(microsecond=500_000)),
        ("2025-11-05 09:15:07,5:", TIME.replace(microsecond=500_000)),
        ("2025-11-05T10:15:07+01", TIME),
        ("2025-11-05T10:45:07+0130", TIME),
        ("2025-11-05 10:15:07+01:00", TIME),
        ("7: 2025-11-05T09:15:07Z", TIME),
    ],
)
def test_times_as_devices_write_them(stamp: str, moment: datetime) -> None:
    rest = {"facility": 1, "severity": 5, "host": "h", "app": "a", "message": "x"}
    one(f"<13>{stamp} h a: x".encode(), ts=moment, **rest)


@pytest.mark.parametrize("zone", ["UTC", "GMT", "CET"])
def test_cisco_names_the_zone_and_the_message(zone: str) -> None:
    line = f"<189>34: Nov  5 09:15:07 {zone}: %SYS-5-CONFIG_I: Configured".encode()
    (found,) = parse(line, timezone="Europe/Berlin")
    assert found["app"] == "%SYS-5-CONFIG_I"
    assert found["ts"] == (TIME if zone != "CET" else TIME - timedelta(hours=1))


@pytest.mark.parametrize(
    "stamp",
    [
        "Nov 5 9:5:7",
        "Nov 5 09:15:07.",
        "Nov 5 09:15:07.1234567890",
        "Nov 5 09:15:07x",
        "Nov 5 09:15",
        "Nov 5  2025",
        "Foo 5 09:15:07",
        "99999999999: Nov  5 09:15:07",
        "34:Nov  5 09:15:07",
    ],
)
def test_invalid_time_becomes_part_of_the_message(stamp: str) -> None:
    one(f"<13>{stamp} h".encode(), facility=1, severity=5, message=f"{stamp} h")


@pytest.mark.parametrize(
    "stamp",
    [
        "Nov 31 09:15:07",
        "Nov  0 09:15:07",
        "Nov  5 24:15:07",
        "Nov  5 09:60:07",
        "Nov  5 09:15:60",
        "Nov  5 0000 09:15:07",
        "0000-01-01T00:00:00",
        "2025-02-29T00:00:00",
        "2025-11-05T09:15:07+24:00",
        "7: Feb 30 09:15:07.123",
    ],
)
def test_a_bad_time_leaves_the_rest_of_the_line(stamp: str) -> None:
    rest = {"facility": 1, "severity": 5, "host": "h", "app": "a", "procid": "1", "message": "x"}
    one(f"<13>{stamp} h a[1]: x".encode(), reason=f"syslog: bad timestamp: {stamp}", **rest)


@pytest.mark.parametrize(
    ("stamp", "hour"),
    [
        ("Nov  5 09:15:07 PM", 21),
        ("Nov  5 2025 12:15:07 AM.041", 0),
        ("Nov  5 09:15:07Z", 9),
        ("Nov  5 09:15:07+01:00", 8),
        ("Nov  5 09:15:07 +0100", 8),
        ("Nov  5 09:15:07 2025 -01:00", 10),
        ("Nov  5 09:15:07 UTC", 9),
        ("Nov  5 09:15:07 CEST", 8),
        ("2025-11-05T09:15:07+01:", 8),
    ],
)
def test_zone_after_the_time_is_not_taken_for_the_host(stamp: str, hour: int) -> None:
    (found,) = parse(f"<13>{stamp} h a: x".encode(), timezone="Europe/Berlin")
    expected = hour - 1 if "M" in stamp.split("07")[1] else hour
    assert (found["host"], found["app"], found["message"]) == ("h", "a", "x")
    assert found["ts"].replace(minute=0, second=0, microsecond=0) == datetime(
        2025, 11, 5, tzinfo=UTC
    ) + timedelta(hours=expected)


@pytest.mark.parametrize(
    "text",
    [
        "last message repeated 3 times",
        "message repeated 2 times: [ link down]",
        "--- last message repeated 3 times ---",
        "-- MARK --",
        "date=2026-11-20 time=10:11:12 devname=fg1",
        "1,2026/11/20 10:11:12,0012,TRAFFIC,end",
        '"quoted" text',
        "{json} text",
    ],
)
def test_words_that_cannot_be_a_host_belong_to_the_message(text: str) -> None:
    one(f"<13>Nov  5 09:15:07 {text}".encode(), facility=1, severity=5, message=text, ts=TIME)


@pytest.mark.parametrize("before", ["Message forwarded from", "Forwarded from", "From"])
def test_forwarded_line_has_the_host_that_sent_it_first(before: str) -> None:
    wanted = {"facility": 1, "severity": 5, "ts": TIME, "app": "sshd", "procid": "7"}
    line = f"<13>Nov  5 09:15:07 {before} aix1: sshd[7]: hi"
    one(line.encode(), host="aix1", message="hi", **wanted)


def test_host_given_as_dash_is_null() -> None:
    wanted = {"facility": 1, "severity": 5, "ts": TIME, "app": "a", "message": "x"}
    one(b"<13>Nov  5 09:15:07 - a: x", **wanted)


CISCO = [
    "%LINK-3-UPDOWN: Interface Gi0/1, changed state to down",
    "44: %LINK-3-UPDOWN: ...",
    "44: 001234: %LINK-3-UPDOWN: ...",
    "44: 00:01:01: %LINK-3-UPDOWN: ...",
    "44: 1w2d: %LINK-3-UPDOWN: ...",
    "44: 2y18w: %LINK-3-UPDOWN: ...",
    "44: sw1: 3d04h: %LINK-3-UPDOWN: ...",
    "sw1: %LINK-3-UPDOWN: ...",
    "44: TIME: %LINK-3-UPDOWN: ...",
    "44: TIME CET: %LINK-3-UPDOWN: ...",
    "44: *TIME.131: %LINK-3-UPDOWN: ...",
    "44: .TIME.131 UTC: %LINK-3-UPDOWN: ...",
    "44: 001234: *TIME.131: %LINK-3-UPDOWN: ...",
    "001234: TIME: %LINK-3-UPDOWN: ...",
    "44: sw1: TIME.131: %LINK-3-UPDOWN: ...",
    "44: sw1: 001234: TIME.131 CET: %LINK-3-UPDOWN: ...",
    "44: 10.0.0.9: *TIME.131: %LINK-3-UPDOWN: ...",
    "44: 2001:db8::9: *TIME.131: %LINK-3-UPDOWN: ...",
    "sw1: TIME: %LINK-3-UPDOWN: ...",
    "sw1: *TIME: %LINK-3-UPDOWN: ...",
    "nx1: 2025 TIME.345 CET: %LINK-3-UPDOWN: ...",
    ": 2025 TIME CET: %LINK-3-UPDOWN: ...",
    ": 2025 TIME UTC: %$ VDC-1 %$ %LINK-3-UPDOWN: ...",
    "123: RP/0/RSP0/CPU0:TIME.123 : pim[1234]: %LINK-3-UPDOWN : ...",
    "123: RP/0/RP0/CPU0:2025 TIME.539 UTC: smartlicserver[198]: %LINK-3-UPDOWN : ...",
    "123: xr1 RP/0/RSP0/CPU0:TIME.123 CET: pim[1234]: %LINK-3-UPDOWN : ...",
    "123: LC/0/0/CPU0:TIME: ifmgr[214]: %LINK-3-UPDOWN : ...",
    "wlc1: *spamApTask1: TIME.958: %LINK-3-UPDOWN: ...",
    "*spamApTask1: TIME.958: %LINK-3-UPDOWN: ...",
    ":TIME UTC: %LINK-3-UPDOWN: ...",
    ":TIME: %LINK-3-UPDOWN: ...",
    "TIME: %LINK-3-UPDOWN: ...",
    "TIME sw1 : %LINK-3-UPDOWN: ...",
    "TIME sw1: %LINK-3-UPDOWN: ...",
    "48: Nov  5 2025 09:15:07 AM.041 UTC : %LINK-3-UPDOWN: ...",
    "2025-11-05T09:15:07Z: %LINK-3-UPDOWN: ...",
    "2025-11-05T09:15:07Z sw1 : %LINK-3-UPDOWN: ...",
    "44: 2025-11-05T09:15:07.123Z: %LINK-3-UPDOWN: ...",
    "TIME 10.0.0.9 44: %LINK-3-UPDOWN: ...",
    "TIME 10.0.0.9 44: 001234: Nov  5 09:15:06.115: %LINK-3-UPDOWN: ...",
    "TIME 10.0.0.1 44: sw1: Nov  5 09:15:06.115: %LINK-3-UPDOWN: ...",
    "TIME 10.0.0.9 : 2025 Nov  5 09:15:06 CET: %LINK-3-UPDOWN: ...",
    "TIME 10.0.0.9 *Nov  5 09:15:06: %LINK-3-UPDOWN: ...",
]
"""Headers by the documentation of IOS, IOS XE, IOS XR, NX-OS, ASA, WLC and CUCM."""


@pytest.mark.parametrize("line", CISCO)
def test_headers_of_cisco_are_passed_over(line: str) -> None:
    (found,) = parse(b"<189>" + line.replace("TIME", "Nov  5 09:15:07").encode())
    timed = "TIME" in line or "09:15:07" in line
    assert found["ts"].replace(microsecond=0) == (TIME if timed else RECEIVED)
    host = re.search(r"\b(sw1|nx1|xr1|wlc1|10\.0\.0\.9|2001:db8::9)\b", line)
    assert found["host"] == (host[0] if host else None)
    assert (found["app"], found["reason"]) == ("%LINK-3-UPDOWN", None)
    assert found["message"] == line.partition("UPDOWN")[2].lstrip(" :")


@pytest.mark.parametrize(
    "text",
    [
        "app: Nov  5 09:15:07 was a day",
        "44: app: text",
        "app: 100% of it: %d",
        "a/b:c: %x",
        "*app: text",
        "1w2d: text",
    ],
)
def test_text_like_a_cisco_header_keeps_its_words(text: str) -> None:
    (found,) = parse(f"<13>{text}".encode())
    tag = "app: " if text.startswith("app: ") else ""
    assert (found["host"], found["ts"], found["reason"]) == (None, RECEIVED, None)
    assert found["message"] == text.removeprefix(tag)


def test_a_byte_order_mark_before_the_priority_is_passed_over() -> None:
    one(b"\xef\xbb\xbf<13>Nov  5 09:15:07 h a: x", facility=1, severity=5, host="h", app="a",
        message="x", ts=TIME)  # fmt: skip


def test_meraki_epochs_are_read_as_times() -> None:
    wanted = {"facility": 16, "severity": 6, "ts": datetime(2026, 11, 20, 10, 11, 12, 123456, UTC)}
    text = "src=10.0.0.1 dst=10.0.0.2 protocol=tcp pattern: allow all"
    for message in (text, "type=association radio=0"):
        line = f"<134>1 1795169472.123456789 MX84 flows {message}"
        one(line.encode(), host="MX84", app="flows", message=message, **wanted)


def test_tag_is_read_without_a_time() -> None:
    one(b"<13>app[7]: x", facility=1, severity=5, app="app", procid="7", message="x")
    one(b"<13>app: x", facility=1, severity=5, app="app", message="x")
    for text in ("http://h/x", '{"a": 1}', "app [7]: x", "12: x", "a[b] c: x", "a[b"):
        one(b"<13>" + text.encode(), facility=1, severity=5, message=text)


def test_line_without_priority_is_read_from_a_file() -> None:
    when = TIME.replace(year=2025)
    one(b"Nov  5 09:15:07 h a[1]: x", host="h", app="a", procid="1", message="x", ts=when)
    one(b"2025-11-05T09:15:07.5Z h a: x", host="h", app="a", message="x",
        ts=when.replace(microsecond=500_000))  # fmt: skip


def test_timezone_option_applies_to_times_without_a_zone() -> None:
    summer = [b"<13>Jul  5 09:15:07 h a: x", b"<13>2025-07-05T09:15:07 h a: x"]
    winter = [b"<13>Jan  5 2025 09:15:07 h a: x"]
    named = [b"<13>2025-07-05T09:15:07+00:00 h a: x", b"<13>1 2025-07-05T09:15:07Z h a - - - x"]
    found = [row["ts"] for row in parse(*summer, *winter, *named, timezone="Europe/Berlin")]
    assert [moment.hour for moment in found] == [7, 7, 8, 9, 9]
    assert parse(b"<13>no time", timezone="Europe/Berlin")[0]["ts"] == RECEIVED


@pytest.mark.parametrize(("received_hour", "hour"), [(0, 0), (1, 1)])
def test_hour_repeated_at_the_clock_change_is_the_one_nearest_to_receipt(
    received_hour: int, hour: int
) -> None:
    received = datetime(2025, 10, 26, received_hour, 31, tzinfo=UTC)
    (found,) = parse(b"<13>Oct 26 02:30:00 h a: x", received=received, timezone="Europe/Berlin")
    assert found["ts"] == datetime(2025, 10, 26, hour, 30, tzinfo=UTC)


def test_local_time_skipped_by_a_clock_change_is_the_moment_of_the_change() -> None:
    (found,) = parse(b"<13>Mar 30 2025 02:30:00 h a: x", timezone="Europe/Berlin")
    assert found["ts"] == datetime(2025, 3, 30, 1, tzinfo=UTC)


def test_line_without_time_and_tag_is_all_message_after_its_priority() -> None:
    one(b"<189>34: link down", facility=23, severity=5, message="34: link down")
    one(b"<189>", facility=23, severity=5, message="")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"plain", "syslog: no priority"),
        (b"", "syslog: no priority"),
        (None, "syslog: no priority"),
        (b"<>x", "syslog: no priority"),
        (b"<192>x", "syslog: no priority"),
        (b"<1234>x", "syslog: no priority"),
        (b"<12", "syslog: no priority"),
    ],
)
def test_unparsable_line_has_a_reason_and_no_columns(line: bytes, reason: str) -> None:
    assert parse(line) == [{**dict.fromkeys([*NAMES, "host"]), "ts": RECEIVED, "reason": reason}]


READ = {"facility": 1, "severity": 5, "host": "h", "app": "a", "procid": "p", "msgid": "m"}


@pytest.mark.parametrize(
    ("rest", "reason", "read"),
    [
        ("x", "bad timestamp: x", dict.fromkeys(("host", "app", "procid", "msgid"))),
        ("- h", "too few fields: - h", dict.fromkeys(("app", "procid", "msgid"))),
        ("- h a p m", "too few fields: - h a p m", {}),
        ("-  a p m - x", "too few fields: -  a p m - x", {"host": None}),
        (
            "2003-13-11T22:14:15Z h a p m - x",
            "bad timestamp: 2003-13-11T22:14:15Z",
            {"message": "x"},
        ),
        ("2003-12-11 h a p m - x", "bad timestamp: 2003-12-11", {"message": "x"}),
        (
            "2016-12-31T23:59:60Z h a p m - x",
            "bad timestamp: 2016-12-31T23:59:60Z",
            {"message": "x"},
        ),
        ("- h a p m [x y", "bad structured data: [x y", {"message": "[x y"}),
        ("- h a p m -x", "bad structured data: -x", {"message": "-x"}),
        ("- h a p m zz", "bad structured data: zz", {"message": "zz"}),
    ],
)
def test_wrong_rfc_5424_field_leaves_the_other_fields(
    rest: str, reason: str, read: dict[str, str | None]
) -> None:
    one(f"<13>1 {rest}".encode(), reason=f"syslog: {reason}", **{**READ, **read})


@pytest.mark.parametrize(
    "time",
    [
        "2025-11-05T09:15:07", "2025-11-05T09:15:07,0Z", "2025-11-05 10:15:07+01:00",
        "2025-11-05T10:15:07+0100", "2025-11-05t09:15:07z",
    ],
)  # fmt: skip
def test_rfc_5424_takes_other_forms_of_iso_8601(time: str) -> None:
    one(f"<13>1 {time} h a p m - x".encode(), ts=TIME, message="x", **READ)


@pytest.mark.parametrize(
    ("stamp", "received", "year"),
    [
        (b"Dec 31 23:59:59", datetime(2026, 1, 1, tzinfo=UTC), 2025),
        (b"Jan  1 00:00:01", datetime(2025, 12, 31, 23, 59, 58, tzinfo=UTC), 2026),
        (b"Jun 30 12:00:00", datetime(2026, 7, 1, tzinfo=UTC), 2026),
        (b"Feb 20 12:00:00", datetime(2026, 11, 22, tzinfo=UTC), 2026),
        (b"Dec 23 23:59:59", datetime(2026, 11, 22, tzinfo=UTC), 2026),
        (b"Dec 24 00:00:00", datetime(2026, 11, 22, tzinfo=UTC), 2025),
        (b"Feb 29 12:00:00", datetime(2024, 3, 1, tzinfo=UTC), 2024),
    ],
)
def test_a_time_without_a_year_is_at_most_a_month_after_its_receipt(
    stamp: bytes, received: datetime, year: int
) -> None:
    (found,) = parse(b"<13>" + stamp + b" h a: x", received=received)
    assert found["ts"].year == year


def test_text_that_is_not_utf_8_is_replaced_row_by_row() -> None:
    lines = [b"<13>Aug 24 05:34:00 h caf\xe9: a\nb\xe2\x82", "<13>Aug 24 05:34:00 h ü: ö".encode()]
    assert [(row["app"], row["message"]) for row in parse(*lines)] == [
        ("caf\ufffd", "a\nb\ufffd"),
        ("ü", "ö"),
    ]


def test_slices_with_mixed_syslog_forms_give_the_same_columns() -> None:
    lines = [b"<13>1 - a - - - - x", b"junk", b"<14>Aug 24 05:34:00 b t: y", b"<15>z"] * 3
    times = pa.array([RECEIVED] * len(lines), pa.timestamp("us", "UTC"))
    body = pa.array(lines, pa.binary())
    whole = syslog.parse(body, times)
    part = syslog.parse(body.slice(2, 7), times.slice(2, 7))
    assert [c.slice(2, 7).to_pylist() for c in whole.columns] == [
        c.to_pylist() for c in part.columns
    ]
    assert whole.columns[-1].to_pylist() == ["x", None, "y", "z"] * 3


def test_an_empty_batch_gives_empty_columns() -> None:
    assert parse() == []


MODERN = re.compile(
    rb"<(\d{1,3})>1 ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) ([^ ]+) (-)(?: (.*))?", re.DOTALL
)
word = st.binary(min_size=1, max_size=8).filter(lambda b: b" " not in b)
moments = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


PIECES = (
    b'<13>|1 | |  |:|: |[|]|"|\\|-|*|.|,|Z|+|T|%|=|Nov|FEB|mar|29|5|05|31|0000|9999|2026|'
    b"2025-11-05|09:15:07|23:59:59.999999|+23:59|-23:59|0001-01-01T00:00:00|9999-12-31T23:59:59|"
    b"0001-01-01T00:00:00+00:01|9999-12-31T23:59:59-23:59| UTC: %A|34: |h|a|\xff|\xc3|\n|\x00"
)
pieces = st.sampled_from(PIECES.split(b"|"))
likely = st.builds(lambda head, rest: head + b"".join(rest),
    st.sampled_from([b"<13>", b"<13>1 ", b"<13>1 - h a p m [x a=", b"", b"<13>Nov 5 "]),
    st.lists(pieces, max_size=14),
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.binary(max_size=60) | likely), st.sampled_from([None, "Asia/Kathmandu"]))
@example([b"+", b"<0>0001-01-01T0:00:000"], None)
@example([b"<0>Nov 5 2:00:00.5 h", b"<0>Nov 5 2:00:000 h", b"<0>Nov 5 2:00:00+01 h"], None)
@settings(max_examples=5 * settings().max_examples)
def test_any_bytes_raise_nothing_and_change_no_other_row(
    lines: list[bytes], timezone: str | None
) -> None:
    alone = [row for line in lines for row in parse(line, timezone=timezone)]
    assert parse(*lines, timezone=timezone) == alone


@pytest.mark.slow
@given(st.lists(likely, min_size=1), st.integers(0, 5))
def test_slice_gives_the_same_rows_as_single_lines(lines: list[bytes], start: int) -> None:
    times = pa.array([RECEIVED] * len(lines), pa.timestamp("us", "UTC"))
    part = syslog.parse(pa.array(lines, pa.binary())[start:], times[start:])
    alone = parse(*lines[start:])
    assert part.columns[-1].to_pylist() == [row["message"] for row in alone]
    assert part.ts is not None
    assert part.ts.to_pylist() == [row["ts"] for row in alone]


@given(moments, st.sampled_from([b"%b %d %H:%M:%S", b"%Y-%m-%dT%H:%M:%SZ"]))
@settings(max_examples=2 * settings().max_examples)
def test_both_time_parsers_agree(moment: datetime, form: bytes) -> None:
    is_leap_day = (moment.month, moment.day) == (2, 29)
    assume(b"%Y" in form or not is_leap_day)  # of which no year is near enough
    stamp = moment.strftime(form.decode()).encode()
    (usual,) = parse(b"<13>" + stamp + b" h a: x")
    (rare,) = parse(b"<13>1: " + stamp + b": h a: x")
    assert rare == usual


def test_times_stay_within_the_calendar() -> None:
    stamps = (b"0001-01-01T00:00:00", b"9999-12-31T23:59:59", b"Jan  1 0001 00:00:00")
    for timezone in ("Pacific/Kiritimati", "America/Adak"):
        found = parse(*(b"<13>" + stamp + b" h a: x" for stamp in stamps), timezone=timezone)
        assert {row["ts"].year for row in found} == {1, 9999}
    for beyond in (b"9999-12-31T23:59:59-00:01", b"0001-01-01T00:00:00+00:01"):
        assert (
            parse(b"<13>1 " + beyond + b" h a - - - x")[0]["reason"]
            == f"syslog: bad timestamp: {beyond.decode()}"
        )
        assert parse(b"<13>" + beyond + b" h a: x")[0]["ts"] == RECEIVED
        assert parse(b"<13>7: " + beyond + b" h a: x")[0]["ts"] == RECEIVED


@pytest.mark.slow
@given(st.integers(0, 191), moments, st.lists(word, min_size=4, max_size=4), st.binary(max_size=20))
@settings(max_examples=3 * settings().max_examples)
def test_rfc_5424_is_parsed_as_by_the_regular_expression(
    priority: int, moment: datetime, words: list[bytes], message: bytes
) -> None:
    line = b"<%d>1 %s %s - %s" % (priority, moment.isoformat().encode(), b" ".join(words), message)
    match = MODERN.fullmatch(line)
    (found,) = parse(line)
    assert match is not None
    fields = [None if f == b"-" else f.decode("utf-8", "replace") for f in match.groups()[2:6]]
    assert [found[name] for name in ("host", "app", "procid", "msgid")] == fields
    assert (found["facility"], found["severity"]) == (priority >> 3, priority & 7)
    assert found["ts"] == moment
    assert found["message"] == (match[8] or b"").removeprefix(b"\xef\xbb\xbf").decode(
        "utf-8", "replace"
    )


@given(moments, st.timedeltas(timedelta(days=-30), timedelta(days=330)))
@settings(max_examples=3 * settings().max_examples)
def test_rfc_3164_times_survive_the_round_trip(moment: datetime, delay: timedelta) -> None:
    moment = moment.replace(microsecond=0)
    stamp = f"{moment:%b} {moment.day:>2} {moment:%H:%M:%S}".encode()
    (found,) = parse(b"<13>" + stamp + b" h a: x", received=moment + delay)
    if (moment.month, moment.day) != (2, 29):
        assert found["ts"] == moment
