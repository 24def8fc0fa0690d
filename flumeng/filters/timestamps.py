"""Reads syslog times of a whole column: RFC 3339 and the BSD form. Both take a matrix of bytes,
whose row k is the k-th byte of every line, and return microseconds since the epoch, in UTC or (BSD)
local, and a mask of valid lines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import Bytes, Mask, Positions

ISO_WIDTH = 36
BSD_WIDTH = 15
SECOND = 1_000_000
FRACTION_DIGITS = 9
MOST_DAYS_AHEAD = 31
"""Most days that a time without a year may be after its receipt: clocks may be wrong."""
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

_MONTH_KEYS = np.array([int.from_bytes(name.encode(), "big") for name in MONTHS])
_MONTH_ORDER = np.argsort(_MONTH_KEYS)
_UPPER_TO_LOWER = np.uint8(0x20)
_LETTERS = 26
_FIRST_DAYS = (
    np.arange("0000-01", "10001-01", dtype="datetime64[M]").astype("datetime64[D]").astype(np.int64)
)
FIRST_MOMENT = int(_FIRST_DAYS[12]) * 86_400 * SECOND
LAST_MOMENT = int(_FIRST_DAYS[12 * 10_000]) * 86_400 * SECOND - 1
"""The end of year 9999: Spark, Python and Parquet readers support only the years 1 to 9999."""


def read_iso(window: Bytes) -> tuple[Positions, Positions, Mask]:
    """Read ``2003-08-24T05:14:15.000003-07:00`` before a space or 0; return its microseconds, width
    and validity. A second 60 is invalid."""
    digits, valid = _digits(window, (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18))
    for index, mark in ((4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":")):
        valid &= window[index] == ord(mark)
    year = _pair(digits, 0) * 100 + _pair(digits, 2)
    day, day_valid = days_since_epoch(year, _pair(digits, 5), _pair(digits, 8))
    clock, clock_valid = clock_seconds(_pair(digits, 11), _pair(digits, 14), _pair(digits, 17))
    fraction, width, fraction_valid = _fraction(window[19 : 20 + FRACTION_DIGITS])
    zone, zone_width, zone_valid = _zone(_from(window, 19 + width, 7))
    micros = (day * 86_400 + clock - zone) * SECOND + fraction
    valid &= day_valid & clock_valid & fraction_valid & zone_valid & in_calendar(micros)
    return micros, 19 + width + zone_width, valid


def read_bsd(window: Bytes, received: Positions) -> tuple[Positions, Mask]:
    """Read ``Oct 11 22:14:15`` before a space or 0, in its ``year_of_receipt``. Times that may be
    longer are invalid and left to ``device_times``."""
    digits, valid = _digits(window, (5, 7, 8, 10, 11, 13, 14))
    for index, mark in ((3, " "), (6, " "), (9, ":"), (12, ":")):
        valid &= window[index] == ord(mark)
    valid &= _is_break(window[15]) & ~_goes_on(window)
    tens = np.where(window[4] == ord(" "), 0, digits[4]).astype(np.int64)
    valid &= tens <= 3
    day_of_month = tens * 10 + digits[5]
    month, month_valid = month_number(window[:3].astype(np.int64))
    year = year_of_receipt(month, day_of_month, received)
    day, day_valid = days_since_epoch(year, month, day_of_month)
    clock, clock_valid = clock_seconds(_pair(digits, 7), _pair(digits, 10), _pair(digits, 13))
    micros = (day * 86_400 + clock) * SECOND
    return micros, valid & month_valid & day_valid & clock_valid


def _goes_on(window: Bytes) -> Mask:
    """Whether a year, AM or PM, or a zone may follow, so that the time is longer than BSD_WIDTH."""
    century = (window[16] == ord("1")) | (window[16] == ord("2"))
    goes_on: Mask = century & _is_break(window[20])
    capitals = (window[16] - np.uint8(ord("A")) < _LETTERS) & (
        window[17] - np.uint8(ord("A")) < _LETTERS
    )
    if capitals.any():
        for behind_name in (18, 19, 20):
            goes_on |= capitals & (
                _is_break(window[behind_name]) | (window[behind_name] == ord("."))
            )
    goes_on |= ((window[16] == ord("+")) | (window[16] == ord("-"))) & (window[17] <= ord("9"))
    for behind_colon in (21, 22, 23):
        goes_on |= window[behind_colon] == ord("%")
    return goes_on


def _digits(window: Bytes, places: tuple[int, ...]) -> tuple[Bytes, Mask]:
    """Return every byte as a digit (over 9 if none), and whether all ``places`` are digits."""
    digits = window - np.uint8(ord("0"))
    return digits, digits[list(places)].max(axis=0) <= 9


def _pair(digits: Bytes, index: int) -> Positions:
    pair: Positions = digits[index].astype(np.int64) * 10 + digits[index + 1]
    return pair


def days_since_epoch(year: Positions, month: Positions, day: Positions) -> tuple[Positions, Mask]:
    months = (year * 12 + month - 1).clip(0, len(_FIRST_DAYS) - 2)
    first = _FIRST_DAYS[months]
    valid = (month >= 1) & (month <= 12) & (day >= 1) & (first + day <= _FIRST_DAYS[months + 1])
    return first + day - 1, valid & (year >= 1)


def clock_seconds(hour: Positions, minute: Positions, second: Positions) -> tuple[Positions, Mask]:
    return hour * 3600 + minute * 60 + second, (hour < 24) & (minute < 60) & (second < 60)


def in_calendar(micros: Positions) -> Mask:
    inside: Mask = (micros >= FIRST_MOMENT) & (micros <= LAST_MOMENT)
    return inside


def month_number(letters: Positions) -> tuple[Positions, Mask]:
    """Return the months, 1 to 12, and whether the three letters, in any case, are a month."""
    letters = letters | _UPPER_TO_LOWER
    key = (letters[0] << 16) | (letters[1] << 8) | letters[2]
    index = np.searchsorted(_MONTH_KEYS, key, sorter=_MONTH_ORDER)
    month = _MONTH_ORDER[index.clip(max=len(MONTHS) - 1)]
    return month + 1, _MONTH_KEYS[month] == key


def year_of_receipt(month: Positions, day: Positions, received: Positions) -> Positions:
    """Return the latest year in which the day is at most MOST_DAYS_AHEAD after its receipt. A
    December line received in January is of the previous year."""
    today = received.astype("datetime64[us]").astype("datetime64[D]")
    year = 1970 + today.astype("datetime64[Y]").astype(np.int64)
    days = today.astype(np.int64)
    latest = days + MOST_DAYS_AHEAD - (day - 1)
    next_year, this_year = (
        _FIRST_DAYS[(12 * (year + later) + month - 1).clip(0, len(_FIRST_DAYS) - 1)] <= latest
        for later in (1, 0)
    )
    chosen: Positions = year - 1 + this_year + next_year
    return chosen


def _fraction(window: Bytes) -> tuple[Positions, Positions, Mask]:
    """Return the microseconds of ``.123``, its width in bytes (0 when missing), and validity."""
    dotted: Mask = window[0] == ord(".")
    digits = window[1:] - np.uint8(ord("0"))
    micros = np.zeros(window.shape[1], np.int64)
    width = dotted.astype(np.int64)
    going = dotted.copy()
    for index in range(FRACTION_DIGITS):
        going &= digits[index] <= 9
        if not going.any():
            break
        width += going
        if index < 6:
            micros += np.where(going, digits[index], 0) * np.int64(10 ** (5 - index))
    return micros, width, ~dotted | (width > 1)


def _zone(window: Bytes) -> tuple[Positions, Positions, Mask]:
    """Read ``Z`` or ``+hh:mm`` before a space or 0; return seconds east of UTC, width, validity."""
    zulu = (window[0] == ord("Z")) & _is_break(window[1])
    if zulu.all():
        return np.zeros(len(zulu), np.int64), np.ones(len(zulu), np.int64), zulu
    digits, valid = _digits(window, (1, 2, 4, 5))
    hour, minute = _pair(digits, 1), _pair(digits, 4)
    valid &= (window[0] == ord("+")) | (window[0] == ord("-"))
    valid &= (window[3] == ord(":")) & _is_break(window[6]) & (hour < 24) & (minute < 60)
    seconds = np.where(window[0] == ord("-"), -1, 1) * (hour * 3600 + minute * 60)
    return np.where(zulu, 0, seconds), np.where(zulu, 1, 6), zulu | valid


def _from(window: Bytes, starts: Positions, width: int) -> Bytes:
    """Return ``width`` bytes of each line of the window, from its position in ``starts``."""
    lines = window.shape[1]
    flat = window.reshape(-1)
    origin = starts * lines + np.arange(lines)
    return np.stack([flat[origin + index * lines] for index in range(width)])


def _is_break(column: npt.NDArray[np.uint8]) -> Mask:
    mask: Mask = (column == ord(" ")) | (column == 0)
    return mask


def to_utc(micros: Positions, timezone: str, received: Positions) -> Positions:
    """Convert local microseconds since the epoch to UTC; ``timezone`` is an IANA name. A time that
    occurs twice is the one nearer to ``received``; a skipped time is the moment of the jump. Raises
    ``pa.ArrowInvalid`` for a zone unknown to this host."""
    local = pa.array(micros, pa.timestamp("us"))
    early, late = (
        pc.assume_timezone(local, timezone, ambiguous=which, nonexistent="latest")
        .cast(pa.int64())
        .to_numpy()
        for which in ("earliest", "latest")
    )
    moments: Positions = np.where(abs(late - received) < abs(early - received), late, early)
    return moments.clip(FIRST_MOMENT, LAST_MOMENT)
