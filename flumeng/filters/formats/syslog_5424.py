"""Lines of RFC 5424: fields between single spaces."""

from __future__ import annotations

import itertools

import numpy as np

from flumeng.events.byte_column import Mask, Positions, following
from flumeng.filters import iso8601, timestamps
from flumeng.filters.cursor import Cursor
from flumeng.filters.formats.escapes import behind_backslash
from flumeng.filters.formats.syslog_fields import SyslogFields


class Rfc5424(SyslogFields):
    def read_5424(self, rows: Positions, header: Positions, ends: Positions) -> None:
        """Read ``1 TIME HOST APP PROCID MSGID STRUCTURED [MESSAGE]``; ``-`` is null."""
        spaces = self.flat.find(" ")
        padded = np.append(spaces, np.full(6, np.iinfo(np.int64).max))
        time = iso8601.read(self.flat, header + 2, ends)
        first = np.searchsorted(spaces, np.where(time.shaped, time.behind, header + 2))
        breaks = [np.minimum(padded[first + number], ends) for number in range(5)]
        breaks = [np.minimum(header + 1, ends), *breaks]
        present, short = [], np.zeros(len(rows), np.bool_)
        for before, behind in itertools.pairwise(breaks):
            length = behind - before - 1
            short |= length < 1
            nil = (length == 1) & (self.flat.at(before + 1, ends) == ord("-"))
            present.append((length > 0) & ~nil)
        structured = np.minimum(breaks[5] + 1, ends)
        short |= structured >= ends
        timed = time.valid & (time.behind == breaks[1])
        micros = time.micros
        self.set_local(rows, micros, timed & time.local)
        wrong = present[0] & ~timed
        for number, name in enumerate(("host", "app", "procid", "msgid"), start=1):
            self.set(name, rows, breaks[number] + 1, breaks[number + 1], present[number])
        structured_end, bracketed, valid = self._structured(structured, ends)
        valid |= short
        self.set("structured", rows, structured, structured_end, bracketed & valid & ~short)
        behind = np.where(valid, np.minimum(structured_end + 1, ends), structured)
        message = self.skip_byte_order_mark(behind, ends)
        self.set("message", rows, message, ends, ~short)
        if wrong.any():
            counted = self._read_counted_seconds(rows, breaks, ends, wrong)
            wrong, short, valid = wrong & ~counted, short & ~counted, valid | counted
        self.fail("bad timestamp", rows, wrong, breaks[0] + 1, breaks[1])
        self.fail("too few fields", rows, short, breaks[0] + 1, ends)
        self.fail("bad structured data", rows, ~valid, structured, ends)
        self.set_time(rows, micros, timed)

    def _read_counted_seconds(
        self, rows: Positions, breaks: list[Positions], ends: Positions, where: Mask
    ) -> Mask:
        """Read ``1 1795169472.123456789 HOST APP MESSAGE`` of Meraki; return the rows with it."""
        chosen = np.flatnonzero(where)
        cursor = Cursor(self.flat, breaks[0][chosen] + 1, ends[chosen])
        seconds, width = cursor.number(10)
        matched = (width == 10) & cursor.skip(".")
        fraction, width = cursor.number(timestamps.FRACTION_DIGITS)
        matched &= (width > 0) & (cursor.byte() == ord(" ")) & (breaks[2] < ends)[chosen]
        nanos = fraction * 10 ** (timestamps.FRACTION_DIGITS - width)
        chosen = chosen[matched]
        meant = rows[chosen]
        self.ts[meant] = (seconds * timestamps.SECOND + nanos // 1000)[matched]
        self.timed[meant] = True
        for name in ("procid", "msgid", "structured"):
            self.present[name][meant] = False
        self.present["message"][meant] = True
        self.starts["message"][meant] = np.minimum(breaks[3] + 1, ends)[chosen]
        counted = np.zeros(len(rows), np.bool_)
        counted[chosen] = True
        return counted

    def _structured(self, starts: Positions, ends: Positions) -> tuple[Positions, Mask, Mask]:
        """Return the structured data's end, whether it has elements, and whether it is valid."""
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
        """Return each ``]`` outside quotes that no ``[`` follows, for all rows at once."""
        marks = self.flat.find('"', "]")
        marks = marks[np.searchsorted(marks, starts[0]) :]
        is_bracket = self.flat.data[marks] == ord("]")
        is_quote = ~is_bracket
        is_quote[is_quote] = ~behind_backslash(self.flat, marks[is_quote])
        quotes = np.append(0, np.cumsum(is_quote))
        first_of_row = np.searchsorted(marks, starts)
        marks_of_row = np.diff(first_of_row, append=len(marks))
        within = quotes[1:] - np.repeat(quotes[first_of_row], marks_of_row)
        last = self.flat.data.take(marks + 1, mode="clip") != ord("[")
        last |= marks + 1 == np.repeat(ends, marks_of_row)
        closings: Positions = marks[is_bracket & last & (within % 2 == 0)]
        return closings
