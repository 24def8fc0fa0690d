"""Syslog lines to columns, RFC 5424 and RFC 3164, a whole record batch at a time.

A line is read as RFC 5424 when ``<PRI>1 `` opens it, else as RFC 3164. That one asks for little:
a priority, or a time stamp as in the files that syslog daemons write. What has no time stamp keeps
the receiver's ``ts`` and ``host``. Rows are never looked at one by one: every step below works on
all rows of one of the two forms, with positions in the batch's flat bytes. Times that are not
written as the RFCs say are read in a second, longer round of such steps, for those rows only.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flumeng.filters import device_times, timestamps
from flumeng.filters.byte_column import ByteColumn, Mask, Positions, following, text
from flumeng.filters.cursor import Cursor
from flumeng.filters.local_times import to_utc

COLUMNS = (
    pa.field("facility", pa.int32()),
    pa.field("severity", pa.int32()),
    pa.field("app", pa.string()),
    pa.field("procid", pa.string()),
    pa.field("msgid", pa.string()),
    pa.field("structured", pa.string()),
    pa.field("message", pa.string()),
)
FIELDS = ("host", "app", "procid", "msgid", "structured", "message")
REASONS = (
    None,
    "syslog: no priority",
    "syslog: too few fields",
    "syslog: bad timestamp",
    "syslog: bad structured data",
)
NO_PRIORITY, TOO_FEW, BAD_TIMESTAMP, BAD_STRUCTURED = range(1, len(REASONS))


@dataclass(frozen=True)
class Parsed:
    """``columns`` in the order of COLUMNS; ``host`` null where the line names none.

    ``reasons`` is null where the line parsed. ``ts`` is the line's own time where it has one.
    """

    columns: list[pa.Array]
    host: pa.Array
    ts: pa.Array
    reasons: pa.Array


def parse(body: pa.Array, received: pa.Array, timezone: str | None = None) -> Parsed:
    """Read every body; ``received`` is a timestamp[us] column that stands in for missing times.

    A time that names no zone is of ``timezone`` (an IANA name), UTC without.
    """
    known = received.cast(pa.int64()).fill_null(0).to_numpy().copy()
    lines = _Lines(ByteColumn(body), known, timezone)
    lines.read()
    unknown = (lines.reason != 0) | ~lines.prioritised
    pri = lines.priority
    fields = {name: lines.field(name) for name in FIELDS}
    columns = [
        pa.array(pri >> 3, pa.int32(), mask=unknown),
        pa.array(pri & 7, pa.int32(), mask=unknown),
        *(fields[field.name] for field in COLUMNS[2:]),
    ]
    ts = pa.array(lines.ts, pa.int64(), mask=received.is_null().to_numpy(False) & ~lines.timed)
    reasons = pa.array(REASONS, pa.string()).take(pa.array(lines.reason))
    return Parsed(columns, fields["host"], ts.cast(received.type), reasons)


class _Lines:
    """The work on one batch: fills in, row by row form, where each field lies."""

    def __init__(self, flat: ByteColumn, received: Positions, timezone: str | None) -> None:
        rows = len(flat)
        self.flat = flat
        self.timezone = timezone
        self.reason = np.zeros(rows, np.int8)
        self.priority = np.zeros(rows, np.int64)
        self.prioritised = np.zeros(rows, np.bool_)
        self.ts = received
        self.timed = np.zeros(rows, np.bool_)
        self.starts = {name: np.zeros(rows, np.int64) for name in FIELDS}
        self.ends = {name: np.zeros(rows, np.int64) for name in FIELDS}
        self.present = {name: np.zeros(rows, np.bool_) for name in FIELDS}

    def read(self) -> None:
        header, modern = self._read_priority()
        readable = self.reason == 0
        for rows, read in ((modern, self._read_5424), (readable & ~modern, self._read_3164)):
            chosen = np.flatnonzero(rows)
            if len(chosen):
                read(chosen, header[chosen], self.flat.ends[chosen])
        self.reason[readable & ~self.prioritised & ~self.timed] = NO_PRIORITY

    def field(self, name: str) -> pa.Array:
        present = self.present[name] & (self.reason == 0)
        return text(self.flat.column(self.starts[name], self.ends[name], present))

    def _read_priority(self) -> tuple[Positions, Mask]:
        """Where the header begins behind ``<PRI>``, if any, and which rows are RFC 5424."""
        flat = self.flat
        opening = flat.window(flat.starts, 4, flat.ends)
        good = opening[0] == ord("<")
        bare = ~good
        digits = opening[1:] - np.uint8(ord("0"))
        count = np.zeros(len(flat), np.int64)
        going = good.copy()
        for digit in digits:
            going &= digit <= 9
            self.priority = np.where(going, self.priority * 10 + digit, self.priority)
            count += going
        header = flat.starts + count + 2
        behind = flat.window(header - 1, 3, flat.ends)
        good &= (count > 0) & (self.priority <= 191) & (behind[0] == ord(">"))
        self.prioritised = good
        self.reason[~good & ~bare] = NO_PRIORITY
        modern: Mask = good & (behind[1] == ord("1")) & (behind[2] == ord(" "))
        return np.where(bare, flat.starts, header), modern

    def _read_5424(self, rows: Positions, header: Positions, ends: Positions) -> None:
        """``1 TIME HOST APP PROCID MSGID STRUCTURED [MESSAGE]``; ``-`` stands for nothing."""
        spaces = self.flat.find(" ")
        first = np.searchsorted(spaces, header)
        padded = np.append(spaces, np.full(6, np.iinfo(np.int64).max))
        breaks = [np.minimum(padded[first + place], ends) for place in range(6)]
        reason = np.zeros(len(rows), np.int8)
        present = []
        for before, behind in itertools.pairwise(breaks):
            length = behind - before - 1
            reason[length < 1] = TOO_FEW
            present.append((length != 1) | (self.flat.at(before + 1, ends) != ord("-")))
        structured = breaks[5] + 1
        reason[structured >= ends] = TOO_FEW
        window = self.flat.window(breaks[0] + 1, timestamps.ISO_WIDTH, ends)
        micros, _, timed = timestamps.read_iso(window)
        reason[(reason == 0) & present[0] & ~timed] = BAD_TIMESTAMP
        for place, name in enumerate(("host", "app", "procid", "msgid"), start=1):
            self._set(name, rows, breaks[place] + 1, breaks[place + 1], present[place])
        structured_end, bracketed, valid = self._structured(structured, ends)
        reason[(reason == 0) & ~valid] = BAD_STRUCTURED
        self._set("structured", rows, structured, structured_end, bracketed)
        message = self._skip_byte_order_mark(np.minimum(structured_end + 1, ends), ends)
        self._set("message", rows, message, ends, np.ones(len(rows), np.bool_))
        self.reason[rows] = reason
        self._set_time(rows, micros, (reason == 0) & timed)

    def _structured(self, starts: Positions, ends: Positions) -> tuple[Positions, Mask, Mask]:
        """End of the structured data, where it has elements, and where it is well formed.

        An element ends at the first ``]`` outside of quotes, the data at the first that no ``[``
        follows; a space or the line's end must stand there. What is in the elements is not read.
        """
        opening = self.flat.window(starts, 2, ends)
        nil = (opening[0] == ord("-")) & ((opening[1] == ord(" ")) | (opening[1] == 0))
        structured_end = starts + 1
        bracketed = opening[0] == ord("[")
        closed = np.zeros(len(starts), np.bool_)
        if bracketed.any():
            closings = self._closing_brackets(starts[bracketed], ends[bracketed])
            structured_end = np.where(
                bracketed, following(closings, starts, ends) + 1, structured_end
            )
            behind = self.flat.at(structured_end, ends)
            closed = bracketed & ((structured_end == ends) | (behind == ord(" ")))
        return structured_end, bracketed, nil | closed

    def _closing_brackets(self, starts: Positions, ends: Positions) -> Positions:
        """In each of these rows every ``]`` outside of quotes that no ``[`` follows.

        Quotes are counted along all rows at once, and those before a row are taken off again.
        """
        marks = self.flat.find('"', "]")
        marks = marks[np.searchsorted(marks, starts[0]) :]
        is_bracket = self.flat.data[marks] == ord("]")
        is_quote = ~is_bracket
        is_quote[is_quote] = ~self._escaped(marks[is_quote])
        quotes = np.append(0, np.cumsum(is_quote))
        first_of_row = np.searchsorted(marks, starts)
        marks_of_row = np.diff(first_of_row, append=len(marks))
        within = quotes[1:] - np.repeat(quotes[first_of_row], marks_of_row)
        last = self.flat.data.take(marks + 1, mode="clip") != ord("[")
        last |= marks + 1 == np.repeat(ends, marks_of_row)
        closings: Positions = marks[is_bracket & last & (within % 2 == 0)]
        return closings

    def _escaped(self, quotes: Positions) -> Mask:
        """Where an odd number of backslashes stands before the quote."""
        escaped: Mask = self.flat.data[quotes - 1] == ord("\\")
        if escaped.any():
            backslashes = self.flat.find("\\")
            first_of_run = np.diff(backslashes, prepend=-2) != 1
            run_start = np.maximum.accumulate(np.where(first_of_run, backslashes, 0))
            before_quote = self.flat.data.take(backslashes + 1, mode="clip") == ord('"')
            before_quote &= backslashes >= quotes[0] - 1
            odd = (backslashes - run_start) % 2 == 0
            escaped[escaped] = odd[before_quote]
        return escaped

    def _skip_byte_order_mark(self, starts: Positions, ends: Positions) -> Positions:
        first, second, third = self.flat.window(starts, 3, ends)
        marked = (first == 0xEF) & (second == 0xBB) & (third == 0xBF)
        message: Positions = starts + 3 * marked
        return message

    def _read_3164(self, rows: Positions, header: Positions, ends: Positions) -> None:
        """``TIME HOST TAG[PID]: MESSAGE``, of which only the message must be there."""
        behind, timed = self._read_time(rows, header, ends)
        cursor = Cursor(self.flat, np.where(timed, behind, header), ends)
        cursor.skip_spaces()
        nameless = self._skip_lone_colon(cursor)
        after_time = np.where(timed, cursor.places, header)
        marks = self.flat.find(" ", ":", "[")
        spaces = marks[self.flat.data[marks] == ord(" ")]
        host_end = following(spaces, after_time, ends)
        mark = following(marks, after_time, ends)
        is_tag = (mark < host_end) & (
            (self.flat.at(mark, ends) == ord("[")) | (mark + 1 == host_end)
        )
        word_end = host_end
        named = is_tag & self._is_cisco(host_end, ends)
        if named.any():
            is_tag &= ~named
            word_end = np.where(named, mark, host_end)
        hosted = timed & ~is_tag & ~nameless & (host_end > after_time)
        self._set("host", rows, after_time, word_end, hosted)
        cursor.places = np.where(hosted, np.minimum(host_end + 1, ends), after_time)
        self._skip_lone_colon(cursor)
        self._read_tag(rows, cursor.places, ends, timed, marks)

    def _read_time(
        self, rows: Positions, header: Positions, ends: Positions
    ) -> tuple[Positions, Mask]:
        """Where the time ends, and which rows have one."""
        received = self.ts[rows]
        window = self.flat.window(header, timestamps.ISO_WIDTH, ends)
        micros, local = timestamps.read_bsd(window, received)
        iso_micros, iso_width, iso = timestamps.read_iso(window)
        micros = np.where(local, micros, iso_micros)
        behind = header + np.where(local, timestamps.BSD_WIDTH, iso_width)
        timed = local | iso
        others = np.flatnonzero(~timed)
        if len(others):
            found = device_times.read(self.flat, header[others], ends[others], received[others])
            micros[others] = found.micros
            behind[others] = found.behind
            local[others] = found.local & found.valid
            timed[others] = found.valid
        zoneless = np.flatnonzero(local)
        if self.timezone and len(zoneless):
            micros[zoneless] = to_utc(micros[zoneless], self.timezone, received[zoneless])
        self._set_time(rows, micros, timed)
        return behind, timed

    def _skip_lone_colon(self, cursor: Cursor) -> Mask:
        """Pass over a colon that is a word, as Cisco ASA writes it behind a host, or for none."""
        alone: Mask = cursor.byte() == ord(":")
        if alone.any():
            alone &= (cursor.byte(1) == ord(" ")) | (cursor.byte(1) == 0)
            cursor.move(alone)
            cursor.move(alone & (cursor.byte() == ord(" ")))
        return alone

    def _is_cisco(self, places: Positions, ends: Positions) -> Mask:
        """Where `` %ASA`` or the like stands, so that what ends before is no tag but a host."""
        window = self.flat.window(places, 3, ends)
        capital = (window[2] >= ord("A")) & (window[2] <= ord("Z"))
        found: Mask = capital & (window[0] == ord(" ")) & (window[1] == ord("%"))
        return found

    def _read_tag(
        self, rows: Positions, content: Positions, ends: Positions, timed: Mask, marks: Positions
    ) -> None:
        """``TAG:`` or ``TAG[PID]:`` at ``content``; without either, all of it is message."""
        mark = following(marks, content, ends)
        kind = self.flat.at(mark, ends)
        tagged = mark > content
        bracketed = tagged & (kind == ord("["))
        closing = mark
        if bracketed.any():
            closing = following(self.flat.find("]"), mark, ends)
            bracketed &= closing < ends
        numbered = bracketed & (closing > mark + 1)
        tagged &= bracketed | (kind == ord(":"))
        if not timed.all():
            tagged &= timed | self._is_lone_tag(
                content, np.where(bracketed, closing + 1, mark), ends
            )
            bracketed, numbered = bracketed & tagged, numbered & tagged
        self._set("app", rows, content, mark, tagged)
        self._set("procid", rows, mark + 1, closing, numbered)
        message = np.where(tagged, np.where(bracketed, closing, mark) + 1, content)
        message = message + (bracketed & (self.flat.at(message, ends) == ord(":")))
        message = message + (tagged & (self.flat.at(message, ends) == ord(" ")))
        self._set("message", rows, message, ends, np.ones(len(rows), np.bool_))

    def _is_lone_tag(self, content: Positions, colon: Positions, ends: Positions) -> Mask:
        """What may be a tag although no time stands before it: it begins with a letter, ``%``,
        ``/`` or ``_``, and a colon and a space, or the end, follow."""
        first = self.flat.at(content, ends)
        letter = ((first | np.uint8(0x20)) >= ord("a")) & ((first | np.uint8(0x20)) <= ord("z"))
        letter |= np.isin(first, np.frombuffer(b"%/_", np.uint8))
        behind = self.flat.at(colon + 1, ends)
        closed = (self.flat.at(colon, ends) == ord(":")) & ((behind == ord(" ")) | (behind == 0))
        found: Mask = letter & closed
        return found

    def _set(
        self, name: str, rows: Positions, starts: Positions, ends: Positions, present: Mask
    ) -> None:
        self.starts[name][rows] = starts
        self.ends[name][rows] = ends
        self.present[name][rows] = present

    def _set_time(self, rows: Positions, micros: npt.NDArray[np.int64], timed: Mask) -> None:
        self.ts[rows] = np.where(timed, micros, self.ts[rows])
        self.timed[rows] = timed
