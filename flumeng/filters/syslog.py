"""Syslog lines to columns, RFC 5424 and RFC 3164, a whole record batch at a time.

A line is read as RFC 5424 when ``<PRI>1 `` opens it, else as RFC 3164. That one asks for little:
after the priority, what has no time stamp is all message (RFC 3164 section 4.3.2), so ``ts`` and
``host`` stay those of the receiver. Rows are never looked at one by one: every step below works on
all rows of one of the two forms, with positions in the batch's flat bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flumeng.filters import timestamps
from flumeng.filters.byte_column import ByteColumn, Mask, Positions, following, text

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


def parse(body: pa.Array, received: pa.Array) -> Parsed:
    """Read every body; ``received`` is a timestamp[us] column that stands in for missing times."""
    lines = _Lines(ByteColumn(body), received.cast(pa.int64()).fill_null(0).to_numpy().copy())
    lines.read()
    good = lines.reason == 0
    pri = lines.priority
    fields = {name: lines.field(name) for name in FIELDS}
    columns = [
        pa.array(pri >> 3, pa.int32(), mask=~good),
        pa.array(pri & 7, pa.int32(), mask=~good),
        *(fields[field.name] for field in COLUMNS[2:]),
    ]
    ts = pa.array(lines.ts, pa.int64(), mask=received.is_null().to_numpy(False) & ~lines.timed)
    reasons = pa.array(REASONS, pa.string()).take(pa.array(lines.reason))
    return Parsed(columns, fields["host"], ts.cast(received.type), reasons)


class _Lines:
    """The work on one batch: fills in, row by row form, where each field lies."""

    def __init__(self, flat: ByteColumn, received: npt.NDArray[np.int64]) -> None:
        rows = len(flat)
        self.flat = flat
        self.reason = np.zeros(rows, np.int8)
        self.priority = np.zeros(rows, np.int64)
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

    def field(self, name: str) -> pa.Array:
        present = self.present[name] & (self.reason == 0)
        return text(self.flat.column(self.starts[name], self.ends[name], present))

    def _read_priority(self) -> tuple[Positions, Mask]:
        """Where the header begins behind ``<PRI>``, and which rows are RFC 5424."""
        flat = self.flat
        opening = flat.window(flat.starts, 4, flat.ends)
        good = opening[0] == ord("<")
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
        self.reason[~good] = NO_PRIORITY
        modern: Mask = good & (behind[1] == ord("1")) & (behind[2] == ord(" "))
        return header, modern

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
        micros, timed = timestamps.read_iso(window)
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

        ``]`` inside a value is escaped by RFC 5424, so the data ends at the first ``]`` that has
        no backslash before it and a space or the line's end behind it.
        """
        opening = self.flat.window(starts, 2, ends)
        nil = (opening[0] == ord("-")) & ((opening[1] == ord(" ")) | (opening[1] == 0))
        structured_end = starts + 1
        bracketed = opening[0] == ord("[")
        if bracketed.any():
            brackets = self.flat.find("]")
            brackets = brackets[self.flat.data[brackets - 1] != ord("\\")]
            closes = self.flat.data.take(brackets + 1, mode="clip") == ord(" ")
            closes |= np.isin(brackets + 1, ends, assume_unique=True)
            closing = following(brackets[closes], starts, ends)
            structured_end = np.where(bracketed, closing + 1, structured_end)
        return structured_end, bracketed, nil | (bracketed & (structured_end <= ends))

    def _skip_byte_order_mark(self, starts: Positions, ends: Positions) -> Positions:
        first, second, third = self.flat.window(starts, 3, ends)
        marked = (first == 0xEF) & (second == 0xBB) & (third == 0xBF)
        message: Positions = starts + 3 * marked
        return message

    def _read_3164(self, rows: Positions, header: Positions, ends: Positions) -> None:
        """``TIME HOST TAG[PID]: MESSAGE``, of which only the message must be there."""
        window = self.flat.window(header, timestamps.ISO_WIDTH, ends)
        micros, bsd = timestamps.read_bsd(window, self.ts[rows])
        iso_micros, iso = timestamps.read_iso(window)
        timed = bsd | iso
        marks = self.flat.find(" ", ":", "[")
        spaces = marks[self.flat.data[marks] == ord(" ")]
        after_time = np.where(bsd, header + timestamps.BSD_WIDTH, header)
        after_time = np.where(iso, following(spaces, header, ends) + 1, after_time)
        after_time = np.minimum(after_time, ends)
        self._set_time(rows, np.where(bsd, micros, iso_micros), timed)
        host_end = following(spaces, after_time, ends)
        mark = following(marks, after_time, ends)
        is_tag = (mark < host_end) & (
            (self.flat.at(mark, ends) == ord("[")) | (mark + 1 == host_end)
        )
        hosted = timed & ~is_tag & (host_end < ends) & (host_end > after_time)
        self._set("host", rows, after_time, host_end, hosted)
        content = np.where(hosted, host_end + 1, after_time)
        self._read_tag(rows, content, ends, timed, marks)

    def _read_tag(
        self, rows: Positions, content: Positions, ends: Positions, timed: Mask, marks: Positions
    ) -> None:
        """``TAG:`` or ``TAG[PID]:`` at ``content``; without either, all of it is message."""
        mark = following(marks, content, ends)
        kind = self.flat.at(mark, ends)
        tagged = timed & (mark > content)
        bracketed = tagged & (kind == ord("["))
        closing = mark
        if bracketed.any():
            closing = following(self.flat.find("]"), mark, ends)
            bracketed &= closing < ends
        numbered = bracketed & (closing > mark + 1)
        tagged &= bracketed | (kind == ord(":"))
        self._set("app", rows, content, mark, tagged)
        self._set("procid", rows, mark + 1, closing, numbered)
        message = np.where(tagged, np.where(bracketed, closing, mark) + 1, content)
        message = message + (bracketed & (self.flat.at(message, ends) == ord(":")))
        message = message + (tagged & (self.flat.at(message, ends) == ord(" ")))
        self._set("message", rows, message, ends, np.ones(len(rows), np.bool_))

    def _set(
        self, name: str, rows: Positions, starts: Positions, ends: Positions, present: Mask
    ) -> None:
        self.starts[name][rows] = starts
        self.ends[name][rows] = ends
        self.present[name][rows] = present

    def _set_time(self, rows: Positions, micros: npt.NDArray[np.int64], timed: Mask) -> None:
        self.ts[rows] = np.where(timed, micros, self.ts[rows])
        self.timed[rows] = timed
