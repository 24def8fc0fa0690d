"""Reads a column as times in the formats of ``options.time_formats``: microseconds and validity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import Mask, Positions
from flumeng.filters import iso8601
from flumeng.filters.options import time_formats
from flumeng.filters.timestamps import (
    FIRST_MOMENT,
    LAST_MOMENT,
    MONTHS,
    SECOND,
    clock_seconds,
    days_since_epoch,
    in_calendar,
    to_utc,
    year_of_receipt,
)

_EXPONENT = r"^-?[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]+$"
_LATEST_OF_2000S = 68
"""Two-digit years above it are of the 1900s, as in POSIX."""


@dataclass(frozen=True)
class TextFormat:
    """A time format. If it has the group ``n``, ``units`` of that number make a second."""

    pattern: str
    units: int
    timezone: str
    iso: bool = False
    """Whether ``iso8601`` reads the texts; ``pattern`` then only restricts them to a profile."""

    @classmethod
    def named(cls, name: str, timezone: str) -> TextFormat:
        units = time_formats.UNITS.get(name, 1)
        return cls(time_formats.pattern(name), units, timezone, name in time_formats.ISO)

    def read(self, texts: pa.StringArray, received: Positions) -> tuple[Positions, Mask]:
        """Return the times of ``texts``, and validity; a missing year comes from ``received``."""
        if self.iso:
            return self._read_iso(texts, received)
        match = pc.extract_regex(texts, self.pattern)
        groups = _Groups(match)
        if "n" in groups:
            micros, valid = _of_units(groups.number("n"), self.units)
            return micros, groups.matched & valid & in_calendar(micros)
        if "s" in groups:
            micros = _of_epoch(groups)
            return micros, groups.matched & in_calendar(micros)
        micros, valid = _of_calendar(groups, received)
        micros = self._in_utc(groups, micros.clip(FIRST_MOMENT, LAST_MOMENT), received)
        return micros, groups.matched & valid & in_calendar(micros)

    def _read_iso(self, texts: pa.StringArray, received: Positions) -> tuple[Positions, Mask]:
        times = iso8601.read_texts(texts)
        local = np.flatnonzero(times.local & times.valid)
        micros = times.micros
        if len(local):
            micros[local] = to_utc(micros[local], self.timezone, received[local])
        valid = times.valid & in_calendar(micros)
        fits = pc.match_substring_regex(texts, self.pattern).fill_null(False)
        valid &= fits.to_numpy(False)
        return micros, valid

    def _in_utc(self, groups: _Groups, micros: Positions, received: Positions) -> Positions:
        if "z" not in groups:
            return to_utc(micros, self.timezone, received)
        east = groups.number("zh") * 3600 + groups.number("zm") * 60
        moments: Positions = micros - np.where(groups.is_text("sign", "-"), -east, east) * SECOND
        local = groups.is_text("z", "")
        if local.any():
            moments = np.where(local, to_utc(micros, self.timezone, received), moments)
        return moments


def of_seconds(texts: pa.StringArray) -> tuple[Positions, Mask]:
    """Read seconds since the epoch: decimals exact to the microsecond, exponents as floats."""
    micros, valid = TextFormat.named("unix", "UTC").read(texts, np.zeros(len(texts), np.int64))
    others = texts.is_valid().to_numpy(False) & ~valid
    if others.any():
        numbers = pc.if_else(pc.match_substring_regex(texts, _EXPONENT), texts, None)
        moments, fits = of_numbers(numbers.cast(pa.float64()), 1)
        micros, valid = np.where(fits, moments, micros), valid | fits
    return micros, valid


def of_numbers(numbers: pa.Array, units: int) -> tuple[Positions, Mask]:
    """Read numbers as times; ``units`` make a second. Nulls and times out of range are invalid."""
    there = numbers.is_valid().to_numpy(False)
    if pa.types.is_integer(numbers.type):
        micros, valid = _of_units(_whole(numbers), units)
        return micros, there & valid & in_calendar(micros)
    seconds = numbers.cast(pa.float64(), safe=False).fill_null(0).to_numpy(False) / units
    valid = np.isfinite(seconds) & (np.abs(seconds) < LAST_MOMENT / SECOND)
    micros = np.round(np.where(valid, seconds, 0) * SECOND).astype(np.int64)
    return micros, there & valid & in_calendar(micros)


class _Groups:
    """The groups of a pattern matched with many texts; missing groups are empty."""

    def __init__(self, match: pa.StructArray) -> None:
        self.matched: Mask = match.is_valid().to_numpy(False)
        self._names = {field.name for field in match.type}
        self._match = match

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def text(self, name: str) -> pa.Array:
        return pc.struct_field(self._match, name).fill_null("")

    def is_text(self, name: str, text: str) -> Mask:
        if name not in self:
            return np.full(len(self.matched), not text)
        same: Mask = pc.equal(self.text(name), text).to_numpy(False)
        return same

    def number(self, name: str, absent: int = 0) -> Positions:
        if name not in self:
            return np.full(len(self.matched), absent, np.int64)
        texts = self.text(name)
        return _whole(pc.if_else(pc.equal(texts, ""), str(absent), texts).cast(pa.int64()))

    def micros(self) -> Positions:
        if "f" not in self:
            return np.zeros(len(self.matched), np.int64)
        padded = pc.utf8_slice_codeunits(pc.utf8_rpad(self.text("f"), 6, "0"), 0, 6)
        return _whole(padded.cast(pa.int64()))


def _of_calendar(groups: _Groups, received: Positions) -> tuple[Positions, Mask]:
    day, valid = _days(groups, received)
    hour = groups.number("H")
    if "I" in groups:
        hour = groups.number("I")
        valid = valid & (hour >= 1) & (hour <= 12)
        initials = pc.utf8_lower(pc.utf8_slice_codeunits(groups.text("p"), 0, 1))
        hour = hour % 12 + 12 * pc.equal(initials, "p").to_numpy(False)
    clock, clock_valid = clock_seconds(hour, groups.number("M"), groups.number("S"))
    offset_valid = (groups.number("zh") < 24) & (groups.number("zm") < 60)
    micros = (day * 86_400 + clock) * SECOND + groups.micros()
    return micros, valid & clock_valid & offset_valid


def _days(groups: _Groups, received: Positions) -> tuple[Positions, Mask]:
    if "b" in groups:
        initials = pc.utf8_lower(pc.utf8_slice_codeunits(groups.text("b"), 0, 3))
        month = _whole(pc.index_in(initials, pa.array(MONTHS))) + 1
    else:
        month = groups.number("m", absent=1)
    day = groups.number("d", absent=1)
    if "Y" in groups:
        year = groups.number("Y")
    elif "y" in groups:
        year = groups.number("y")
        year = year + np.where(year > _LATEST_OF_2000S, 1900, 2000)
    else:
        year = year_of_receipt(month, day, received)
    days, valid = days_since_epoch(year, month, day)
    if "j" in groups:
        of_year = groups.number("j")
        in_next, _ = days_since_epoch(year + 1, month, day)
        valid = valid & (of_year >= 1) & (days + of_year <= in_next)
        days = days + of_year - 1
    return days, valid


def _of_epoch(groups: _Groups) -> Positions:
    seconds, micros = groups.number("s") * SECOND, groups.micros()
    negative = pc.starts_with(groups.text("s"), "-").to_numpy(False)
    moments: Positions = seconds + np.where(negative, -micros, micros)
    return moments


def _of_units(numbers: Positions, units: int) -> tuple[Positions, Mask]:
    """Convert numbers since the epoch to microseconds, rounded down; invalid where out of range."""
    if units > SECOND:
        return numbers // (units // SECOND), np.ones(len(numbers), np.bool_)
    factor = SECOND // units
    valid = (numbers >= FIRST_MOMENT // factor) & (numbers <= LAST_MOMENT // factor)
    return np.where(valid, numbers, 0) * factor, valid


def _whole(numbers: pa.Array) -> Positions:
    integers: Positions = numbers.cast(pa.int64()).fill_null(0).to_numpy(False)
    return integers
