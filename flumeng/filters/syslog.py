"""Syslog lines to columns, RFC 5424 and RFC 3164, a whole record batch at a time.

A line is read as RFC 5424 when ``<PRI>1 `` opens it, else as RFC 3164. That one asks for little:
a priority, or a time stamp as in the files that syslog daemons write. What has no time stamp keeps
the receiver's ``ts`` and ``host``. A part that is wrong has a reason, and the others are kept. Rows
are never looked at one by one: every step below works on all rows of one of the two forms, with
positions in the batch's flat bytes. Headers that are not written as the RFCs say are read in a
second, longer round of such steps, for those rows only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import ByteColumn, Mask, Positions, text
from flumeng.events.reasons import because
from flumeng.filters.syslog_3164 import Rfc3164
from flumeng.filters.syslog_5424 import Rfc5424
from flumeng.filters.syslog_fields import FIELDS

COLUMNS = (
    pa.field("facility", pa.int32()),
    pa.field("severity", pa.int32()),
    pa.field("app", pa.string()),
    pa.field("procid", pa.string()),
    pa.field("msgid", pa.string()),
    pa.field("structured", pa.string()),
    pa.field("message", pa.string()),
)


@dataclass(frozen=True)
class Parsed:
    """``columns`` in the order of COLUMNS; ``host`` null where the line names none.

    ``reasons`` is null where all of the line was read. ``ts`` is the line's own time where it has
    one.
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
    unknown = ~lines.prioritised
    pri = lines.priority
    fields = {name: lines.field(name) for name in FIELDS}
    columns = [
        pa.array(pri >> 3, pa.int32(), mask=unknown),
        pa.array(pri & 7, pa.int32(), mask=unknown),
        *(fields[field.name] for field in COLUMNS[2:]),
    ]
    ts = pa.array(lines.ts, pa.int64(), mask=received.is_null().to_numpy(False) & ~lines.timed)
    return Parsed(columns, fields["host"], ts.cast(received.type), lines.reasons)


class _Lines(Rfc5424, Rfc3164):
    def read(self) -> None:
        header, modern = self._read_priority()
        readable = self.prioritised | (self.flat.at(header, self.flat.ends) != ord("<"))
        for rows, read in ((modern, self.read_5424), (readable & ~modern, self.read_3164)):
            chosen = np.flatnonzero(rows)
            if len(chosen):
                read(chosen, header[chosen], self.flat.ends[chosen])
        unread = ~self.prioritised & ~self.timed
        if unread.any():
            self.reasons = pc.coalesce(because("syslog: no priority", unread), self.reasons)
            for name in FIELDS:
                self.present[name] &= ~unread

    def field(self, name: str) -> pa.Array:
        return text(self.flat.column(self.starts[name], self.ends[name], self.present[name]))

    def _read_priority(self) -> tuple[Positions, Mask]:
        """Where the header begins behind ``<PRI>``, if any, and which rows are RFC 5424."""
        flat = self.flat
        starts = self.skip_byte_order_mark(flat.starts, flat.ends)
        opening = flat.window(starts, 4, flat.ends)
        good = opening[0] == ord("<")
        digits = opening[1:] - np.uint8(ord("0"))
        count = np.zeros(len(flat), np.int64)
        going = good.copy()
        for digit in digits:
            going &= digit <= 9
            self.priority = np.where(going, self.priority * 10 + digit, self.priority)
            count += going
        header = starts + count + 2
        behind = flat.window(header - 1, 3, flat.ends)
        good &= (count > 0) & (self.priority <= 191) & (behind[0] == ord(">"))
        self.prioritised = good
        modern: Mask = good & (behind[1] == ord("1")) & (behind[2] == ord(" "))
        return np.where(good, header, starts), modern
