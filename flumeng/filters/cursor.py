"""A scanner for a whole column: it has a position in each row; a step reads a byte of every row."""

from __future__ import annotations

import numpy as np

from flumeng.events.byte_column import ByteColumn, Bytes, Mask, Positions

MOST_SPACES = 8
"""Most spaces that ``skip_spaces`` skips at once."""


class Cursor:
    """Positions in the rows of a column. Skipping stops at ``ends``, where bytes are read as 0."""

    def __init__(self, flat: ByteColumn, places: Positions, ends: Positions) -> None:
        self.places = places
        self.ends = ends
        self._flat = flat

    def byte(self, ahead: int = 0) -> Bytes:
        """Return the byte ``ahead`` bytes after each position; 0 after the end."""
        return self._flat.at(self.places + ahead, self.ends)

    def move(self, where: Mask, steps: int = 1) -> None:
        self.places = self.places + where * steps

    def skip(self, characters: str) -> Mask:
        """Skip one of ``characters``; return the rows that had one."""
        byte = self.byte()
        skipped: Mask = byte == ord(characters[0])
        for character in characters[1:]:
            skipped |= byte == ord(character)
        self.move(skipped)
        return skipped

    def skip_spaces(self) -> Mask:
        """Skip up to MOST_SPACES spaces; return the rows that had one."""
        skipped = going = self.skip(" ")
        for _ in range(MOST_SPACES - 1):
            if not going.any():
                break
            going = going & (self.byte() == ord(" "))
            self.move(going)
        return skipped

    def number(self, most: int) -> tuple[Positions, Positions]:
        """Skip up to ``most`` digits; return their value and count."""
        value = np.zeros(len(self.places), np.int64)
        width = np.zeros(len(self.places), np.int64)
        going = np.ones(len(self.places), np.bool_)
        for _ in range(most):
            digit = self.byte() - np.uint8(ord("0"))
            going &= digit <= 9
            if not going.any():
                break
            value = np.where(going, value * 10 + digit, value)
            width += going
            self.move(going)
        return value, width

    def return_to(self, places: Positions, where: Mask) -> None:
        self.places = np.where(where, places, self.places)

    def at_break(self) -> Mask:
        byte = self.byte()
        ended: Mask = (byte == ord(" ")) | (byte == 0)
        return ended
