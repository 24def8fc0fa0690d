"""Windows against an oracle that looks at the clock on the wall minute by minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.platform.options.windows import HORIZON_DAYS, Window, is_open, opens_at

CHANGES = {
    "UTC": datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC),
    "Europe/Berlin": datetime(2026, 3, 29, 1, tzinfo=UTC),
    "Europe/Lisbon": datetime(2026, 10, 25, 1, tzinfo=UTC),
    "America/New_York": datetime(2026, 11, 1, 6, tzinfo=UTC),
    "America/St_Johns": datetime(2026, 3, 8, 5, 30, tzinfo=UTC),
    "Asia/Kathmandu": datetime(2026, 6, 1, tzinfo=UTC),
    "Australia/Lord_Howe": datetime(2026, 4, 4, 15, tzinfo=UTC),
    "Pacific/Apia": datetime(2011, 12, 30, 10, tzinfo=UTC),
}
"""For each zone with clock changes, the time of one."""
minutes = st.one_of(st.sampled_from(range(30, 240, 30)), st.integers(0, 1439))
days = st.one_of(st.just(frozenset({6})), st.frozensets(st.integers(0, 6), min_size=1))
windows = st.lists(st.builds(Window, days, minutes, minutes), max_size=2)


def near(name: str, days: float) -> tuple[ZoneInfo, datetime]:
    return ZoneInfo(name), CHANGES[name] + timedelta(days=days)


places = st.builds(near, st.sampled_from(sorted(CHANGES)), st.floats(-9, 9) | st.floats(-0.2, 0.2))


def open_minutes(found: list[Window]) -> set[tuple[int, int]]:
    """Weekday and minute of all open minutes, found by iteration."""
    held: set[tuple[int, int]] = set()
    for window in found:
        for day in window.days:
            at = (day, window.begin)
            while True:
                held.add(at)
                at = (at[0], at[1] + 1) if at[1] < 1439 else ((at[0] + 1) % 7, 0)
                if at[1] == window.end % 1440:
                    break
    return held


def shown(moment: datetime, zone: ZoneInfo) -> tuple[int, int]:
    wall = moment.astimezone(zone)
    return wall.weekday(), wall.hour * 60 + wall.minute


def minutes_from(moment: datetime, days: int) -> Iterator[datetime]:
    at, until = moment, moment + timedelta(days=days)
    while at <= until:
        yield at
        at = at.replace(second=0, microsecond=0) + timedelta(minutes=1)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(windows, places)
def test_windows_are_open_as_the_local_clock_says(
    found: list[Window], place: tuple[ZoneInfo, datetime]
) -> None:
    (zone, moment), held = place, open_minutes(found)
    for at in minutes_from(moment, 1):
        assert is_open(found, at, zone) == (not found or shown(at, zone) in held), at


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(windows, places)
def test_next_opening_is_the_first_open_minute(
    found: list[Window], place: tuple[ZoneInfo, datetime]
) -> None:
    (zone, moment), held = place, open_minutes(found)
    ahead = minutes_from(moment, HORIZON_DAYS)
    expected = next((at for at in ahead if not found or shown(at, zone) in held), None)
    first = opens_at(found, moment.astimezone(zone), zone)
    assert (first and first.astimezone(UTC)) == expected
