"""Times from texts and numbers: as Python reads them, and never a wrong one for an invalid text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flumeng.config import SpecError, check_flow
from flumeng.filters.options import time_formats
from flumeng.filters.refused_times import Bounded
from flumeng.filters.time import TimeStage

RECEIVED = datetime(2026, 11, 21, 12, tzinfo=UTC)
ATTRS = pa.map_(pa.string(), pa.string())
ERROR = ("parse_error", "time: said is of no format")
ZONES = st.integers(-12 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=ZONES)
LATELY = st.datetimes(datetime(1970, 1, 1), datetime(2068, 12, 30))


def batch_of(said: Sequence[Any], kind: pa.DataType | None = None) -> pa.RecordBatch:
    count = len(said)
    return pa.RecordBatch.from_pydict(
        {
            "ts": pa.array([RECEIVED] * count, pa.timestamp("us", "UTC")),
            "attrs": pa.array([[("source", "tail")]] * count, ATTRS),
            "said": pa.array(said, kind or pa.string()),
        }
    )


def rows(
    said: Sequence[Any], *formats: str, zone: str = "UTC", kind: pa.DataType | None = None
) -> list[dict[str, Any]]:
    (found,) = TimeStage("said", "at", formats, zone)(iter([batch_of(said, kind)]))
    found.validate(full=True)
    listed: list[dict[str, Any]] = found.to_pylist()
    return listed


def times(said: Sequence[Any], *formats: str, **more: Any) -> list[datetime | None]:
    return [row["at"] for row in rows(said, *formats, **more)]


def year(moment: datetime) -> str:
    """glibc does not pad the year of ``strftime``."""
    return f"{moment.year:04}"


@pytest.mark.slow
@given(st.lists(MOMENTS, min_size=1, max_size=9))
def test_times_written_by_python_are_read_back(moments: list[datetime]) -> None:
    assert times([m.isoformat() for m in moments], "iso8601") == moments
    assert times([m.isoformat(timespec="microseconds") for m in moments], "rfc3339") == moments
    formats = "%d.%m.%Y %H:%M:%S,%f %z", "%A %e %B %Y %I:%M:%S.%f %p %z", "%Y/%j %T.%f%z"
    for pattern in formats:
        said = [m.strftime(pattern.replace("%Y", year(m))) for m in moments]
        assert times(said, pattern) == moments
    whole = [m.replace(microsecond=0) for m in moments]
    assert times([format_datetime(m) for m in whole], "rfc2822") == whole
    said = [m.strftime(f"%d/%b/{year(m)}:%H:%M:%S %z") for m in whole]
    assert times(said, "common_log") == whole


@given(st.lists(MOMENTS, min_size=1, max_size=9))
def test_time_filter_reads_numbers_and_numeric_strings(moments: list[datetime]) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    micros = [(moment - epoch) // timedelta(microseconds=1) for moment in moments]
    assert times(micros, "unix_us", kind=pa.int64()) == moments
    assert times([str(number) for number in micros], "unix_us") == moments
    signed = [f"{'-' * (n < 0)}{abs(n) // 10**6}.{abs(n) % 10**6:06}" for n in micros]
    assert times(signed, "unix") == moments
    seconds = [number // 10**6 for number in micros]
    whole = [epoch + timedelta(seconds=number) for number in seconds]
    assert times(seconds, "unix", kind=pa.int64()) == whole
    assert times([float(number) for number in seconds], "unix", kind=pa.float64()) == whole
    assert times([number * 1000 for number in seconds], "unix_ms", kind=pa.int64()) == whole


@given(st.lists(LATELY, min_size=1, max_size=9))
def test_time_without_a_zone_is_in_the_zone_of_the_flow(walls: list[datetime]) -> None:
    zone = ZoneInfo("Asia/Kolkata")  # without jumps of its clock since 1945
    assert times([wall.isoformat(" ") for wall in walls], "iso8601", zone="Asia/Kolkata") == [
        wall.replace(tzinfo=zone) for wall in walls
    ]


@given(st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=9), st.sampled_from(
    [*time_formats.NAMED, "%Y-%m-%d %H:%M:%S", "%b %d %H:%M", "%y%m%d %I%p", "%Y %j"]
))  # fmt: skip
def test_any_text_is_a_time_or_has_a_reason(said: list[str | None], pattern: str) -> None:
    for row in rows(said, pattern):
        assert (row["at"] is not None or row["said"] is None) != (ERROR in row["attrs"])


@pytest.mark.parametrize(
    ("said", "pattern", "expected"),
    [
        ("Nov 21 09:15", "%b %d %H:%M", datetime(2026, 11, 21, 9, 15)),
        ("Dec 30 23:00", "%b %d %H:%M", datetime(2025, 12, 30, 23)),
        ("12 am 21.11.26", "%I %p %d.%m.%y", datetime(2026, 11, 21)),
        ("21.11.99 100%", "%d.%m.%y 100%%", datetime(1999, 11, 21)),
        ("20261121T091507.5Z", "iso8601", datetime(2026, 11, 21, 9, 15, 7, 500_000)),
        ("2026-11-21T09:15.5", "iso8601", datetime(2026, 11, 21, 9, 15, 30)),
        ("20261121T0915,25Z", "iso8601", datetime(2026, 11, 21, 9, 15, 15)),
        ("2026-11-21", "iso8601", datetime(2026, 11, 21)),
        ("  2026-11-21  ", "iso8601", datetime(2026, 11, 21)),
        ("[21/Nov/2026:09:15:07 +0100]", "common_log", datetime(2026, 11, 21, 8, 15, 7)),
        ("Sat, 21 Nov 2026 09:15 GMT (noon)", "rfc2822", datetime(2026, 11, 21, 9, 15)),
        ("1795252507.1234567", "unix", datetime(2026, 11, 21, 9, 15, 7, 123_456)),
        ("1795252507123456789", "unix_ns", datetime(2026, 11, 21, 9, 15, 7, 123_456)),
        ("2026-02-30", "iso8601", None),
        ("2026-11-21T24:00:00Z", "rfc3339", None),
        ("2026-11-21T09:15:07", "rfc3339", None),
        ("2026-11-21T09:15:07+25:00", "rfc3339", None),
        ("2026 366", "%Y %j", None),
        ("2024 366", "%Y %j", datetime(2024, 12, 31)),
        ("13 pm 21.11.26", "%I %p %d.%m.%y", None),
        ("0001-01-01T00:00:00+01:00", "iso8601", None),
        ("999999999999", "unix", None),
        ("", "iso8601", None),
    ],
)
def test_each_time_format_is_read(said: str, pattern: str, expected: datetime | None) -> None:
    assert times([said], pattern) == [expected and expected.replace(tzinfo=UTC)]


def test_the_first_format_that_fits_counts() -> None:
    said = ["21.11.2026", "nothing", "2026-11-21", None, "01.02.2026"]
    found = rows(said, "%m.%d.%Y", "%d.%m.%Y", "iso8601")
    day = datetime(2026, 11, 21, tzinfo=UTC)
    january = datetime(2026, 1, 2, tzinfo=UTC)
    assert [row["at"] for row in found] == [day, None, day, None, january]
    assert [row["attrs"] for row in found] == [
        [("source", "tail"), *([ERROR] if wrong else [])] for wrong in (0, 1, 0, 0, 0)
    ]


def test_numbers_beyond_the_calendar_are_errors() -> None:
    numbers = [float("nan"), float("inf"), 1e300, 0.5, None]
    found = rows(numbers, "unix", kind=pa.float64())
    half = datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    assert [row["at"] for row in found] == [None, None, None, half, None]
    assert [ERROR in row["attrs"] for row in found] == [True, True, True, False, False]
    assert times([2**63 - 1, -(2**63)], "unix_ms", kind=pa.int64()) == [None, None]


def test_ts_is_kept_where_the_time_is_invalid_or_far() -> None:
    stage = Bounded(TimeStage("said", "ts", ("iso8601",), "UTC"), 86_400, 2)
    batches = stage(iter([batch_of(["2026-11-21T13:00:00Z", "x", "1999-01-01", None])]))
    found = pa.Table.from_batches(batches).to_pylist()
    assert [row["ts"].hour for row in found] == [13, 12, 12, 12]
    assert [dict(row["attrs"]) for row in found] == [
        {"source": "tail"},
        {"source": "tail", "parse_error": "time: said is of no format"},
        {"source": "tail", "ts_refused": "1999-01-01T00:00:00.000000Z"},
        {"source": "tail"},
    ]


def problem(options: str, before: str = "parse: {format: json, schema: 'a STRING, n INT'}") -> str:
    text = (
        "flow: f\nsources: [tail: {paths: [/a]}]\nfilters:\n"
        f"  - {before}\n  - time: {options}\nsinks: [noop]\n"
    )
    try:
        check_flow(text)
    except SpecError as error:
        return str(error)
    return ""


def test_invalid_options_are_reported() -> None:
    assert problem("{column: a, formats: ['%Y-%m-%d', unix], to: at}") == ""
    assert problem("{column: n, formats: [unix]}") == ""
    assert 'did you mean "iso8601"' in problem("{column: a, formats: [iso8061]}")
    assert "unknown directive %Q" in problem("{column: a, formats: ['%Q']}")
    assert "%d occurs twice" in problem("{column: a, formats: ['%d %d %m']}")
    assert "one day" in problem("{column: a, formats: ['%H:%M']}")
    assert "%I with %p" in problem("{column: a, formats: ['%F %I']}")
    assert "a year beside %j" in problem("{column: a, formats: ['%j']}")
    assert "there is no column b" in problem("{column: b}")
    assert "n is a number, which the format iso8601 does not read" in problem("{column: n}")
    assert "host is a string: expected a timestamp" in problem("{column: a, to: host}")
    assert "put select after time" in problem("{column: host}", "select: [host]")
