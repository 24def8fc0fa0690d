"""Converts lines to UTF-8. A byte order mark is dropped, and selects UTF-16. NUL bytes before a
line are dropped: a program that writes at its old offset after a truncation leaves them."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flumeng.connectors.tail.options import UTF_8, width_of

MARK_BYTES = 3
_MARKS = ((b"\xef\xbb\xbf", UTF_8), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_NEWLINE, _NUL = b"\n", b"\0"


class CutLines(NamedTuple):
    """Lines separated by newlines, or given by ``bounds``. ``places``: offsets of the lines in the
    block, if different from those in ``data``. ``hole_bytes``: number of dropped NUL bytes."""

    data: bytes
    bounds: tuple[array[int], array[int]] | None = None
    places: array[int] | None = None
    hole_bytes: int = 0


class FileText:
    """Encoding of a file. ``mark_bytes``: byte order mark's length. ``codec``: None for UTF-8."""

    def __init__(self, encoding: str, beginning: bytes) -> None:
        marked = next(((mark, name) for mark, name in _MARKS if beginning.startswith(mark)), None)
        wide = width_of(encoding) == 2
        if marked and (encoding == UTF_8 or wide):
            encoding = marked[1]
        elif wide and not encoding.endswith(("le", "be")):
            encoding = "utf-16-le"
        self.mark_bytes = len(marked[0]) if marked and encoding == marked[1] else 0
        self.codec = None if encoding == UTF_8 else encoding
        self.width = width_of(encoding)
        self.nul = bytes(self.width)

    def whole(self, block: bytes) -> bytes:
        """Return the block without the first half of a character at its end."""
        return block[: len(block) // self.width * self.width]

    def ends(self, block: bytes) -> NDArray[np.int64]:
        """Return the ends of whole lines, each after the newline."""
        if self.width == 1:
            return np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE[0]) + 1
        order = ">u2" if self.codec == "utf-16-be" else "<u2"
        units = np.frombuffer(self.whole(block), order)
        return (np.flatnonzero(units == _NEWLINE[0]) + 1) * 2

    def newline_bytes(self, block: bytes) -> int | None:
        """Return the length of a newline at the block's start, 0 if there is none; None while too
        few bytes are there to know."""
        text = block[: 2 * self.width].decode(self.codec or "latin-1", "replace")
        if text == "\r" or len(block) < self.width:
            return None
        return self.width * (2 if text == "\r\n" else text[:1] == "\n")

    def cut(self, block: bytes) -> CutLines:
        """Return the lines of a block that ends with a line, with or without the newline."""
        if self.codec is not None:
            return self._decoded(block)
        if not block.endswith(_NEWLINE):
            block += _NEWLINE
        if _NUL not in block or (_NEWLINE + _NUL not in block and not block.startswith(_NUL)):
            return CutLines(block)
        ends = self.ends(block) - 1
        starts = np.concatenate(([0], ends[:-1] + 1))
        line_starts, holes = array("q", starts.tolist()), 0
        for row in np.flatnonzero(np.frombuffer(block, np.uint8)[starts] == 0).tolist():
            line = block[starts[row] : ends[row]]
            hole = len(line) - len(line.lstrip(_NUL))
            line_starts[row] += hole
            holes += hole
        return CutLines(block, (line_starts, array("q", ends.tolist())), hole_bytes=holes)

    def _decoded(self, block: bytes) -> CutLines:
        assert self.codec is not None
        lines, places, holes, begin = [], array("q"), 0, 0
        ends = self.ends(block).tolist()
        if not ends or ends[-1] < len(block):
            ends.append(len(block))
        for end in ends:
            text = block[begin:end].decode(self.codec, "replace")
            line = text.lstrip("\0")
            hole = (len(text) - len(line)) * self.width
            places.append(begin + hole)
            holes += hole
            lines.append(line.removesuffix("\n").encode())
            begin = end
        return CutLines(_NEWLINE.join([*lines, b""]), places=places, hole_bytes=holes)
