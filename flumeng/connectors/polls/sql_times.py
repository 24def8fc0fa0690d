"""Times as a column of a database has them: with a zone, or without as its writers mean them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUARTER = timedelta(minutes=15)
_SET_BACK = 12
"""Clocks are set at quarters of an hour, by fewer of them than this."""


def constant(moment: datetime, zone: ZoneInfo | None) -> str:
    """As a column shows it whose times are of ``zone``, or have one when it is None."""
    if zone is None:
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00:00"
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S.%f}"


def bound(moment: datetime, zone: ZoneInfo | None) -> str:
    """Before what all times of a column are that are before ``moment``, and none that comes later
    is: where the clock is set back, that is where it is set to."""
    if zone is None:
        return constant(moment, zone)
    quarter = EPOCH + (moment - EPOCH) // _QUARTER * _QUARTER
    later = [quarter + number * _QUARTER for number in range(1, _SET_BACK)]
    return min(constant(each, zone) for each in (moment, *later))
