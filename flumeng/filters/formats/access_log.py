"""The access logs of Apache and nginx, common and combined, found by quotes and brackets.

``CLIENT IDENT USER [09/Nov/2026:10:00:15 +0100] "METHOD PATH PROTOCOL" STATUS BYTES``, perhaps
``"REFERER" "AGENT"``, and any further fields of a site. ``-`` is null. Apache's ``vhost_combined``
has ``VHOST:PORT`` in front, and syslog its header; a line with an ambiguous client is refused.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import because, misfit
from flumeng.events.byte_column import ByteColumn, Bytes, Mask, Positions, following, text
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.filters.formats import Parsed
from flumeng.filters.formats.escapes import behind_backslash, unescape
from flumeng.filters.formats.fields import parsed_of
from flumeng.filters.options.parse import ACCESS_LOG
from flumeng.filters.timestamps import (
    SECOND,
    clock_seconds,
    days_since_epoch,
    in_calendar,
    month_number,
)

_NUMBERS = {"status": pa.int32(), "bytes": pa.int64()}
TIME_WIDTH = 26
_MOST_DIGITS = 18
_MARKS = ((2, "/"), (6, "/"), (11, ":"), (14, ":"), (17, ":"), (20, " "))
_DIGITS = (0, 1, 7, 8, 9, 10, 12, 13, 15, 16, 18, 19, 22, 23, 24, 25)


class AccessLogReader:
    @property
    def columns(self) -> pa.Schema:
        return pa.schema([pa.field(name, _NUMBERS.get(name, pa.string())) for name in ACCESS_LOG])

    def read(self, bodies: pa.Array, _received: pa.Array) -> Parsed:
        lines = _Lines(bodies)
        lines.read()
        columns = [lines.column(name) for name in ACCESS_LOG]
        ts = pa.array(lines.micros, mask=~lines.timed).cast(EVENT_SCHEMA.field("ts").type)
        return parsed_of([*ACCESS_LOG, "ts"], [*columns, ts], lines.unread, lines.misfits)


class _Lines:
    def __init__(self, bodies: pa.Array) -> None:
        self.bodies = bodies
        self.flat = flat = ByteColumn(bodies)
        self.spaces = flat.find(" ")
        quotes = flat.find('"')
        self.quotes = quotes[~behind_backslash(flat, quotes)]
        self.bounds: dict[str, tuple[Positions, Positions]] = {}
        self.numbers: dict[str, tuple[Positions, Mask]] = {}

    def read(self) -> None:
        flat = self.flat
        bracket, usual = self._set_names(flat.starts)
        unknown = np.zeros(len(flat), np.bool_)
        if not usual.all():
            fronts, unknown = _bytes_in_front(self.bodies, ~usual)
            if fronts.any():
                bracket, _ = self._set_names(flat.starts + fronts)
        named = bracket > self.bounds["user"][0] + 1
        named &= flat.at(bracket - 1, flat.ends) == ord(" ")
        self.micros, self.timed = times(flat.window(bracket + 1, TIME_WIDTH, flat.ends))
        self.time_ends = np.minimum(bracket + TIME_WIDTH + 1, flat.ends)
        self.timed &= flat.at(self.time_ends, flat.ends) == ord("]")
        if not self.timed.all():
            closings = following(flat.find("]"), bracket, flat.ends)
            self.time_ends = np.where(self.timed, self.time_ends, closings)
        opening, closing = self._quoted(self.time_ends)
        requested = opening == np.minimum(self.time_ends + 2, flat.ends)
        requested &= closing < flat.ends
        self.bounds |= request_parts(flat, self.spaces, opening + 1, closing)
        places = closing + 2
        counted = flat.at(closing + 1, flat.ends) == ord(" ")
        for name in _NUMBERS:
            places, read = self._number(name, places)
            counted &= read
        self._set_referer_and_agent(places)
        self.unread = pc.coalesce(
            because("access_log: too few fields", ~named),
            because("access_log: no request", ~requested),
            because("access_log: not client, ident and user before the time", unknown),
        )
        self.misfits = self._misfits(bracket, places, counted)

    def _set_names(self, places: Positions) -> tuple[Positions, Mask]:
        """Set client, ident and user. Return the position of the bracket after the user, and the
        usual lines: no ident, and a user of one word."""
        flat = self.flat
        for name in ("client", "ident"):
            behind = following(self.spaces, places, flat.ends)
            self.bounds[name] = places, behind
            places = np.minimum(behind + 1, flat.ends)
        bracket = following(flat.find("["), places, flat.ends)
        self.bounds["user"] = places, np.maximum(bracket - 1, places)
        starts, ends = self.bounds["ident"]
        usual = (ends - starts == 1) & (flat.at(starts, ends) == ord("-"))
        usual &= following(self.spaces, places, flat.ends) == bracket - 1
        return bracket, usual

    def _misfits(self, bracket: Positions, behind_numbers: Positions, counted: Mask) -> pa.Array:
        flat, everything = self.flat, np.ones(len(self.flat), np.bool_)
        misfits = pa.nulls(len(flat), pa.string())
        if not self.timed.all():
            part = text(flat.column(np.minimum(bracket + 1, flat.ends), self.time_ends, everything))
            misfits = misfit("access_log: bad time", part, ~self.timed)
        if not counted.all():
            first = np.minimum(self.bounds["protocol"][1] + 1, flat.ends)
            last = np.minimum(np.maximum(behind_numbers - 1, first), flat.ends)
            part = pc.ascii_ltrim_whitespace(text(flat.column(first, last, everything)))
            why = misfit("access_log: no status and bytes", part, ~counted)
            misfits = pc.coalesce(misfits, why)
        return misfits

    def _quoted(self, places: Positions) -> tuple[Positions, Positions]:
        opening = following(self.quotes, places, self.flat.ends)
        behind = np.minimum(opening + 1, self.flat.ends)
        return opening, following(self.quotes, behind, self.flat.ends)

    def _number(self, name: str, places: Positions) -> tuple[Positions, Mask]:
        """Read a number or ``-``; return the position after it, and the rows that have one."""
        places = np.minimum(places, self.flat.ends)
        ends = following(self.spaces, places, self.flat.ends)
        window = self.flat.window(places, _MOST_DIGITS, ends)
        value = np.zeros(len(places), np.int64)
        digits = np.zeros(len(places), np.int64)
        for byte in window:
            digit = byte - np.uint8(ord("0"))
            going = (digit <= 9) & (byte != 0)
            if not going.any():
                break
            value = np.where(going, value * 10 + digit, value)
            digits += going
        width = ends - places
        nothing = (width == 1) & (window[0] == ord("-"))
        whole = (width > 0) & (digits == width)
        if name == "status":
            whole &= width <= 3
        self.numbers[name] = value, whole
        return ends + 1, whole | nothing

    def _set_referer_and_agent(self, places: Positions) -> None:
        for name in ("referer", "agent"):
            places = np.minimum(places, self.flat.ends)
            opening, closing = self._quoted(places)
            there = (opening == places) & (closing < self.flat.ends)
            self.bounds[name] = (
                np.where(there, opening + 1, places),
                np.where(there, closing, places),
            )
            places = np.where(there, closing + 2, self.flat.ends)

    def column(self, name: str) -> pa.Array:
        if name in self.numbers:
            value, whole = self.numbers[name]
            return pa.array(value, _NUMBERS[name], mask=~whole)
        starts, ends = self.bounds[name]
        given = ends > starts
        given &= (ends - starts != 1) | (self.flat.at(starts, ends) != ord("-"))
        texts = text(self.flat.column(starts, ends, given))
        if name in ("path", "referer", "agent") and pc.any(pc.match_substring(texts, "\\")).as_py():
            return unescape(texts)
        return texts


def request_parts(
    flat: ByteColumn, spaces: Positions, starts: Positions, ends: Positions
) -> dict[str, tuple[Positions, Positions]]:
    """Return the bounds of method, path and protocol in ``GET /path HTTP/1.1``. The protocol may be
    missing; a single word is a path."""
    starts = np.minimum(starts, ends)
    first = following(spaces, starts, ends)
    last = np.append(spaces, -1)[np.searchsorted(spaces, ends) - 1]
    behind = flat.window(last + 1, 5, ends)
    versioned = (last > first) & (behind == np.frombuffer(b"HTTP/", np.uint8)[:, None]).all(0)
    return {
        "method": (starts, np.where(first < ends, first, starts)),
        "path": (np.where(first < ends, first + 1, starts), np.where(versioned, last, ends)),
        "protocol": (np.where(versioned, last + 1, ends), ends),
    }


def times(window: Bytes) -> tuple[Positions, Mask]:
    """Parse ``09/Nov/2026:10:00:15 +0100``; return microseconds since the epoch, and validity."""
    digits = (window - np.uint8(ord("0"))).astype(np.int64)
    valid = digits[list(_DIGITS)].max(axis=0) <= 9
    for index, mark in _MARKS:
        valid &= window[index] == ord(mark)
    valid &= (window[21] == ord("+")) | (window[21] == ord("-"))
    month, month_valid = month_number(window[3:6].astype(np.int64))
    year = digits[7] * 1000 + digits[8] * 100 + digits[9] * 10 + digits[10]
    days, day_valid = days_since_epoch(year, month, digits[0] * 10 + digits[1])
    hour, minute = digits[12] * 10 + digits[13], digits[15] * 10 + digits[16]
    clock, clock_valid = clock_seconds(hour, minute, digits[18] * 10 + digits[19])
    zone_hour, zone_minute = digits[22] * 10 + digits[23], digits[24] * 10 + digits[25]
    east = np.where(window[21] == ord("-"), -1, 1) * (zone_hour * 3600 + zone_minute * 60)
    micros = (days * 86_400 + clock - east) * SECOND
    valid &= month_valid & day_valid & clock_valid & (zone_hour < 24) & (zone_minute < 60)
    return micros, valid & in_calendar(micros)


_ADDRESS = r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)"
_WORD = r"(?:[^\s\[-]\S*|-\S+)"
"""A word other than ``-``, which is no part of a name of several words."""
_USER = rf"(?:\S+| *{_WORD}(?: +{_WORD})* *)"
_PORT = r"(?P<port>(?:[^\s:\[]+|\[[0-9A-Fa-f:.]+\]):[0-9]+ )"
_NAME = r"(?P<name>[\w.-]*[A-Za-z][\w.-]* )"
_TAG = r"(?P<tag>(?:[^\[\"]* )?[\w./-]+(?:\[[0-9]+\])?: +)"
_HEADER = r"(?P<header><[0-9]{1,3}>[0-9]+ (?:\S+ ){5}- )"
_FRONT = (
    rf"^(?:{_PORT}(?:{_ADDRESS} \S+|{_WORD} -)|{_NAME}{_ADDRESS} \S+|{_TAG}{_WORD} \S+"
    rf"|{_HEADER}{_WORD} \S+) {_USER} \["
)
_PLAIN = rf"^(?:\S* - {_USER}|{_ADDRESS}\S* \S+ {_USER}|\S* \S+ \S+) \["
_SECOND_ADDRESS = rf"^\S* {_ADDRESS} "


def _bytes_in_front(bodies: pa.Array, among: Mask) -> tuple[Positions, Mask]:
    """Count the bytes before the client in the rows of ``among``; also return unclear rows."""
    chosen = np.flatnonzero(among)
    lines = bodies.take(pa.array(chosen))
    groups = pc.extract_regex(lines, _FRONT).flatten()
    longest = [pc.fill_null(pc.binary_length(group), 0).to_numpy(False) for group in groups]
    counts = np.max(longest, axis=0)
    plain = pc.match_substring_regex(lines, _PLAIN).to_numpy(False)
    second = pc.match_substring_regex(lines, _SECOND_ADDRESS).to_numpy(False)
    fronts, unclear = np.zeros(len(among), np.int64), np.zeros(len(among), np.bool_)
    fronts[chosen] = counts
    unclear[chosen] = (counts == 0) & (second | ~plain)
    return fronts, unclear
