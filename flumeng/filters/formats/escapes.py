"""Escapes and line ends, for many rows at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import ByteColumn, Mask, Positions


def behind_backslash(flat: ByteColumn, places: Positions) -> Mask:
    """Return whether an odd number of backslashes of the same row precedes each place."""
    backslashes = flat.find("\\")
    if not len(backslashes) or not len(places):
        return np.zeros(len(places), np.bool_)
    first_of_run = np.diff(backslashes, prepend=-2) != 1
    run_starts = np.maximum.accumulate(np.where(first_of_run, backslashes, 0))
    last = np.searchsorted(backslashes, places) - 1
    row_starts = flat.starts[np.searchsorted(flat.ends, places, side="right")]
    begun = np.maximum(run_starts[last], row_starts)
    escaped: Mask = (last >= 0) & (backslashes[last] == places - 1) & ((places - begun) % 2 == 1)
    return escaped


def unescape(texts: pa.Array) -> pa.Array:
    r"""Remove the backslash of ``\"`` and ``\\``; keep other backslashes, as in names of files."""
    return pc.replace_substring_regex(texts, r'\\(["\\])', r"\1")


def without_line_ends(bodies: pa.Array) -> ByteColumn:
    flat = ByteColumn(bodies)
    for end in ("\n", "\r"):
        last = flat.at(flat.ends - 1, flat.ends) == ord(end)
        flat.ends = flat.ends - (last & (flat.ends > flat.starts))
    return flat
