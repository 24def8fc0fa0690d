"""Elements of JSON arrays and of concatenated objects, found in a stream of blocks. All elements of
a block are delimited at once by quotes and brackets, as in simdjson, and validated together by
msgspec. Texts stay verbatim except for white space between tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flumeng.connectors.objects.content import Content, text_from, without_mark
from flumeng.connectors.objects.formats import Rows, numbered
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.platform.errors import CorruptError
from flumeng.platform.json_surrogates import is_one_of, without_surrogates

SCAN_BYTES = 1 << 20
MOST_ELEMENT_BYTES = 1 << 24
_ARRAY, _COMMA, _OBJECT, _ARRAY_END, _OBJECT_END = b"[,{]}"
_QUOTE, _SPACE = b'" '
_BLANK = b" \t\n\r"
FIRST_BYTES, MOST_BYTES = 256, 1 << 20
"""First and largest step, in bytes, of the search for a value's end."""
MOST_NAME_BYTES = 1 << 20
_BLANKS = re.compile(rb"[ \t\n\r]*")
_SCALAR_END = re.compile(rb"[,\]}\s]")
_NUMBER_BEYOND = re.compile(rb"-?Infinity|NaN")
NOT_FINITE = "json: NaN and Infinity are not in JSON"
_decode = msgspec.json.Decoder(msgspec.Raw).decode
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


_IS_SHOWN = ~is_one_of(_BLANK)
_IS_MARK = is_one_of(b"[,{]}")
_STEPS = np.zeros(256, np.int8)
_STEPS[[_ARRAY, _OBJECT]] = 1
_STEPS[[_ARRAY_END, _OBJECT_END]] = -1


def parts(content: Content, source: ObjectsSource, start: int, end: int) -> Iterator[Rows]:
    """Yield rows [start, end). Raises CorruptError at the first damaged element."""
    _, blocks = text_from(content, source.encoding, 0)
    text = without_mark(blocks)
    bodies = elements_at(text, source.records.split(".")) if source.records else elements(text)
    return numbered(bodies, start, end)


def elements_at(blocks: Iterator[bytes], names: Sequence[str]) -> Iterator[pa.BinaryArray | str]:
    """Yield the elements of the array at the path ``names`` in each object. An object there is one
    element, null is none. Raises CorruptError for a missing step."""
    text = JsonText(blocks)
    while text.peek():
        yield from _below(text, names)


def _below(text: JsonText, names: Sequence[str]) -> Iterator[pa.BinaryArray | str]:
    if text.peek() == b"n":
        if b"".join(text.value()) != b"null":
            raise CorruptError("invalid JSON: expected null, an object or an array")
    elif not names:
        yield from elements(text.value())
    else:
        is_there = False
        for name in text.members():
            if name == names[0]:
                is_there = True
                yield from _below(text, names[1:])
            else:
                text.skip()
        if not is_there:
            raise CorruptError(f"a JSON object lacks {names[0]}, a step of the path `records`")


def elements(blocks: Iterator[bytes]) -> Iterator[pa.BinaryArray | str]:
    """Yield bodies of elements; ``NOT_FINITE`` precedes one with NaN or an infinity."""
    rest, inside = b"", 0
    for block in blocks:
        for first in range(0, len(block), SCAN_BYTES):
            scan = _Scan(rest + block[first : first + SCAN_BYTES], inside)
            bodies, beyond, broken = scan.bodies()
            yield from _apart(bodies, beyond)
            if broken:
                raise CorruptError("invalid JSON, or neither an array nor an object")
            rest, inside = scan.rest()
            if len(rest) > MOST_ELEMENT_BYTES:
                raise CorruptError(f"a JSON element is longer than {MOST_ELEMENT_BYTES} bytes")
    if inside or rest.strip(_BLANK):
        raise CorruptError("the JSON ends inside an array or object, or is neither")


def _apart(bodies: pa.BinaryArray, beyond: Sequence[int]) -> Iterator[pa.BinaryArray | str]:
    """Yield ``bodies``, with ``NOT_FINITE`` before each of those at the indices ``beyond``."""
    first = 0
    for number in (*beyond, len(bodies)):
        if first < number:
            yield bodies[first:number]
        if number < len(bodies):
            yield NOT_FINITE
            yield bodies[number : number + 1]
        first = number + 1


class _Scan:
    """The element separators in ``data``: ``kinds``, bytes of ``[,{]}``, at ``positions``; -1 for
    an array that began before. ``fits`` is false for surplus closing brackets, from which on
    ``data`` is ignored. ``checked``: ``data`` with ``[]`` for each NaN or infinity, which begin at
    ``beyond``."""

    def __init__(self, data: bytes, inside: int) -> None:
        """``inside``: 0, or the separator before ``data`` in the same array."""
        plain = data
        if b"\\" in data:
            plain = data.replace(b"\\\\", b"..").replace(b'\\"', b"..")
        text = np.frombuffer(plain, np.uint8)
        in_string = (np.cumsum(text == _QUOTE, dtype=np.uint8) & 1).view(np.bool_)
        self.shown = in_string | _IS_SHOWN[text]
        at = np.flatnonzero(_IS_MARK[text] & ~in_string)
        marks = text[at]
        steps = _STEPS[marks]
        after = np.cumsum(steps, dtype=np.int64) + bool(inside)
        self.fits = bool(not len(after) or after.min() >= 0)
        if not self.fits:
            limit = int(np.argmax(after < 0))
            at, marks, after, steps = at[:limit], marks[:limit], after[:limit], steps[:limit]
        before = after - steps
        opens = (before == 0) & (after == 1)
        openers = np.concatenate([[_ARRAY if inside else 0], marks[opens]])[np.cumsum(opens)]
        outer = opens | ((before == 1) & (after == 0))
        outer |= (marks == _COMMA) & (before == 1) & (openers == _ARRAY)
        self.data = self.checked = data
        self.beyond: list[int] = []
        if b"NaN" in data or b"Infinity" in data:
            self._mask_numbers(in_string)
        virtual = [inside] if inside else []
        self.positions = np.concatenate([np.full(len(virtual), -1), at[outer]])
        self.kinds = np.concatenate([np.array(virtual, np.uint8), marks[outer]])

    def _mask_numbers(self, in_string: Mask) -> None:
        checked = bytearray(self.data)
        for match in _NUMBER_BEYOND.finditer(self.data):
            first, last = match.span()
            if not in_string[first]:
                self.beyond.append(first)
                checked[first:last] = b"[]".ljust(last - first)
        self.checked = bytes(checked)

    def rest(self) -> tuple[bytes, int]:
        """Return the incomplete element at the end, and ``inside`` for it."""
        if not len(self.positions):
            return self.data.lstrip(_BLANK), 0
        last, kind = int(self.positions[-1]), int(self.kinds[-1])
        if kind == _OBJECT:
            return self.data[last:], 0
        return self.data[last + 1 :].lstrip(_BLANK), kind if kind in (_ARRAY, _COMMA) else 0

    def bodies(self) -> tuple[pa.BinaryArray, list[int], bool]:
        """Return the elements before the first invalid one, the indices with NaN or infinity, and
        whether one is invalid."""
        kept = self.shown.copy()
        separators = self.positions[np.isin(self.kinds, (_ARRAY, _COMMA, _ARRAY_END))]
        kept[separators[separators >= 0]] = False
        counts = np.zeros(len(kept) + 1, np.int32)
        np.cumsum(kept, out=counts[1:])
        left, right = self.kinds[:-1], self.kinds[1:]
        is_text = (left == _OBJECT) & (right == _OBJECT_END)
        is_element = np.isin(left, (_ARRAY, _COMMA)) & np.isin(right, (_COMMA, _ARRAY_END))
        is_between = np.isin(left, (_ARRAY_END, _OBJECT_END)) & np.isin(right, (_ARRAY, _OBJECT))
        is_blank = counts[self.positions[:-1] + 1] == counts[self.positions[1:]]
        is_empty = (left == _ARRAY) & (right == _ARRAY_END) & is_blank
        fits = is_text | is_empty | (is_element & ~is_blank) | (is_between & is_blank)
        begins = not len(self.positions) or not counts[max(int(self.positions[0]), 0)]
        fits &= begins
        chosen = (is_text | is_element) & ~is_empty
        starts, ends = self.positions[:-1] + ~is_text, self.positions[1:] + is_text
        good = len(fits)
        if not fits.all():
            good = int(np.argmin(fits))
        if good < len(fits) or not self._is_json(is_empty, is_text):
            good = self._first_broken(starts, ends, chosen, good)
        starts, ends = starts[:good][chosen[:good]], ends[:good][chosen[:good]]
        offsets = np.zeros(len(starts) + 1, np.int32)
        if len(starts):
            offsets[:-1], offsets[-1] = counts[starts], counts[ends[-1]]
        content = np.frombuffer(self.data, np.uint8)[kept]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
        bodies = pa.Array.from_buffers(pa.binary(), len(starts), buffers)
        begun = np.searchsorted(starts, self.beyond, "right")
        ended = np.searchsorted(ends, self.beyond, "right")
        beyond = np.unique(ended[begun > ended]).tolist()
        return bodies, beyond, good < len(fits) or not begins or not self.fits

    def _is_json(self, is_empty: Mask, is_text: Mask) -> bool:
        """Return whether all elements are valid JSON; validates them joined to one array."""
        if not len(is_text):
            return True
        stop = int(self.positions[-1]) + (self.kinds[-1] != _OBJECT)
        text = np.frombuffer(self.checked, np.uint8)[:stop].copy()
        arrays, ends = self.kinds == _ARRAY, self.kinds == _ARRAY_END
        ends[1:] &= ~is_empty
        commas = self.kinds == _ARRAY_END
        closes_empty = commas.copy()
        closes_empty[1:] &= is_empty
        closes_empty[0] = False
        opened = self.positions[arrays & (self.positions >= 0)]
        text[opened] = _SPACE
        text[self.positions[commas]] = _COMMA
        text[self.positions[closes_empty]] = _SPACE
        if is_text.any():
            text = np.insert(text, self.positions[1:][is_text] + 1, _COMMA)
        joined = text.tobytes().rstrip(_BLANK).removesuffix(b",")
        return _is_valid(b"[" + joined + b"]")

    def _first_broken(self, starts: Indices, ends: Indices, chosen: Mask, good: int) -> int:
        for number in np.flatnonzero(chosen[:good]).tolist():
            if not _is_valid(self.checked[starts[number] : ends[number]]):
                return int(number)
        return good


def _is_valid(text: bytes) -> bool:
    try:
        _decode(without_surrogates(text))
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


class JsonText:
    """A cursor in a JSON stream that skips values unparsed, and blanks before each token."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._block = b""
        self._at = 0

    def peek(self) -> bytes:
        """Return the next byte; empty at the end."""
        while True:
            blanks = _BLANKS.match(self._block, self._at)
            assert blanks is not None, "the pattern matches anywhere"
            self._at = blanks.end()
            if self._at < len(self._block):
                return self._block[self._at : self._at + 1]
            if not self._more():
                return b""

    def skip(self) -> None:
        for _ in self.value():
            pass

    def members(self) -> Iterator[str]:
        """Yield the names in an object; the caller consumes each value before the next name."""
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
        first = self.peek()
        if first in (b"", b",", b"]", b"}", b":"):
            raise CorruptError("truncated or invalid JSON")
        if first == b'"' or _STEPS[first[0]]:
            yield from self._balanced()
            return
        while (end := _SCALAR_END.search(self._block, self._at)) is None:
            yield self._block[self._at :]
            if not self._more():
                return
        yield self._block[self._at : end.start()]
        self._at = end.start()

    def _balanced(self) -> Iterator[bytes]:
        depth, in_string, size = 0, False, FIRST_BYTES
        while True:
            piece = self._block[self._at : self._at + size]
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                piece = piece[:-1]  # the escaped character is in the next block
            if not piece:
                rest, self._block, self._at = self._block[self._at :], b"", 0
                if not self._more():
                    raise CorruptError("the JSON ends inside an array, object or string")
                self._block = rest + self._block
                continue
            end, depth, in_string = _scanned(piece, depth, in_string)
            self._at += end or len(piece)
            yield piece[: end or None]
            if end:
                return
            size = min(2 * size, MOST_BYTES)

    def _name(self) -> str:
        if self.peek() != b'"':
            raise CorruptError("invalid JSON: an object has a member without a name")
        text = b""
        for piece in self._balanced():
            text += piece
            if len(text) > MOST_NAME_BYTES:
                raise CorruptError(f"a JSON name has more than {MOST_NAME_BYTES} bytes")
        self._take(b":")
        try:
            return str(json.loads(text.decode()))  # msgspec reads no lone surrogates
        except ValueError as error:
            raise CorruptError(f"invalid JSON: {error}") from error

    def _take(self, expected: bytes) -> None:
        actual = self.peek()
        if actual != expected:
            shown = ascii(actual.decode("latin-1")) if actual else "the end"
            raise CorruptError(f"invalid JSON: expected '{expected.decode()}', found {shown}")
        self._at += 1

    def _more(self) -> bool:
        self._block, self._at = next(self._blocks, b""), 0
        return bool(self._block)


def _scanned(piece: bytes, depth: int, in_string: bool) -> tuple[int, int, bool]:
    """Return the end of the value in ``piece``, or 0; depth and open string after it."""
    plain = piece
    if b"\\" in piece:
        plain = piece.replace(b"\\\\", b"..").replace(b'\\"', b"..")
    text = np.frombuffer(plain, np.uint8)
    quotes = text == _QUOTE
    inside = ((np.cumsum(quotes) + in_string) & 1).astype(np.bool_)
    after = depth + np.cumsum(np.where(inside, 0, _STEPS[text]), dtype=np.int64)
    ends = np.flatnonzero((after <= 0) & ~inside)
    if len(ends):
        return int(ends[0]) + 1, 0, False
    return 0, int(after[-1]), bool(inside[-1])
