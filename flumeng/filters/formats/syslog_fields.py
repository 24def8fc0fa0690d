"""The bounds of the fields of syslog lines, shared by both forms."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import misfit
from flumeng.events.byte_column import ByteColumn, Mask, Positions, text
from flumeng.filters.timestamps import to_utc

FIELDS = ("host", "app", "procid", "msgid", "structured", "message")
_BYTE_ORDER_MARK = (0xEF, 0xBB, 0xBF)


class SyslogFields:
    """The fields of syslog lines in a batch. ``reasons``: why a part of a line was not read."""

    def __init__(self, flat: ByteColumn, received: Positions, timezone: str | None) -> None:
        rows = len(flat)
        self.flat = flat
        self.timezone = timezone
        self.reasons = pa.nulls(rows, pa.string())
        self.priority = np.zeros(rows, np.int64)
        self.prioritised = np.zeros(rows, np.bool_)
        self.ts = received
        self.timed = np.zeros(rows, np.bool_)
        self.starts = {name: np.zeros(rows, np.int64) for name in FIELDS}
        self.ends = {name: np.zeros(rows, np.int64) for name in FIELDS}
        self.present = {name: np.zeros(rows, np.bool_) for name in FIELDS}

    def fail(
        self, why: str, rows: Positions, where: Mask, starts: Positions, ends: Positions
    ) -> None:
        if not where.any():
            return
        failed = np.zeros(len(self.flat), np.bool_)
        failed[rows[where]] = True
        first, last = np.zeros(len(failed), np.int64), np.zeros(len(failed), np.int64)
        first[rows[where]] = starts[where]
        last[rows[where]] = np.maximum(starts, ends)[where]
        values = text(self.flat.column(first, last, failed))
        self.reasons = pc.coalesce(self.reasons, misfit(f"syslog: {why}", values, failed))

    def set(
        self, name: str, rows: Positions, starts: Positions, ends: Positions, present: Mask
    ) -> None:
        self.starts[name][rows] = starts
        self.ends[name][rows] = ends
        self.present[name][rows] = present

    def set_local(self, rows: Positions, micros: Positions, local: Mask) -> None:
        zoneless = np.flatnonzero(local)
        if self.timezone and len(zoneless):
            received = self.ts[rows[zoneless]]
            micros[zoneless] = to_utc(micros[zoneless], self.timezone, received)

    def set_time(self, rows: Positions, micros: Positions, timed: Mask) -> None:
        self.ts[rows] = np.where(timed, micros, self.ts[rows])
        self.timed[rows] |= timed

    def skip_byte_order_mark(self, starts: Positions, ends: Positions) -> Positions:
        marked = self.flat.at(starts, ends) == _BYTE_ORDER_MARK[0]
        if not marked.any():
            return starts
        for ahead, byte in enumerate(_BYTE_ORDER_MARK):
            marked &= self.flat.at(starts + ahead, ends) == byte
        message: Positions = starts + 3 * marked
        return message

    def is_break(self, places: Positions, ends: Positions) -> Mask:
        byte = self.flat.at(places, ends)
        ended: Mask = (byte == ord(" ")) | (byte == 0)
        return ended
