"""Weekly windows in a time zone: when a site may be changed, or read. Pure. Local time counts: a
repeated hour is open twice, a skipped one never."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from flumeng.platform.options.patterns import check_timezone

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
HORIZON_DAYS = 8
_FORM = re.compile(r"(\S+)\s+(\d\d):(\d\d)\s*-\s*(\d\d):(\d\d)")
_HOURS_ALONE = re.compile(r"\d\d:\d\d\s*-\s*\d\d:\d\d")
HOURS = "expected HH:MM-HH:MM ZONE, as 22:00-06:00 Europe/Berlin, perhaps after days as mon-fri"
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Window:
    """A weekly window. ``days``: on which it begins, Monday is 0; ``begin`` and ``end``: minutes of
    the local day. With ``end`` not after ``begin`` it ends the next day."""

    days: frozenset[int]
    begin: int
    end: int


def parse_window(text: str) -> Window:
    """Parse text like ``mon-fri 09:00-16:00`` or ``daily 00:00-24:00``. Raises ``ValueError``."""
    form = _FORM.fullmatch(text.strip().lower())
    if form is None:
        raise ValueError(
            f"{text!r} is no window: expected DAYS HH:MM-HH:MM, as mon-fri 09:00-16:00"
        )
    begin, end = _minute(form[2], form[3]), _minute(form[4], form[5])
    if begin == DAY_MINUTES:
        raise ValueError(f"{text!r}: a window begins at 00:00 to 23:59")
    return Window(_days(form[1]), begin, end)


@dataclass(frozen=True)
class Hours:
    """A window with its time zone."""

    window: Window
    zone: ZoneInfo

    def is_open(self, moment: datetime) -> bool:
        """Return whether the window is open at ``moment`` (aware)."""
        return is_open([self.window], moment, self.zone)

    def opens_at(self, moment: datetime) -> datetime | None:
        """As ``opens_at`` below, of this window alone."""
        return opens_at([self.window], moment, self.zone)


@lru_cache(maxsize=256)
def parse_hours(text: str) -> Hours:
    """Parse text like ``22:00-06:00 Europe/Berlin``, daily or after ``mon-fri``. Raises
    ``ValueError``."""
    window, _, zone = text.strip().rpartition(" ")
    if not window:
        raise ValueError(f"{text!r} has no time zone: {HOURS}")
    try:
        check_timezone(zone)
    except ValueError as error:
        raise ValueError(f"{zone!r} is no time zone: {HOURS}") from error
    daily = _HOURS_ALONE.fullmatch(window.strip()) is not None
    return Hours(parse_window(f"daily {window}" if daily else window), ZoneInfo(zone))


def check_hours(text: str) -> None:
    """Raise ValueError as ``parse_hours``."""
    parse_hours(text)


def is_open(windows: Sequence[Window], moment: datetime, zone: ZoneInfo) -> bool:
    """Return whether a window is open at ``moment`` (aware); True when there are no windows."""
    wall = moment.astimezone(zone)
    minute = wall.hour * 60 + wall.minute
    return not windows or any(
        _holds(window, wall.weekday(), minute)
        or _holds(window, (wall.weekday() - 1) % 7, minute + DAY_MINUTES)
        for window in windows
    )


def opens_at(windows: Sequence[Window], moment: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first open minute from ``moment`` (aware) on; None if none in ``HORIZON_DAYS``."""
    at = moment.astimezone(UTC)
    until = at + timedelta(days=HORIZON_DAYS)
    while not is_open(windows, at, zone):
        at = at.replace(second=0, microsecond=0) + _MINUTE
        if at > until:
            return None
    return at.astimezone(zone)


def _holds(window: Window, day: int, minute: int) -> bool:
    """Return whether the window that begins on weekday ``day`` contains that minute of it."""
    end = window.end if window.end > window.begin else window.end + DAY_MINUTES
    return day in window.days and window.begin <= minute < end


def _minute(hours: str, minutes: str) -> int:
    of_day = int(hours) * 60 + int(minutes)
    if int(minutes) > 59 or of_day > DAY_MINUTES:
        raise ValueError(f"{hours}:{minutes} is no time: expected 00:00 to 24:00")
    return of_day


def _days(text: str) -> frozenset[int]:
    if text == "daily":
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(
                f"{part!r} is no day: expected {', '.join(DAYS)}, a range as mon-fri, or daily"
            )
        begin = DAYS.index(first)
        more = (DAYS.index(last) - begin) % 7 if dash else 0
        days.update((begin + ahead) % 7 for ahead in range(more + 1))
    return frozenset(days)
