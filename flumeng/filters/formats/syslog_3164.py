"""Lines of RFC 3164 as hosts and devices write them: time, host, tag and message."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from flumeng.events.byte_column import ByteColumn, Bytes, Mask, Positions, following
from flumeng.filters import iso8601, timestamps
from flumeng.filters.cursor import Cursor
from flumeng.filters.formats import device_headers, device_times
from flumeng.filters.formats.device_headers import DeviceHeaders
from flumeng.filters.formats.syslog_fields import SyslogFields

_LONGEST_HEADER = 150


class _Header:
    """The times of rows: those of ``timed`` rows end at ``behind``; ``valid`` ones exist in the
    calendar. ``nameless`` rows have no host next. No ``=`` or ``,`` precedes ``plain``."""

    def __init__(self, rows: int, micros: Positions, behind: Positions, timed: Mask) -> None:
        self.micros, self.behind, self.timed = micros, behind, timed
        self.valid, self.local = timed.copy(), timed.copy()
        self.nameless = np.zeros(rows, np.bool_)
        self.plain = behind

    def set_time(self, rows: Positions, micros: Positions, behind: Positions, local: Mask) -> None:
        self.micros[rows], self.behind[rows], self.local[rows] = micros, behind, local
        self.timed[rows] = self.valid[rows] = True


class Rfc3164(SyslogFields):
    def read_3164(self, rows: Positions, header: Positions, ends: Positions) -> None:
        """Read ``TIME HOST TAG[PID]: MESSAGE``; only the message is required."""
        timing = self._read_time(rows, header, ends)
        cursor = Cursor(self.flat, timing.behind, ends)
        cursor.skip_spaces()
        nameless = self._skip_lone_colon(cursor) | timing.nameless
        after_time = np.where(timing.timed, cursor.places, timing.behind)
        after_time, forwarded = skip_forwarded(self.flat, after_time, ends)
        marks = self.flat.find(" ", ":", "[")
        spaces = marks[self.flat.data[marks] == ord(" ")]
        host_end = following(spaces, after_time, ends)
        mark = following(marks, after_time, ends)
        is_tag = (mark < host_end) & (
            (self.flat.at(mark, ends) == ord("[")) | (mark + 1 == host_end)
        )
        word_end = host_end
        named = is_tag & (self._is_cisco(host_end, ends) | (forwarded & (mark + 1 == host_end)))
        if named.any():
            is_tag &= ~named
            word_end = np.where(named, mark, host_end)
        hosted = timing.timed & ~is_tag & ~nameless & (host_end > after_time)
        if hosted.any():
            hosted &= are_hosts(self.flat, after_time, word_end, ends, timing.plain)
        after_time = np.where(forwarded & ~hosted, timing.behind, after_time)
        chosen = np.flatnonzero(hosted)
        self.set("host", rows[chosen], after_time[chosen], word_end[chosen], hosted[chosen])
        nil = timing.timed & ~nameless & (host_end == after_time + 1)
        nil &= self.flat.at(after_time, ends) == ord("-")
        cursor.places = np.where(hosted | nil, np.minimum(host_end + 1, ends), after_time)
        self._skip_lone_colon(cursor)
        content = self._skip_inner_header(rows, cursor.places, ends)
        self._read_tag(rows, content, ends, timing.timed, marks)

    def _read_time(self, rows: Positions, header: Positions, ends: Positions) -> _Header:
        received = self.ts[rows]
        window = self.flat.window(header, timestamps.ISO_WIDTH, ends)
        micros, timed = timestamps.read_bsd(window, received)
        timing = _Header(len(rows), micros, header + timestamps.BSD_WIDTH, timed)
        timing.plain = np.where(timed & ~_has_pairs(window), header + len(window), header)
        others = np.flatnonzero(~timed)
        if len(others):
            near = window if len(others) == len(rows) else window[:, others]
            iso = iso8601.read(self.flat, header[others], ends[others], near)
            fits = iso.valid & self.is_break(iso.behind, ends[others])
            timing.set_time(others[fits], iso.micros[fits], iso.behind[fits], iso.local[fits])
            others = others[~fits]
        if len(others):
            times = device_times.read(self.flat, header[others], ends[others], received[others])
            self._take_device_time(others, times, times.shaped, timing)
            timing.behind[others] = np.where(times.shaped, times.behind, header[others])
            others = others[~times.shaped]
        if len(others):
            others = others[
                device_headers.candidates(self.device_marks, header[others], ends[others])
            ]
        if len(others):
            device = device_headers.read(
                self.device_marks, header[others], ends[others], received[others]
            )
            self._take_device_time(others, device.time, device.matched & device.time.shaped, timing)
            chosen = others[device.matched]
            timing.behind[chosen] = device.behind[device.matched]
            timing.nameless[chosen] = True
            self._set_host(rows[others], device, device.matched & device.hosted)
        self.fail("bad timestamp", rows, timing.timed & ~timing.valid, header, timing.behind)
        self.set_local(rows, timing.micros, timing.local & timing.valid)
        self.set_time(rows, timing.micros, timing.valid)
        return timing

    def _take_device_time(
        self, rows: Positions, times: device_times.DeviceTimes, where: Mask, timing: _Header
    ) -> None:
        chosen = rows[where]
        timing.set_time(chosen, times.micros[where], times.behind[where], times.local[where])
        timing.valid[chosen] = times.valid[where]

    def _skip_inner_header(self, rows: Positions, places: Positions, ends: Positions) -> Positions:
        """Skip the device's own header after that of a relay, and take its host."""
        percents = self.flat.find("%")
        if not len(percents):
            return places
        name = following(percents, places, ends)
        context = (name == places) & (self.flat.at(places + 1, ends) == ord("$"))
        near = (name > places + 1) & (name < np.minimum(places + _LONGEST_HEADER, ends))
        near |= context
        chosen = np.flatnonzero(near)
        if not len(chosen):
            return places
        starts, last = places[chosen], ends[chosen]
        inner = device_headers.read(self.device_marks, starts, last, self.ts[rows[chosen]])
        taken = inner.matched & inner.named & (inner.time.shaped | inner.counted | context[chosen])
        places = places.copy()
        places[chosen[taken]] = inner.behind[taken]
        self._set_host(rows[chosen], inner, taken & inner.hosted)
        return places

    @cached_property
    def device_marks(self) -> device_headers.Marks:
        return device_headers.Marks(self.flat)

    def _set_host(self, rows: Positions, device: DeviceHeaders, where: Mask) -> None:
        chosen = rows[where]
        everything = np.ones(len(chosen), np.bool_)
        self.set("host", chosen, device.host_starts[where], device.host_ends[where], everything)

    def _skip_lone_colon(self, cursor: Cursor) -> Mask:
        """Skip a colon that stands alone: Cisco ASA writes it after a host, or instead of one."""
        alone: Mask = cursor.byte() == ord(":")
        if alone.any():
            alone &= (cursor.byte(1) == ord(" ")) | (cursor.byte(1) == 0)
            cursor.move(alone)
            cursor.move(alone & (cursor.byte() == ord(" ")))
        return alone

    def _is_cisco(self, places: Positions, ends: Positions) -> Mask:
        """Return the rows where `` %ASA`` or the like follows, so the word before is a host."""
        window = self.flat.window(places, 3, ends)
        capital = (window[2] >= ord("A")) & (window[2] <= ord("Z"))
        matched: Mask = capital & (window[0] == ord(" ")) & (window[1] == ord("%"))
        return matched

    def _read_tag(
        self, rows: Positions, content: Positions, ends: Positions, timed: Mask, marks: Positions
    ) -> None:
        """Read ``TAG:`` or ``TAG[PID]:`` at ``content``; without a tag all of it is the message."""
        mark = following(marks, content, ends)
        kind = self.flat.at(mark, ends)
        tagged = mark > content
        bracketed = tagged & (kind == ord("["))
        closing = mark
        if bracketed.any():
            closing = following(self.flat.find("]"), mark, ends)
            bracketed &= closing < ends
        numbered = bracketed & (closing > mark + 1)
        spaced_colon = self._is_spaced_colon(content, mark, ends)
        tagged &= bracketed | (kind == ord(":")) | spaced_colon
        if not timed.all():
            tagged &= timed | self._is_lone_tag(
                content, np.where(bracketed, closing + 1, mark), ends
            )
            bracketed, numbered = bracketed & tagged, numbered & tagged
        self.set("app", rows, content, mark, tagged)
        self.set("procid", rows, mark + 1, closing, numbered)
        message = np.where(tagged, np.where(bracketed, closing, mark) + 1, content)
        message = message + (spaced_colon & tagged)
        message = message + (bracketed & (self.flat.at(message, ends) == ord(":")))
        message = message + (tagged & (self.flat.at(message, ends) == ord(" ")))
        self.set("message", rows, message, ends, np.ones(len(rows), np.bool_))

    def _is_spaced_colon(self, content: Positions, mark: Positions, ends: Positions) -> Mask:
        """Return the rows with a tag such as ``%A-5-B : `` of IOS XR."""
        matched: Mask = self.flat.at(content, ends) == ord("%")
        if matched.any():
            matched &= (self.flat.at(mark, ends) == ord(" ")) & (mark > content + 2)
            matched &= self.flat.at(mark + 1, ends) == ord(":")
        return matched

    def _is_lone_tag(self, content: Positions, colon: Positions, ends: Positions) -> Mask:
        """Return the rows whose tag needs no time before it: a letter, ``%``, ``/`` or ``_`` begins
        it, and a colon ends it."""
        first = self.flat.at(content, ends)
        letter = ((first | np.uint8(0x20)) >= ord("a")) & ((first | np.uint8(0x20)) <= ord("z"))
        letter |= np.isin(first, np.frombuffer(b"%/_", np.uint8))
        behind = self.flat.at(colon + 1, ends)
        closed = (self.flat.at(colon, ends) == ord(":")) & ((behind == ord(" ")) | (behind == 0))
        tagged: Mask = letter & closed
        return tagged


def _has_pairs(window: Bytes) -> Mask:
    behind = window[timestamps.BSD_WIDTH :]
    paired: Mask = ((behind == ord("=")) | (behind == ord(","))).any(axis=0)
    return paired


FORWARDED = (b"Message forwarded from ", b"Forwarded from ", b"From ")
"""Texts that AIX and Solaris write before the host and its colon."""
_REPEATED = (b"last message ", b"Last message ", b"message repeated ", b"Message repeated ")
_FIRST = np.zeros(256, np.bool_)
_FIRST[0x80:] = True
_FIRST[np.frombuffer(b":(/_", np.uint8)] = True
for _span in (b"09", b"AZ", b"az"):
    _FIRST[_span[0] : _span[1] + 1] = True
_SENTENCE = np.zeros(256, np.bool_)
_SENTENCE[[word[0] for word in (*FORWARDED, *_REPEATED)]] = True


def skip_forwarded(flat: ByteColumn, places: Positions, ends: Positions) -> tuple[Positions, Mask]:
    """Return where the host begins after ``Message forwarded from ``, and the rows with it."""
    rows = np.flatnonzero(_SENTENCE[flat.at(places, ends)])
    behind = places.copy()
    forwarded = np.zeros(len(places), np.bool_)
    for text in FORWARDED if len(rows) else ():
        matched = _stands(flat, text, places[rows], ends[rows])
        behind[rows[matched]] += len(text)
        forwarded[rows[matched]] = True
    return behind, forwarded


def are_hosts(
    flat: ByteColumn, starts: Positions, word_ends: Positions, ends: Positions, plain: Positions
) -> Mask:
    """Return which words may be hosts, unlike ``last message repeated 3 times``, ``---`` or pairs.
    A host has ``=`` or ``,`` only in parentheses (UniFi); neither occurs before ``plain``."""
    first = flat.at(starts, ends)
    hosts: Mask = _FIRST[first]
    rows = np.flatnonzero((word_ends > plain) & (first != ord("(")))
    if len(rows):
        pairs = flat.find("=", ",")
        hosts[rows] &= following(pairs, starts[rows], ends[rows]) >= word_ends[rows]
    rows = np.flatnonzero(_SENTENCE[first])
    for text in _REPEATED if len(rows) else ():
        hosts[rows] &= ~_stands(flat, text, starts[rows], ends[rows])
    return hosts


def _stands(flat: ByteColumn, text: bytes, places: Positions, ends: Positions) -> Mask:
    window = flat.window(places, len(text), ends)
    matched: Mask = (window == np.frombuffer(text, np.uint8)[:, None]).all(axis=0)
    return matched
