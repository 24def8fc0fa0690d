"""Headers of Cisco devices, between the priority and the mnemonic, for many rows at once.

::

[NUMBER:] [HOST:] [NUMBER:] [*TASK:] [HOST] [RP/0/RSP0/CPU0:] TIME [ZONE] : [pim[12]:] %A-5-B:

``HOST:`` is from ``logging origin-id``, the location from IOS XR, ``*TASK:`` from a wireless
controller. ``TIME`` may be missing, or the uptime (``00:01:01``, ``1w2d``). A word is a host only
where a message's name such as ``%SYS-5-CONFIG_I`` ends the header, or where a counter begins it and
a time with a colon ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flumeng.events.byte_column import ByteColumn, Mask, Positions, following
from flumeng.filters.cursor import Cursor
from flumeng.filters.formats import device_times
from flumeng.filters.formats.device_times import DeviceTimes

_LONGEST_NAME = 100


@dataclass(frozen=True)
class DeviceHeaders:
    """Headers of Cisco devices in rows; a row that is not ``matched`` has undefined values.
    ``behind``: the beginning of the message or its name. ``hosted``, ``named``, ``counted``: rows
    with a host, with a message's name at the end, with a counter."""

    time: DeviceTimes
    behind: Positions
    host_starts: Positions
    host_ends: Positions
    hosted: Mask
    named: Mask
    counted: Mask
    matched: Mask


class Marks:
    def __init__(self, flat: ByteColumn) -> None:
        self.flat = flat
        self.spaces = flat.find(" ")
        self.percents = flat.find("%")

    @cached_property
    def colons(self) -> Positions:
        return self.flat.find(":")

    @cached_property
    def slashes(self) -> Positions:
        return self.flat.find("/")

    @cached_property
    def dashes(self) -> Positions:
        return self.flat.find("-")

    @cached_property
    def brackets(self) -> Positions:
        return self.flat.find("]")


def candidates(marks: Marks, starts: Positions, ends: Positions) -> Mask:
    """Return the rows that may have a header, as a cheap filter before ``read``: they have a ``%``,
    or their first or second word begins with a digit, colon or space."""
    flat = marks.flat
    matched: Mask = following(marks.percents, starts, ends) < ends
    for places in (starts, following(marks.spaces, starts, ends) + 1):
        byte = flat.at(places, ends)
        matched |= (byte - np.uint8(ord("0"))) <= ord(":") - ord("0")
        matched |= byte == ord(" ")
    return matched


def read(marks: Marks, starts: Positions, ends: Positions, received: Positions) -> DeviceHeaders:
    flat = marks.flat
    cursor = Cursor(flat, starts, ends)
    counted = device_times.skip_counter(cursor)
    counted |= device_times.skip_counter(cursor)
    host_starts = cursor.places
    hosted, host_ends = _skip_origin(cursor, marks, ends)
    counted |= device_times.skip_counter(cursor)
    _skip_task(cursor, marks, ends)
    named_host, located, prefix_starts, prefix_ends = _skip_location(cursor, marks, ends)
    host_starts = np.where(named_host, prefix_starts, host_starts)
    host_ends = np.where(named_host, prefix_ends, host_ends)
    time = device_times.read(flat, cursor.places, ends, received, counted | located)
    cursor.return_to(time.behind, time.shaped)
    timed_colon = flat.at(cursor.places - 1, ends) == ord(":")
    _skip_uptime(cursor, marks, ends, ~time.shaped)
    cursor.skip_spaces()
    timed_colon |= cursor.skip(":")
    cursor.skip_spaces()
    _skip_process(cursor, marks, ends, located)
    _skip_context(cursor, marks, ends)
    named = is_name(marks, cursor.places, ends)
    matched = (cursor.places > starts) & (named | (counted & time.shaped & timed_colon))
    return DeviceHeaders(
        time, cursor.places, host_starts, host_ends, hosted | named_host, named, counted, matched
    )


def is_name(marks: Marks, places: Positions, ends: Positions) -> Mask:
    """Return the rows with ``%FACILITY-5-MNEMONIC`` and a colon at ``places``."""
    flat = marks.flat
    first = flat.at(places + 1, ends)
    matched: Mask = (flat.at(places, ends) == ord("%")) & (first >= ord("A")) & (first <= ord("Z"))
    colon = following(marks.colons, places, ends)
    matched &= (colon < ends) & (colon - places < _LONGEST_NAME)
    matched &= following(marks.dashes, places, ends) < colon
    matched &= following(marks.spaces, places, ends) + 1 >= colon
    return matched


def _skip_origin(cursor: Cursor, marks: Marks, ends: Positions) -> tuple[Mask, Positions]:
    """Skip an origin such as ``sw1: ``; return the rows that have one, and the end of its name."""
    places, flat = cursor.places, marks.flat
    space = following(marks.spaces, places, ends)
    first = flat.at(places, ends)
    matched = (space < ends) & (space > places + 1) & (flat.at(space - 1, ends) == ord(":"))
    matched &= _is_word(first)
    rows = np.flatnonzero(matched)
    if len(rows):
        matched[rows] = ~_is_uptime(marks, places[rows], space[rows] - 1)
    cursor.return_to(space + 1, matched)
    cursor.skip_spaces()
    cursor.return_to(places, ~matched)
    return matched, space - 1


def _is_word(first: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Mask:
    small = first | np.uint8(0x20)
    matched: Mask = (small >= ord("a")) & (small <= ord("z"))
    matched |= (first >= ord("0")) & (first <= ord("9"))
    return matched


def _skip_task(cursor: Cursor, marks: Marks, ends: Positions) -> None:
    """Skip a task such as ``*spamApTask1: ``."""
    places, flat = cursor.places, marks.flat
    space = following(marks.spaces, places, ends)
    matched = (flat.at(places, ends) == ord("*")) & (space < ends) & (space > places + 2)
    matched &= flat.at(space - 1, ends) == ord(":")
    cursor.return_to(space, matched)
    cursor.skip_spaces()
    cursor.return_to(places, ~matched)


def _skip_location(
    cursor: Cursor, marks: Marks, ends: Positions
) -> tuple[Mask, Mask, Positions, Positions]:
    """Skip ``[HOST ]RP/0/RSP0/CPU0:``; return the rows with a host, those with a location, and the
    bounds of the host."""
    places = cursor.places
    alone, behind = _location(marks, places, ends)
    space = following(marks.spaces, places, ends)
    second, second_behind = _location(marks, np.minimum(space + 1, ends), ends)
    second &= ~alone & (space > places) & (space < ends) & _is_word(marks.flat.at(places, ends))
    cursor.return_to(behind, alone)
    cursor.return_to(second_behind, second)
    return second, alone | second, places, space


def _location(marks: Marks, places: Positions, ends: Positions) -> tuple[Mask, Positions]:
    colon = following(marks.colons, places, ends)
    slash = following(marks.slashes, places, ends)
    matched = (slash < colon) & (colon < following(marks.spaces, places, ends)) & (colon < ends)
    return matched, np.minimum(colon + 1, ends)


def _skip_uptime(cursor: Cursor, marks: Marks, ends: Positions, where: Mask) -> None:
    """Skip an uptime such as ``00:01:01:`` or ``1w2d:``."""
    places = cursor.places
    space = following(marks.spaces, places, ends)
    colon = np.maximum(space - 1, places)
    matched = where & (marks.flat.at(colon, ends) == ord(":")) & (space < ends)
    rows = np.flatnonzero(matched)
    if len(rows):
        matched[rows] = _is_uptime(marks, places[rows], colon[rows])
    cursor.return_to(space, matched)


def _is_uptime(marks: Marks, starts: Positions, ends: Positions) -> Mask:
    window = marks.flat.window(starts, 12, ends)
    digit = (window - np.uint8(ord("0"))) <= 9
    unit = np.isin(window, np.frombuffer(b":ywdhm", np.uint8))
    matched: Mask = digit[0] & (digit | unit | (window == 0)).all(axis=0) & unit.any(axis=0)
    return matched & (ends - starts <= 12)


def _skip_process(cursor: Cursor, marks: Marks, ends: Positions, where: Mask) -> None:
    """Skip ``pim[1234]: `` or ``pim[1234] : `` before a message's name, as IOS XR writes it."""
    places, flat = cursor.places, marks.flat
    behind = following(marks.brackets, places, ends) + 1
    matched = where & (behind < ends) & (behind <= following(marks.spaces, places, ends) + 1)
    cursor.return_to(behind, matched)
    cursor.skip_spaces()
    matched &= cursor.skip(":")
    cursor.skip_spaces()
    matched &= flat.at(cursor.places, ends) == ord("%")
    cursor.return_to(places, ~matched)


def _skip_context(cursor: Cursor, marks: Marks, ends: Positions) -> None:
    """Skip the context ``%$ VDC-1 %$ `` of NX-OS."""
    places, flat = cursor.places, marks.flat
    matched = (flat.at(places, ends) == ord("%")) & (flat.at(places + 1, ends) == ord("$"))
    if not matched.any():
        return
    second = following(marks.percents, np.minimum(places + 2, ends), ends)
    matched &= flat.at(second + 1, ends) == ord("$")
    cursor.return_to(np.minimum(second + 2, ends), matched)
    cursor.skip_spaces()
    cursor.return_to(places, ~matched)
