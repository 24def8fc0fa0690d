"""Windows in which a site may be changed: their syntax, and when they are open."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from flumeng.platform.options.windows import Window, is_open, opens_at, parse_hours, parse_window

BERLIN = ZoneInfo("Europe/Berlin")
EVERY_DAY = frozenset(range(7))


def berlin(text: str, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold)


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("mon-fri 09:00-16:00", Window(frozenset(range(5)), 540, 960)),
        ("sat,sun 22:00-06:00", Window(frozenset({5, 6}), 1320, 360)),
        ("daily 00:00-24:00", Window(EVERY_DAY, 0, 1440)),
        ("daily 00:00-00:00", Window(EVERY_DAY, 0, 0)),
        ("  Sat-Mon,Wed 00:30 - 23:59 ", Window(frozenset({5, 6, 0, 2}), 30, 1439)),
        ("mon-sun 01:00-02:00", Window(EVERY_DAY, 60, 120)),
    ],
)
def test_window_is_parsed(text: str, window: Window) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected DAYS HH:MM-HH:MM, as mon-fri 09:00-16:00"),
        ("mon-fri", "expected DAYS HH:MM-HH:MM"),
        ("mon 9:00-16:00", "expected DAYS HH:MM-HH:MM"),
        ("mon, tue 09:00-16:00", "expected DAYS HH:MM-HH:MM"),
        ("mon-fry 09:00-16:00", "'mon-fry' is no day: expected mon, tue, "),
        ("mon,,tue 09:00-16:00", "'' is no day"),
        ("mon- 09:00-16:00", "'mon-' is no day"),
        ("daily 25:00-26:00", "25:00 is no time: expected 00:00 to 24:00"),
        ("daily 09:60-10:00", "09:60 is no time"),
        ("daily 09:00-24:01", "24:01 is no time"),
        ("daily 24:00-06:00", "a window begins at 00:00 to 23:59"),
    ],
)
def test_invalid_window_is_refused_with_the_expected_form(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_window(text)


@pytest.mark.parametrize(
    ("text", "moment", "expected"),
    [
        ("mon-fri 09:00-16:00", "2026-11-23 09:00", True),
        ("mon-fri 09:00-16:00", "2026-11-23 08:59:59", False),
        ("mon-fri 09:00-16:00", "2026-11-23 16:00", False),
        ("mon-fri 09:00-16:00", "2026-11-22 12:00", False),
        ("sun 22:00-06:00", "2026-11-23 05:59:59", True),
        ("sun 22:00-06:00", "2026-11-22 05:00", False),
        ("sun 22:00-22:00", "2026-11-23 21:59", True),
        ("daily 00:00-24:00", "2026-11-23 00:00", True),
    ],
)
def test_window_is_open_at_its_times(text: str, moment: str, expected: bool) -> None:
    assert is_open([parse_window(text)], berlin(moment), BERLIN) == expected


def test_without_windows_a_site_is_always_open() -> None:
    assert is_open([], berlin("2026-11-23 03:00"), BERLIN)
    assert opens_at([], berlin("2026-11-23 03:00"), BERLIN) == berlin("2026-11-23 03:00")


@pytest.mark.parametrize(
    ("text", "moment", "expected"),
    [
        ("mon-fri 09:00-16:00", "2026-11-23 12:30", "2026-11-23 12:30"),
        ("mon-fri 09:00-16:00", "2026-11-20 16:00", "2026-11-23 09:00"),
        ("mon 09:00-10:00", "2026-11-23 10:00", "2026-11-30 09:00"),
        # the clock leaps from 02:00 to 03:00 on 2026-03-29
        ("sun 02:30-04:00", "2026-03-29 01:00", "2026-03-29 03:00"),
        ("sun 02:00-03:00", "2026-03-28 12:00", "2026-04-05 02:00"),
        ("sun 02:00-03:00", "2026-03-22 12:00", None),
        # it goes back from 03:00 to 02:00 on 2026-10-25
        ("sun 01:00-02:30", "2026-10-25 02:40", "2026-10-25 02:00 again"),
        ("sun 02:30-02:40", "2026-10-25 02:45", "2026-10-25 02:30 again"),
    ],
)
def test_next_opening_is_computed(text: str, moment: str, expected: str | None) -> None:
    found = opens_at([parse_window(text)], berlin(moment), BERLIN)
    if expected is None:
        assert found is None
        return
    wanted = berlin(expected.removesuffix(" again"), fold=int(expected.endswith("again")))
    assert found is not None
    assert found.astimezone(UTC) == wanted.astimezone(UTC)


def test_window_is_in_the_time_zone_of_its_site() -> None:
    window = [parse_window("mon-fri 09:00-16:00")]
    moment = datetime(2026, 11, 23, 0, 30, tzinfo=UTC)
    assert is_open(window, moment, ZoneInfo("Asia/Tokyo"))
    assert not is_open(window, moment, BERLIN)
    assert opens_at(window, moment, BERLIN) == moment + timedelta(hours=7.5)


@pytest.mark.parametrize(
    ("text", "opened", "closed"),
    [
        ("22:00-06:00 Europe/Berlin", "2026-12-07T22:00", "2026-12-07T21:59"),
        ("mon-fri 22:00-06:00 Europe/Berlin", "2026-12-12T05:59", "2026-12-12T22:30"),
        (" 09:00 - 17:00  Asia/Tokyo ", "2026-12-07T01:00", "2026-12-07T09:00"),
    ],
)
def test_hours_have_days_and_a_zone(text: str, opened: str, closed: str) -> None:
    hours = parse_hours(text)
    assert hours.is_open(berlin(opened))
    assert not hours.is_open(berlin(closed))
    first = hours.opens_at(berlin(closed))
    assert first is not None
    assert hours.is_open(first)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("22:00-06:00", "no time zone"),
        ("22:00-06:00 Mars/Base", "'Mars/Base' is no time zone: expected HH:MM-HH:MM ZONE"),
        ("22-06 Europe/Berlin", "is no window"),
        ("mon 22:00-25:00 Europe/Berlin", "25:00 is no time"),
        ("yesterday 22:00-23:00 UTC", "'yesterday' is no day"),
        ("", "no time zone"),
    ],
)
def test_invalid_hours_are_explained(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_hours(text)
