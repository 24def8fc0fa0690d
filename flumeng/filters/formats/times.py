"""Moments and days as programs write them in JSON and in fields, of a whole column at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from flumeng.events.byte_column import ByteColumn, Mask, Positions
from flumeng.filters import iso8601, timestamps

_DAY_WIDTH = 10


def moments(texts: pa.Array) -> tuple[Positions, Mask]:
    """Microseconds since the epoch, and where the text is ISO 8601 and nothing else; UTC where it
    names no zone."""
    found = iso8601.read_texts(texts)
    return found.micros, found.valid


def days(texts: pa.Array) -> tuple[Positions, Mask]:
    """Days since the epoch of ``2026-11-09``, and where the text is that and nothing else."""
    flat = ByteColumn(texts.cast(pa.binary()))
    window = flat.window(flat.starts, _DAY_WIDTH, flat.ends)
    digits = (window - np.uint8(ord("0"))).astype(np.int64)
    valid = (flat.ends - flat.starts == _DAY_WIDTH) & (window[4] == ord("-"))
    valid &= (window[7] == ord("-")) & (digits[[0, 1, 2, 3, 5, 6, 8, 9]].max(axis=0) <= 9)
    year = digits[0] * 1000 + digits[1] * 100 + digits[2] * 10 + digits[3]
    month, day = digits[5] * 10 + digits[6], digits[8] * 10 + digits[9]
    found, day_valid = timestamps.days_since_epoch(year, month, day)
    return found, valid & day_valid
