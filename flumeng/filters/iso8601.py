"""Reads ISO 8601 in columns: for headers of lines, typed columns and the filter ``time``.

::

    2026-11-21(T|t| |_)09:15[:07][(.|,)123][Z|z|+01:00|+0100|+01]
    20261121T091507

A fraction after the minutes is one of a minute. The usual form of RFC 3339 is read from a window of
bytes; other rows take a longer scan. A second 60 is refused: Arrow's timestamps have no leap
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import ByteColumn, Bytes, Mask, Positions
from flumeng.filters import timestamps
from flumeng.filters.cursor import Cursor
from flumeng.filters.timestamps import (
    FRACTION_DIGITS,
    SECOND,
    clock_seconds,
    days_since_epoch,
    in_calendar,
)

_ZONES = (b"UTC", b"GMT")
_FIRST_DASH = 4


@dataclass(frozen=True)
class IsoTimes:
    """Times read from rows. ``micros``: since the epoch, in UTC, or local where ``local`` (no zone
    given). ``behind``: the end of the time. ``shaped``: rows with date and time in extended form,
    with seconds; ``valid``: rows with a valid time."""

    micros: Positions
    local: Mask
    behind: Positions
    shaped: Mask
    valid: Mask


def read(
    flat: ByteColumn, starts: Positions, ends: Positions, window: Bytes | None = None
) -> IsoTimes:
    """Read the times at ``starts`` in extended form with seconds; no zone after a space is read.
    ``window``: the first ISO_WIDTH bytes of each, if already known."""
    rows = np.flatnonzero(flat.at(starts + _FIRST_DASH, ends) == ord("-"))
    if len(rows) == len(starts):
        return _read(flat, starts, ends, window, whole=False)
    times = _none(starts)
    if len(rows):
        inner = None if window is None else window[:, rows]
        some = _read(flat, starts[rows], ends[rows], inner, whole=False)
        times.micros[rows], times.local[rows] = some.micros, some.local
        times.behind[rows], times.shaped[rows] = some.behind, some.shaped
        times.valid[rows] = some.valid
    return times


def _none(starts: Positions) -> IsoTimes:
    local, shaped, valid = np.zeros((3, len(starts)), np.bool_)
    return IsoTimes(np.zeros(len(starts), np.int64), local, starts.copy(), shaped, valid)


def read_texts(texts: pa.Array) -> IsoTimes:
    """Read texts that hold only a time and spaces; a date alone is its midnight. The zone may
    follow a space, and be ``UTC`` or ``GMT``."""
    flat = ByteColumn(texts.cast(pa.binary()))
    starts, ends = flat.starts, flat.ends
    spaced = (flat.at(starts, ends) <= ord(" ")) | (flat.at(ends - 1, ends) <= ord(" "))
    if (spaced & (ends > starts)).any():
        stripped = pc.utf8_trim_whitespace(texts)
        return read_texts(stripped) if not stripped.equals(texts) else _texts(flat)
    return _texts(flat)


def _texts(flat: ByteColumn) -> IsoTimes:
    times = _read(flat, flat.starts, flat.ends, None, whole=True)
    whole = times.behind == flat.ends
    return IsoTimes(
        times.micros, times.local, times.behind, times.shaped & whole, times.valid & whole
    )


def _read(
    flat: ByteColumn, starts: Positions, ends: Positions, window: Bytes | None, *, whole: bool
) -> IsoTimes:
    if window is None:
        window = flat.window(starts, timestamps.ISO_WIDTH, ends)
    micros, width, valid = timestamps.read_iso(window)
    behind = starts + width
    local = np.zeros(len(starts), np.bool_)
    shaped = valid.copy()
    others = np.flatnonzero(~valid & _is_digit(window[0]) & _is_digit(window[3]))
    if len(others):
        times = _scan(Cursor(flat, starts[others], ends[others]), whole=whole)
        micros[others], local[others], behind[others] = times.micros, times.local, times.behind
        shaped[others], valid[others] = times.shaped, times.valid
    return IsoTimes(micros, local, behind, shaped, valid)


def _is_digit(column: Bytes) -> Mask:
    digits: Mask = column - np.uint8(ord("0")) <= 9
    return digits


def _scan(cursor: Cursor, *, whole: bool) -> IsoTimes:
    year, width = cursor.number(4)
    dated = width == 4
    dashed = cursor.skip("-")
    month, width = cursor.number(2)
    dated &= (width == 2) & (cursor.skip("-") == dashed)
    day, width = cursor.number(2)
    dated &= width == 2
    date_end = cursor.places
    parted = cursor.skip("Tt _")
    hour, minute, second, clocked, finer, colons = _clock(cursor)
    clocked &= parted & dated
    cursor.return_to(date_end, ~clocked)
    hour, minute, second = (np.where(clocked, part, 0) for part in (hour, minute, second))
    fraction = _fraction(cursor, clocked, np.where(finer, 1, 60))
    east, zoned, zone_valid = _zone(cursor, clocked, whole=whole)
    days, day_valid = days_since_epoch(year, month, day)
    seconds, clock_valid = clock_seconds(hour, minute, second)
    micros = (days * 86_400 + seconds - east) * SECOND + fraction
    valid = dated & day_valid & clock_valid & zone_valid & in_calendar(micros)
    shaped = clocked & dashed & finer & colons
    if not whole:
        valid &= shaped
    return IsoTimes(micros, ~zoned, cursor.places, shaped, valid)


def _clock(cursor: Cursor) -> tuple[Positions, Positions, Positions, Mask, Mask, Mask]:
    """Read ``09:15[:07]`` or ``0915[07]``; return hour, minute, second, and which rows have a time,
    seconds, and colons."""
    hour, width = cursor.number(2)
    clocked = width == 2
    colon = cursor.skip(":")
    minute, width = cursor.number(2)
    clocked &= width == 2
    origin = cursor.places
    second_colon = cursor.skip(":")
    second, width = cursor.number(2)
    finer = (width == 2) & (second_colon == colon)
    cursor.return_to(origin, ~finer)
    return hour, minute, np.where(finer, second, 0), clocked, finer, colon


def _fraction(cursor: Cursor, where: Mask, seconds: Positions) -> Positions:
    """Return the microseconds of ``.123`` or ``,123`` of ``seconds``, from at most nine digits."""
    origin = cursor.places
    pointed = cursor.skip(".,") & where
    if not pointed.any():
        cursor.return_to(origin, ~pointed)
        return np.zeros(len(origin), np.int64)
    digits, width = cursor.number(FRACTION_DIGITS)
    cursor.number(FRACTION_DIGITS)
    pointed &= width > 0
    cursor.return_to(origin, ~pointed)
    nanos = digits * 10 ** (FRACTION_DIGITS - width)
    return np.where(pointed, nanos * seconds // 1000, 0)


def _zone(cursor: Cursor, where: Mask, *, whole: bool) -> tuple[Positions, Mask, Mask]:
    """Read a zone; return its seconds east of UTC, whether there is one, and its validity."""
    origin = cursor.places
    if whole:
        cursor.skip(" ")
    zoned = cursor.skip("Zz") & where
    sign = cursor.byte()
    signed = cursor.skip("+-") & where & ~zoned
    seconds = np.zeros(len(origin), np.int64)
    valid = np.ones(len(origin), np.bool_)
    if signed.any():
        hour, width = cursor.number(2)
        signed &= width == 2
        behind_hour = cursor.places
        cursor.skip(":")
        minute, width = cursor.number(2)
        cursor.return_to(behind_hour, width < 2)
        minute = np.where(width < 2, 0, minute)
        valid = ~signed | ((hour < 24) & (minute < 60))
        east = np.where(sign == ord("-"), -1, 1) * (hour * 3600 + minute * 60)
        seconds = np.where(signed, east, 0)
    named = _named_zone(cursor, where & ~zoned & ~signed) if whole else np.zeros_like(zoned)
    cursor.return_to(origin, ~(zoned | signed | named))
    return seconds, zoned | signed | named, valid


def _named_zone(cursor: Cursor, where: Mask) -> Mask:
    letters = [cursor.byte(ahead) for ahead in range(3)]
    named = np.zeros(len(where), np.bool_)
    for name in _ZONES:
        named |= where & (letters[0] == name[0]) & (letters[1] == name[1]) & (letters[2] == name[2])
    cursor.move(named, 3)
    return named
