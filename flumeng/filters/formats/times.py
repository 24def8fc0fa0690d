"""Moments as programs write them in JSON and in fields: ISO 8601, of a whole column at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from flumeng.filters import device_times, timestamps
from flumeng.filters.byte_column import ByteColumn, Mask, Positions

_DAY_WIDTH = 10


def moments(texts: pa.Array) -> tuple[Positions, Mask]:
    """Microseconds since the epoch, and where the text is a time and nothing else.

    ``2026-11-09T10:00:15.003Z``, with a space for the ``T``, with ``+01:00``, ``+0100`` or ``+01``,
    or without a zone, which is UTC; or a date alone.
    """
    flat = ByteColumn(texts.cast(pa.binary()))
    micros, width, valid = timestamps.read_iso(
        flat.window(flat.starts, timestamps.ISO_WIDTH, flat.ends)
    )
    valid &= width == flat.ends - flat.starts
    others = np.flatnonzero(~valid)
    if len(others):
        starts, ends = flat.starts[others], flat.ends[others]
        dashed = flat.at(starts + 4, ends) == ord("-")
        found = device_times.read(flat, starts, ends, np.zeros(len(others), np.int64))
        whole = found.valid & (found.behind == ends) & (flat.at(ends - 1, ends) != ord(":"))
        days, day_valid = _days(flat, starts, ends)
        micros[others] = np.where(whole, found.micros, days * 86_400 * timestamps.SECOND)
        valid[others] = (dashed & whole) | day_valid
    return micros, valid


def days(texts: pa.Array) -> tuple[Positions, Mask]:
    """Days since the epoch of ``2026-11-09``, and where the text is that and nothing else."""
    flat = ByteColumn(texts.cast(pa.binary()))
    return _days(flat, flat.starts, flat.ends)


def _days(flat: ByteColumn, starts: Positions, ends: Positions) -> tuple[Positions, Mask]:
    window = flat.window(starts, _DAY_WIDTH, ends)
    digits = (window - np.uint8(ord("0"))).astype(np.int64)
    valid = (ends - starts == _DAY_WIDTH) & (window[4] == ord("-")) & (window[7] == ord("-"))
    valid &= digits[[0, 1, 2, 3, 5, 6, 8, 9]].max(axis=0) <= 9
    year = digits[0] * 1000 + digits[1] * 100 + digits[2] * 10 + digits[3]
    month, day = digits[5] * 10 + digits[6], digits[8] * 10 + digits[9]
    found, day_valid = timestamps.days_since_epoch(year, month, day)
    return found, valid & day_valid
