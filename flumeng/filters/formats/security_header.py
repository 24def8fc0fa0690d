"""The header that CEF and LEEF share: ``CEF:0|vendor|product|...``, bare or behind anything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.byte_column import ByteColumn, Mask, Positions, text


@dataclass(frozen=True)
class Header:
    """``starts`` and ``ends`` hold where each field lies, and ``behind`` what follows the last.

    ``named`` is where the format's name stands, ``whole`` where all of the fields do too.
    """

    flat: ByteColumn
    starts: list[Positions]
    ends: list[Positions]
    behind: Positions
    named: Mask
    whole: Mask

    @classmethod
    def of(cls, bodies: pa.Array, name: bytes, count: int, pipes: Positions) -> Header:
        """``count`` fields, of which the last may go to the end of the row."""
        flat = trimmed(bodies)
        place = pc.find_substring(bodies, name).to_numpy(zero_copy_only=False)
        named = place >= 0
        begin = np.where(named, flat.starts + place + len(name), flat.ends)
        begin = np.minimum(begin, flat.ends)
        first = np.searchsorted(pipes, begin)
        padded = np.append(pipes, np.full(count, np.iinfo(np.int64).max))
        ends = [np.minimum(padded[first + number], flat.ends) for number in range(count)]
        starts = [begin, *(np.minimum(end + 1, flat.ends) for end in ends[:-1])]
        whole: Mask = named & (ends[count - 2] < flat.ends)
        return cls(flat, starts, ends, np.minimum(ends[-1] + 1, flat.ends), named, whole)

    def columns(self, *, escaped: bool) -> list[pa.Array]:
        return [
            self._column(*bounds, escaped) for bounds in zip(self.starts, self.ends, strict=True)
        ]

    def _column(self, starts: Positions, ends: Positions, escaped: bool) -> pa.Array:
        found = text(self.flat.column(starts, ends, self.whole))
        if escaped and pc.any(pc.match_substring(found, "\\")).as_py():
            return pc.replace_substring_regex(found, r"\\([\\|])", r"\1")
        return found


def trimmed(bodies: pa.Array) -> ByteColumn:
    """Without the line's end."""
    flat = ByteColumn(bodies)
    for end in ("\n", "\r"):
        last = flat.at(flat.ends - 1, flat.ends) == ord(end)
        flat.ends = flat.ends - (last & (flat.ends > flat.starts))
    return flat
