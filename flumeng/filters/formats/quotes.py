"""Quotes in many rows at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flumeng.events.byte_column import ByteColumn, Mask, Positions


@dataclass(frozen=True)
class Quotes:
    """``places`` of all quotes, sorted; of each row every other opens one, the next ends it."""

    flat: ByteColumn
    places: Positions
    before_row: Positions
    """How many stand before each row."""

    @classmethod
    def of(cls, flat: ByteColumn, quote: str, *, backslashes: bool) -> Quotes:
        """With ``backslashes`` one behind an odd number of them is no quote."""
        places = flat.find(quote)
        if backslashes and len(places):
            places = places[~behind_backslash(flat, places)]
        return cls(flat, places, np.searchsorted(places, flat.starts))

    @property
    def rows(self) -> Positions:
        """The row of each quote."""
        return np.searchsorted(self.flat.ends, self.places, side="right")

    @property
    def opening(self) -> Mask:
        within = np.arange(len(self.places)) - self.before_row[self.rows]
        found: Mask = within % 2 == 0
        return found

    def outside(self, marks: Positions) -> Positions:
        """Those of ``marks``, which are sorted, that are not between an opening and its end."""
        if not len(self.places):
            return marks
        before = np.searchsorted(self.places, marks)
        first = np.searchsorted(marks, self.flat.starts)
        counts = np.diff(np.append(first, len(marks)))
        found: Positions = marks[(before - np.repeat(self.before_row, counts)) % 2 == 0]
        return found


def behind_backslash(flat: ByteColumn, places: Positions) -> Mask:
    """Where an odd number of backslashes of the same row stands before."""
    backslashes = flat.find("\\")
    if not len(backslashes) or not len(places):
        return np.zeros(len(places), np.bool_)
    first_of_run = np.diff(backslashes, prepend=-2) != 1
    run_starts = np.maximum.accumulate(np.where(first_of_run, backslashes, 0))
    last = np.searchsorted(backslashes, places) - 1
    row_starts = flat.starts[np.searchsorted(flat.ends, places, side="right")]
    begun = np.maximum(run_starts[last], row_starts)
    found: Mask = (last >= 0) & (backslashes[last] == places - 1) & ((places - begun) % 2 == 1)
    return found
