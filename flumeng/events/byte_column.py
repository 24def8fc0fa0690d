"""Text operations on a whole column at once, by positions in its byte array, without a loop over
rows: one ``searchsorted`` finds the next space of every row, one Arrow ``take`` a field of each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NEWLINE = 10


class ByteColumn:
    """The bytes of a column, binary or strings: row i is ``data[starts[i]:ends[i]]``; a null row is
    empty."""

    def __init__(self, column: pa.Array) -> None:
        assert column.type in (pa.binary(), pa.string()), column.type
        self._is_text = column.type == pa.string()
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
        self._buffer = pa.py_buffer(b"") if data is None else data
        last = int(bounds[-1])
        self.data = np.frombuffer(self._buffer, np.uint8, last)
        self.starts: Positions = bounds[:-1].astype(np.int64)
        self.ends: Positions = bounds[1:].astype(np.int64)
        self._first = int(bounds[0])
        self._found: dict[tuple[str, ...], Positions] = {}

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, positions: Positions, ends: Positions) -> Bytes:
        """Return the byte at each position; 0 at or after the row's end."""
        if not len(self.data):
            return np.zeros(positions.shape, np.uint8)
        return np.where(positions < ends, self.data.take(positions, mode="clip"), 0)

    def window(self, positions: Positions, width: int, ends: Positions) -> Bytes:
        """Return ``width`` bytes from each position, as matrix columns; 0 after the row's end."""
        if len(self.data) < width:
            return self._window(positions, width, ends)
        rolling = np.lib.stride_tricks.sliding_window_view(self.data, width)
        window = np.ascontiguousarray(rolling[np.minimum(positions, len(rolling) - 1)].T)
        short = np.flatnonzero(positions + width > ends)
        if len(short):
            window[:, short] = self._window(positions[short], width, ends[short])
        return window

    def _window(self, positions: Positions, width: int, ends: Positions) -> Bytes:
        return self.at(positions + np.arange(width)[:, None], ends)

    def find(self, *characters: str) -> Positions:
        """Return the sorted positions of all bytes that are one of ``characters``, remembered."""
        if characters in self._found:
            return self._found[characters]
        window = self.data[self._first :]
        hits = window == ord(characters[0])
        for character in characters[1:]:
            hits |= window == ord(character)
        positions: Positions = np.flatnonzero(hits)
        positions += self._first
        self._found[characters] = positions
        return positions

    def pieces(self, starts: Positions, ends: Positions) -> ByteColumn:
        """Return the rows ``data[starts[i]:ends[i]]``, which share these bytes and their finds."""
        found = ByteColumn.__new__(ByteColumn)
        vars(found).update(vars(self))
        found.starts, found.ends = starts, ends
        return found

    def array(self) -> pa.Array:
        return self.column(self.starts, self.ends, np.ones(len(self), np.bool_))

    def column(self, starts: Positions, ends: Positions, present: Mask) -> pa.Array:
        """Return a binary column of ``data[starts[i]:ends[i]]``; null where not ``present``."""
        absent = None if present.all() else ~present
        bounds = np.empty(2 * len(starts) + 1, np.int32)
        bounds[0:-1:2] = starts if absent is None else np.where(present, starts, 0)
        bounds[1::2] = ends if absent is None else np.where(present, ends, 0)
        bounds[-1] = len(self.data)
        pieces = pa.Array.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), self._buffer]
        )
        chosen = pa.array(np.arange(0, len(bounds) - 1, 2, dtype=np.int32), mask=absent)
        return pieces.take(chosen)

    def texts(self, starts: Positions, ends: Positions, present: Mask) -> pa.Array:
        """Return ``column`` as ``text``. Cut strings only where characters begin."""
        pieces = self.column(starts, ends, present)
        return pieces.view(pa.string()) if self._is_text else text(pieces)


def following(sorted_positions: Positions, origins: Positions, ends: Positions) -> Positions:
    """Return the first of ``sorted_positions`` at or after each origin, at most the row's end."""
    if not len(sorted_positions):
        return ends.copy()
    places = np.searchsorted(sorted_positions, origins)
    next_positions = np.minimum(sorted_positions.take(places, mode="clip"), ends)
    behind_all = places == len(sorted_positions)
    return np.where(behind_all, ends, next_positions) if behind_all.any() else next_positions


def contains(sorted_positions: Positions, positions: Positions) -> Mask:
    """Return whether each of ``positions`` is among ``sorted_positions``."""
    if not len(sorted_positions):
        return np.zeros(len(positions), np.bool_)
    at = np.searchsorted(sorted_positions, positions).clip(max=len(sorted_positions) - 1)
    hits: Mask = sorted_positions[at] == positions
    return hits


def text(column: pa.Array) -> pa.Array:
    """Return binary as strings, with U+FFFD for invalid UTF-8. Valid columns are not copied."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return _repaired(column)


def _repaired(column: pa.Array) -> pa.Array:
    """Decode all rows at once, joined with newlines. Newlines survive decoding, so the number of
    newlines up to the end of each row locates that end."""
    closed = pc.binary_join_element_wise(pc.fill_null(column, b""), b"", b"\n")
    before = ByteColumn(closed)
    newlines = before.find("\n")
    last_of_row = np.searchsorted(newlines, before.ends - 1)
    raw = before.data[before.starts[0] :].tobytes()
    data = np.frombuffer(raw.decode("utf-8", "replace").encode(), np.uint8)
    row_ends = np.flatnonzero(data == NEWLINE)[last_of_row]
    bounds = np.empty(2 * len(row_ends), np.int32)
    bounds[0] = 0
    bounds[2::2] = row_ends[:-1] + 1
    bounds[1::2] = row_ends
    pieces = pa.Array.from_buffers(
        pa.string(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    absent = column.is_null().to_numpy(zero_copy_only=False)
    return pieces.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32), mask=absent))
