"""Syslog lines, RFC 5424 and RFC 3164, a whole record batch at a time.

A line that begins with ``<PRI>1 `` is RFC 5424, else RFC 3164, with a priority or a time as in the
files of syslog daemons. A line without time or host keeps the receiver's ``ts`` or ``host``. Wrong
parts get a reason, and the others are kept. Each step works on all rows of a form, with positions
in the batch's flat bytes; headers that deviate from the RFCs take a second round of steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.config.functions import INTEGER
from flumeng.events.attributes import because
from flumeng.events.byte_column import ByteColumn, Mask, Positions, text
from flumeng.filters.formats import Parsed
from flumeng.filters.formats.syslog_3164 import Rfc3164
from flumeng.filters.formats.syslog_5424 import Rfc5424
from flumeng.filters.formats.syslog_fields import FIELDS
from flumeng.filters.options.parse import SYSLOG, Parse
from flumeng.filters.timestamps import to_utc
from flumeng.platform.errors import UserError

COLUMNS = pa.schema(
    [
        pa.field(name, pa.int32() if kind.name == INTEGER else pa.string())
        for name, kind in SYSLOG.items()
    ]
)


@dataclass(frozen=True)
class SyslogReader:
    timezone: str | None = None

    @classmethod
    def of(cls, options: Parse) -> SyslogReader:
        if options.timezone:
            try:
                to_utc(np.zeros(1, np.int64), options.timezone, np.zeros(1, np.int64))
            except pa.ArrowInvalid as error:
                raise UserError(
                    f"parse: this host lacks the time zone {options.timezone}: install tzdata"
                ) from error
        return cls(options.timezone)

    @property
    def columns(self) -> pa.Schema:
        return COLUMNS

    def read(self, bodies: pa.Array, received: pa.Array) -> Parsed:
        return parse(bodies, received, self.timezone)


def parse(body: pa.Array, received: pa.Array, timezone: str | None = None) -> Parsed:
    """Parse syslog lines. ``received``: the times of lines without one, as timestamp[us].
    ``timezone``: the IANA name of the zone of times without one, else UTC."""
    received_us = received.cast(pa.int64()).fill_null(0).to_numpy().copy()
    lines = _Lines(ByteColumn(body), received_us, timezone)
    lines.read()
    unknown = ~lines.prioritised
    pri = lines.priority
    columns = [
        pa.array(pri >> 3, pa.int32(), mask=unknown),
        pa.array(pri & 7, pa.int32(), mask=unknown),
        *(lines.field(name) for name in COLUMNS.names[2:]),
    ]
    ts = pa.array(lines.ts, pa.int64(), mask=received.is_null().to_numpy(False) & ~lines.timed)
    return Parsed(columns, lines.reasons, ts.cast(received.type), lines.field("host"))


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
