"""A place in each of many rows, moved on by what stands there: a small scanner for a whole column.

Each step looks at one byte of every row, so its cost is that of the steps, whatever the rows hold.
"""

from __future__ import annotations

import numpy as np

from flumeng.events.byte_column import ByteColumn, Bytes, Mask, Positions

MOST_SPACES = 8
"""A run of more is never passed over as one."""


class Cursor:
    """``places[i]`` is where row i is read next, never behind ``ends[i]`` by a step of its own."""

    def __init__(self, flat: ByteColumn, places: Positions, ends: Positions) -> None:
        self.places = places
        self.ends = ends
        self._flat = flat

    def byte(self, ahead: int = 0) -> Bytes:
        """The byte ``ahead`` of each place; 0 behind the row's end."""
        return self._flat.at(self.places + ahead, self.ends)

    def move(self, where: Mask, steps: int = 1) -> None:
        self.places = self.places + where * steps

    def skip(self, characters: str) -> Mask:
        """Pass over one of ``characters`` where it stands, and tell where it did."""
        byte = self.byte()
        found: Mask = byte == ord(characters[0])
        for character in characters[1:]:
            found |= byte == ord(character)
        self.move(found)
        return found

    def skip_spaces(self) -> Mask:
        """Pass over up to MOST_SPACES spaces, and tell where there was one."""
        found = going = self.skip(" ")
        for _ in range(MOST_SPACES - 1):
            if not going.any():
                break
            going = going & (self.byte() == ord(" "))
            self.move(going)
        return found

    def number(self, most: int) -> tuple[Positions, Positions]:
        """Pass over up to ``most`` digits: their value, and how many there were."""
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
        """Where a space or the row's end stands."""
        byte = self.byte()
        found: Mask = (byte == ord(" ")) | (byte == 0)
        return found
