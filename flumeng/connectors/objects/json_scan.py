"""JSON text that comes in blocks, one value at a time, without a look at what the values are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import numpy as np

from flumeng.platform.errors import CorruptError
from flumeng.platform.json_text import without_surrogates

FIRST_BYTES, MOST_BYTES = 256, 1 << 20
"""A value is looked at in steps from so few bytes, each twice the last one, to so many."""
MOST_NAME_BYTES = 1 << 20
_BLANKS = re.compile(rb"[ \t\n\r]*")
_SCALAR_END = re.compile(rb"[,\]}\s]")
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_QUOTE = b'"'


class JsonText:
    """Each call begins behind what the one before it has taken, and behind blanks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._block = b""
        self._at = 0

    def peek(self) -> bytes:
        """The byte that follows; nothing at the end."""
        while True:
            blanks = _BLANKS.match(self._block, self._at)
            assert blanks is not None, "it fits anywhere"
            self._at = blanks.end()
            if self._at < len(self._block):
                return self._block[self._at : self._at + 1]
            if not self._more():
                return b""

    def skip(self) -> None:
        """Passes over a value."""
        for _ in self.value():
            pass

    def members(self) -> Iterator[str]:
        """The names in an object. Whoever gets one takes the value before the next one is given."""
        self._take(b"{")
        if self.peek() == b"}":
            self._take(b"}")
            return
        while True:
            yield self._name()
            if self.peek() != b",":
                self._take(b"}")
                return
            self._take(b",")

    def value(self) -> Iterator[bytes]:
        """A value's text, piece by piece."""
        first = self.peek()
        if first in (b"", b",", b"]", b"}", b":"):
            raise CorruptError("it ends in the middle, or what follows is no JSON")
        if first == _QUOTE or _STEPS[first[0]]:
            yield from self._balanced()
            return
        while (end := _SCALAR_END.search(self._block, self._at)) is None:
            yield self._block[self._at :]
            if not self._more():
                return
        yield self._block[self._at : end.start()]
        self._at = end.start()

    def _balanced(self) -> Iterator[bytes]:
        """An array, an object or a string."""
        depth, in_string, size = 0, False, FIRST_BYTES
        while True:
            piece = self._block[self._at : self._at + size]
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                piece = piece[:-1]  # what it stands for is not there yet
            if not piece:
                rest, self._block, self._at = self._block[self._at :], b"", 0
                if not self._more():
                    raise CorruptError("it ends in the middle of an array, object or string")
                self._block = rest + self._block
                continue
            end, depth, in_string = _scanned(piece, depth, in_string)
            self._at += end or len(piece)
            yield piece[: end or None]
            if end:
                return
            size = min(2 * size, MOST_BYTES)

    def _name(self) -> str:
        if self.peek() != _QUOTE:
            raise CorruptError("what follows is no JSON: an object has a member without a name")
        text = b""
        for piece in self._balanced():
            text += piece
            if len(text) > MOST_NAME_BYTES:
                raise CorruptError(f"a name has more than {MOST_NAME_BYTES} bytes")
        self._take(b":")
        try:
            return msgspec.json.decode(without_surrogates(text), type=str)
        except msgspec.DecodeError as error:
            raise CorruptError(f"what follows is no JSON: {error}") from error

    def _take(self, wanted: bytes) -> None:
        found = self.peek()
        if found != wanted:
            said = ascii(found.decode("latin-1")) if found else "its end"
            raise CorruptError(f"what follows is no JSON: {said}, not '{wanted.decode()}'")
        self._at += 1

    def _more(self) -> bool:
        """The next block, when this one is used up."""
        self._block, self._at = next(self._blocks, b""), 0
        return bool(self._block)


def _scanned(piece: bytes, depth: int, in_string: bool) -> tuple[int, int, bool]:
    """Behind which byte the value ends, or 0, and what holds behind the piece. No escape is cut."""
    plain = piece
    if b"\\" in piece:
        plain = piece.replace(b"\\\\", b"..").replace(b'\\"', b"..")
    text = np.frombuffer(plain, np.uint8)
    quotes = text == _QUOTE[0]
    inside = ((np.cumsum(quotes) + in_string) & 1).astype(np.bool_)
    after = depth + np.cumsum(np.where(inside, 0, _STEPS[text]), dtype=np.int64)
    ends = np.flatnonzero((after <= 0) & ~inside)
    if len(ends):
        return int(ends[0]) + 1, 0, False
    return 0, int(after[-1]), bool(inside[-1])
