"""Time stamps as network devices and old daemons write them, read for many rows at once.

Two forms, each with parts that may be missing::

    [NUMBER:] [*|.] [YEAR] Nov 1[1] [YEAR] 9:15:07[.123] [YEAR | ZONE:] [:]
    [NUMBER:] [*|.] 2026-11-21(T| )09:15:07[.123][Z|+01:00|+0100|+01] [:]

``NUMBER:`` counts messages and ``*`` marks a clock that is not synchronised (Cisco IOS). A month
is written in any case, a fraction behind a point or a comma, and a space or the end follows. A year
behind the time is one from 1970 to 2099. A ``ZONE`` is a name of capitals that ``: %`` follows, as
Cisco writes it; only UTC and GMT say where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flumeng.filters.byte_column import ByteColumn, Mask, Positions
from flumeng.filters.cursor import Cursor
from flumeng.filters.timestamps import (
    FRACTION_DIGITS,
    SECOND,
    clock_seconds,
    days_since_epoch,
    in_calendar,
    month_number,
    year_of_receipt,
)

_ZONE_LETTERS = 5


@dataclass(frozen=True)
class DeviceTimes:
    """``micros`` since the epoch, in UTC but where ``local``: there no zone was named.

    ``behind`` is where the time ends; all but ``valid`` is of no meaning where that is false.
    """

    micros: Positions
    local: Mask
    behind: Positions
    valid: Mask


def read(flat: ByteColumn, starts: Positions, ends: Positions, received: Positions) -> DeviceTimes:
    """The time at each of ``starts``, in the year that ``received`` says where it names none."""
    cursor = Cursor(flat, starts, ends)
    _skip_counter(cursor)
    cursor.skip("*.")
    origin = cursor.places
    year, width = cursor.number(4)
    dashed = (width == 4) & (cursor.byte() == ord("-"))
    month, day, valid = _dashed_date(cursor)
    behind_date = cursor.places
    cursor.return_to(origin, ~dashed)
    named_year, named_month, named_day, named_valid = _named_date(cursor)
    cursor.return_to(behind_date, dashed)
    year = np.where(dashed, year, named_year)
    month = np.where(dashed, month, named_month)
    day = np.where(dashed, day, named_day)
    valid = np.where(dashed, valid, named_valid)
    seconds, fraction, clock_valid = _clock(cursor)
    late_year = _year_behind(cursor, ~dashed & (year < 0))
    year = np.where(late_year < 0, year, late_year)
    year = np.where(year < 0, year_of_receipt(month, day, received), year)
    zone, zoned, zone_valid = _zone(cursor)
    cursor.skip(":")
    days, day_valid = days_since_epoch(year, month, day)
    valid &= clock_valid & zone_valid & day_valid & cursor.at_break()
    micros = (days * 86_400 + seconds - zone) * SECOND + fraction
    return DeviceTimes(micros, ~zoned, cursor.places, valid & in_calendar(micros))


def _skip_counter(cursor: Cursor) -> None:
    """``000123: ``, or ``: `` alone as NX-OS writes it."""
    cursor.skip_spaces()
    origin = cursor.places
    cursor.number(10)
    colon = cursor.skip(":")
    cursor.return_to(origin, ~(cursor.skip_spaces() & colon))


def _dashed_date(cursor: Cursor) -> tuple[Positions, Positions, Mask]:
    """``-11-21`` and what parts it from the time: month, day, validity."""
    valid = cursor.skip("-")
    month, width = cursor.number(2)
    valid &= (width == 2) & cursor.skip("-")
    day, width = cursor.number(2)
    return month, day, valid & (width == 2) & cursor.skip("T ")


def _named_date(cursor: Cursor) -> tuple[Positions, Positions, Positions, Mask]:
    """``[2026] Nov 1[1] [2026]`` and a space: year (-1 without), month, day, validity."""
    first_year, width = cursor.number(4)
    valid = (width == 0) | ((width == 4) & cursor.skip_spaces())
    year = np.where(width == 4, first_year, -1)
    letters = np.stack([cursor.byte(ahead) for ahead in range(3)])
    month, month_valid = month_number(letters.astype(np.int64))
    cursor.move(month_valid, 3)
    valid &= month_valid & cursor.skip_spaces()
    day, width = cursor.number(2)
    valid &= (width > 0) & cursor.skip_spaces()
    origin = cursor.places
    second_year, width = cursor.number(4)
    follows = (width == 4) & (cursor.byte() == ord(" ")) & (year < 0)
    cursor.return_to(origin, ~follows)
    cursor.skip_spaces()
    return np.where(follows, second_year, year), month, day, valid


def _clock(cursor: Cursor) -> tuple[Positions, Positions, Mask]:
    """``9:15:07.123``: seconds of the day, microseconds, validity."""
    hour, width = cursor.number(2)
    valid = (width > 0) & cursor.skip(":")
    minute, width = cursor.number(2)
    valid &= (width == 2) & cursor.skip(":")
    second, width = cursor.number(2)
    seconds, clock_valid = clock_seconds(hour, minute, second)
    valid &= (width == 2) & clock_valid
    pointed = cursor.skip(".,")
    if not pointed.any():
        return seconds, np.zeros(len(seconds), np.int64), valid
    unpointed = cursor.places
    fraction, width = cursor.number(FRACTION_DIGITS)
    cursor.return_to(unpointed, ~pointed)
    nanos = fraction * 10 ** (FRACTION_DIGITS - width)
    return seconds, np.where(pointed, nanos // 1000, 0), valid & (~pointed | (width > 0))


def _year_behind(cursor: Cursor, where: Mask) -> Positions:
    """``2026`` behind the time and before a space, an end or a colon; -1 without."""
    origin = cursor.places
    spaced = cursor.skip_spaces()
    year, width = cursor.number(4)
    found = where & spaced & (width == 4) & (year >= 1970) & (year < 2100)
    found &= cursor.at_break() | (cursor.byte() == ord(":"))
    cursor.return_to(origin, ~found)
    return np.where(found, year, -1)


def _zone(cursor: Cursor) -> tuple[Positions, Mask, Mask]:
    """Seconds east of UTC, where a zone says so, and where what stands here is well formed."""
    zulu = cursor.skip("Z")
    sign = cursor.byte()
    signed = cursor.skip("+-")
    seconds = np.zeros(len(zulu), np.int64)
    valid = np.ones(len(zulu), np.bool_)
    if signed.any():
        unsigned = cursor.places
        hour, width = cursor.number(2)
        valid = ~signed | ((width == 2) & (hour < 24))
        colon = cursor.skip(":")
        minute, width = cursor.number(2)
        valid &= ~signed | ((minute < 60) & ((width == 2) | ((width == 0) & ~colon)))
        seconds = np.where(sign == ord("-"), -1, 1) * (hour * 3600 + minute * 60)
        cursor.return_to(unsigned, ~signed)
    universal = _zone_name(cursor)
    return np.where(signed, seconds, 0), zulu | signed | universal, valid


def _zone_name(cursor: Cursor) -> Mask:
    """Pass over `` CET`` before ``: %``, and tell where it is UTC or GMT."""
    origin = cursor.places
    found = cursor.skip(" ")
    letters = [cursor.byte(ahead) for ahead in range(3)]
    count = np.zeros(len(found), np.int64)
    going = found.copy()
    for _ in range(_ZONE_LETTERS):
        byte = cursor.byte()
        going &= (byte >= ord("A")) & (byte <= ord("Z"))
        if not going.any():
            break
        count += going
        cursor.move(going)
    found &= (count >= 3) & (cursor.byte() == ord(":"))
    found &= (cursor.byte(1) == ord(" ")) & (cursor.byte(2) == ord("%"))
    cursor.return_to(origin, ~found)
    universal = np.zeros(len(found), np.bool_)
    for name in ("UTC", "GMT"):
        spelled = found & (count == 3)
        for byte, letter in zip(letters, name, strict=True):
            spelled &= byte == ord(letter)
        universal |= spelled
    return universal
