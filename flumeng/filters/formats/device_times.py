"""Times of network devices and old daemons, for many rows at once.

Two forms with optional parts::

    [NUMBER:] [*|.] [YEAR] Nov 1[1] [YEAR] 9:15:07[.123] [AM|PM[.123]] [YEAR] [+01:00] [ZONE] [:]
    [NUMBER:] [*|.] 2026-11-21(T| )09:15:07[.123][Z|+01:00|+0100|+01] [ZONE] [:]

``NUMBER:`` counts messages, and ``*`` marks an unsynchronised clock (Cisco IOS). A year after the
time is from 1970 to 2099. A ``ZONE`` is one of _ZONES, or capitals before ``: %``, or before a
colon after a counter or a mark. Only UTC and GMT are used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flumeng.events.byte_column import ByteColumn, Bytes, Mask, Positions
from flumeng.filters import iso8601
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
_ZONES = (
    b"UTC GMT WET WEST CET CEST MEZ MESZ EET EEST MSK EST EDT CST CDT MST MDT PST PDT AKST AKDT "
)
_ZONES += b"HST BRT ART IST SGT HKT JST KST AWST ACST ACDT AEST AEDT NZST NZDT"
"""Zone names that are no names of hosts; they are skipped, since most are ambiguous."""


@dataclass(frozen=True)
class DeviceTimes:
    """Times read from rows. ``micros``: since the epoch, in UTC, or local where ``local`` (neither
    an offset nor UTC or GMT given). ``behind``: the end of the time. ``shaped``: rows with a time;
    ``valid``: rows whose time exists in the calendar."""

    micros: Positions
    local: Mask
    behind: Positions
    shaped: Mask
    valid: Mask


def read(
    flat: ByteColumn,
    starts: Positions,
    ends: Positions,
    received: Positions,
    trusted: Mask | None = None,
) -> DeviceTimes:
    """Read the time at each of ``starts``; a missing year comes from ``received``. ``trusted``:
    rows where earlier parts of a Cisco header were found."""
    cursor = Cursor(flat, starts, ends)
    counted = skip_counter(cursor)
    marked = cursor.skip("*.")
    origin = cursor.places
    iso = iso8601.read(flat, origin, ends)
    year, month, day, shaped = _named_date(cursor)
    seconds, fraction, clocked, clock_valid = _clock(cursor)
    late_year = _year_behind(cursor, year < 0)
    year = np.where(late_year < 0, year, late_year)
    year = np.where(year < 0, year_of_receipt(month, day, received), year)
    east, zoned = _offset(cursor)
    cursor.return_to(iso.behind, iso.shaped)
    certain = counted | marked
    universal = _zone_name(cursor, certain if trusted is None else certain | trusted)
    cursor.skip(":")
    days, day_valid = days_since_epoch(year, month, day)
    named = (days * 86_400 + seconds - east) * SECOND + fraction
    named_valid = day_valid & clock_valid & in_calendar(named)
    shaped = ((shaped & clocked) | iso.shaped) & cursor.at_break()
    valid = shaped & np.where(iso.shaped, iso.valid, named_valid)
    local = np.where(iso.shaped, iso.local, ~zoned) & ~universal
    micros = np.where(iso.shaped, iso.micros, named)
    return DeviceTimes(micros, local, cursor.places, shaped, valid)


def skip_counter(cursor: Cursor) -> Mask:
    """Skip ``000123: `` of IOS, ``: `` of NX-OS or ``:`` of ASA; return the rows with one."""
    cursor.skip_spaces()
    origin = cursor.places
    _, width = cursor.number(10)
    colon = cursor.skip(":")
    spaced = cursor.skip_spaces()
    matched: Mask = colon & (spaced | (width == 0)) & (cursor.byte() != ord(":"))
    cursor.return_to(origin, ~matched)
    return matched


def _named_date(cursor: Cursor) -> tuple[Positions, Positions, Positions, Mask]:
    """Read ``[2026] Nov 1[1] [2026]`` and a space; return year or -1, month, day, validity."""
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


def _clock(cursor: Cursor) -> tuple[Positions, Positions, Mask, Mask]:
    """Read ``9:15:07.123`` or ``9:15:07 AM.123``; return seconds, microseconds, which rows have a
    time, and validity."""
    hour, width = cursor.number(2)
    shaped = (width > 0) & cursor.skip(":")
    minute, width = cursor.number(2)
    shaped &= (width == 2) & cursor.skip(":")
    second, width = cursor.number(2)
    shaped &= width == 2
    halved, late = _half_of_day(cursor, shaped & (hour >= 1) & (hour <= 12))
    hour = np.where(halved, hour % 12 + 12 * late, hour)
    seconds, valid = clock_seconds(hour, minute, second)
    pointed = cursor.skip(".,")
    if not pointed.any():
        return seconds, np.zeros(len(seconds), np.int64), shaped, valid
    unpointed = cursor.places
    fraction, width = cursor.number(FRACTION_DIGITS)
    cursor.return_to(unpointed, ~pointed)
    nanos = fraction * 10 ** (FRACTION_DIGITS - width)
    micros = np.where(pointed, nanos // 1000, 0)
    return seconds, micros, shaped & (~pointed | (width > 0)), valid


def _half_of_day(cursor: Cursor, where: Mask) -> tuple[Mask, Mask]:
    """Read `` AM`` or `` PM``; return the rows with one of them, and those with PM."""
    letter = cursor.byte(1)
    late = letter == ord("P")
    matched = where & (late | (letter == ord("A")))
    if not matched.any():
        return matched, matched
    behind = cursor.byte(3)
    matched &= (
        (cursor.byte() == ord(" "))
        & (cursor.byte(2) == ord("M"))
        & ((behind == ord(".")) | (behind == ord(" ")))
    )
    cursor.move(matched, 3)
    return matched, matched & late


def _year_behind(cursor: Cursor, where: Mask) -> Positions:
    """Read a year such as ``2026`` before a space, an end or a colon; -1 when there is none."""
    origin = cursor.places
    spaced = cursor.skip_spaces()
    if not (where & spaced).any():
        cursor.places = origin
        return np.full(len(origin), -1)
    year, width = cursor.number(4)
    matched = where & spaced & (width == 4) & (year >= 1970) & (year < 2100)
    matched &= cursor.at_break() | (cursor.byte() == ord(":"))
    cursor.return_to(origin, ~matched)
    return np.where(matched, year, -1)


def _zone_name(cursor: Cursor, trusted: Mask) -> Mask:
    """Skip a zone: one of _ZONES, or capitals before ``: %``, in ``trusted`` rows before any colon.
    Return the rows with UTC or GMT."""
    origin = cursor.places
    spaced = cursor.skip(" ")
    if not spaced.any():
        return spaced
    letters = [cursor.byte(ahead) for ahead in range(_ZONE_LETTERS)]
    count = np.zeros(len(spaced), np.int64)
    going = spaced.copy()
    for _ in range(_ZONE_LETTERS):
        byte = cursor.byte()
        going = going & (byte >= ord("A")) & (byte <= ord("Z"))
        if not going.any():
            break
        count += going
        cursor.move(going)
    zone_end = cursor.places
    attached = ~cursor.skip(" ")
    matched = spaced & (count >= 3) & (cursor.byte() == ord(":")) & (cursor.byte(1) == ord(" "))
    matched &= trusted | (attached & (cursor.byte(2) == ord("%")))
    cursor.return_to(zone_end, ~matched)
    named = spaced & (count >= 3) & ~matched & cursor.at_break()
    named &= _is_one_of(letters, count, _ZONES.split())
    cursor.return_to(origin, ~(matched | named))
    universal: Mask = (matched | named) & _is_one_of(letters, count, [b"UTC", b"GMT"])
    return universal


def _is_one_of(letters: list[Bytes], count: Positions, names: list[bytes]) -> Mask:
    matched = np.zeros(len(count), np.bool_)
    for name in names:
        spelled = count == len(name)
        for byte, letter in zip(letters, name, strict=False):
            spelled &= byte == letter
        matched |= spelled
    return matched


def _offset(cursor: Cursor) -> tuple[Positions, Mask]:
    """Read ``Z``, ``+01:00`` or `` +0100``; return seconds east of UTC, and its presence."""
    origin = cursor.places
    zulu = cursor.skip("Z") & cursor.at_break()
    cursor.return_to(origin, ~zulu)
    cursor.move(~zulu & (cursor.byte() == ord(" ")))
    sign = cursor.byte()
    matched = cursor.skip("+-") & ~zulu
    hour, width = cursor.number(2)
    matched &= width == 2
    cursor.skip(":")
    minute, width = cursor.number(2)
    matched &= (width == 2) & (hour < 24) & (minute < 60) & cursor.at_break()
    cursor.return_to(origin, ~(zulu | matched))
    cursor.return_to(origin + 1, zulu)
    east = np.where(sign == ord("-"), -1, 1) * (hour * 3600 + minute * 60)
    return np.where(matched, east, 0), zulu | matched
