"""Framing of streams: newlines, NUL bytes, octet counts (RFC 6587) or 4-byte lengths. Lines cost a
search for the last newline and a copy: the commit thread splits them (``find_lines``). Of messages,
only ends of over-long ones and data after an invalid length are dropped, both counted."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flumeng.connectors.api.received_block import LineRules, ReceivedBlock

if TYPE_CHECKING:
    import pyarrow as pa

Framing = Literal["auto", "newline", "nul", "octet-counted", "length-prefixed"]
Indices = NDArray[np.int64]

TRAILERS: Mapping[str, bytes] = {
    "datagram": b"\n\r",
    "newline": b"\r",
    "octet-counted": b"\n\r",
    "length-prefixed": b"",
    "syslog": b"\n\r\0",
}
"""Bytes to strip from a message's end: many senders count a newline as part of the message."""

TRAILER_BYTES = 2
"""At most this many trailing bytes are stripped from a message's end."""

_NEWLINE, _NUL = b"\n", b"\0"
_MAX_COUNT = 1 << 24  # a larger count is text
_MAX_COUNT_DIGITS = len(str(_MAX_COUNT))
_PRIORITY = b"<"  # begins each syslog message

_FRAME = re.compile(rb"(?<![0-9])([1-9][0-9]{0,7}) <[0-9]{1,3}>")
_FRAME_BYTES = 15  # of a count, a priority, and one byte before
_INVALID = "an invalid octet count: lines are cut at newlines until the next valid count"
_TOO_HIGH = "octet counts that are one too high, which is corrected"
_HEAD = re.compile(rb"[1-9][0-9]{0,7} <[0-9]{1,3}>")
_PROXY = b"PROXY "  # a load balancer may send one such line first

_PREFIX_BYTES = 4
_MAX_PREFIX = 1 << 28  # text reads as a length of 512 MiB or more


class Messages(NamedTuple):
    """Messages received together. ``bounds``: arrays of starts and ends, each message is
    ``data[start:end]``; None: each ends with a newline. ``incomplete``: the connection ended before
    the last message had its announced number of bytes. ``columns``: as in ``ReceivedBlock``."""

    data: bytes
    bounds: tuple[array[int], array[int]] | None = None
    incomplete: bool = False
    columns: pa.RecordBatch | None = None

    @property
    def nbytes(self) -> int:
        return len(self.data) if self.columns is None else int(self.columns.nbytes)

    @property
    def events(self) -> int:
        """Number of messages, including empty lines, which ``keep_empty`` may drop later."""
        if self.columns is not None:
            return int(self.columns.num_rows)
        return self.data.count(b"\n") if self.bounds is None else len(self.bounds[0])


class Cutter(Protocol):
    """Framing of one connection. Once it is ``malformed``, ``complaint`` describes the error, and
    if ``hopeless``, nothing more can be read. ``skipped``: number of dropped bytes."""

    malformed: bool
    skipped: int
    complaint: str
    hopeless: bool

    @property
    def held(self) -> int:
        """Number of buffered bytes of an unfinished message."""
        ...

    def feed(self, buffer: bytes | bytearray, size: int) -> list[Messages]: ...

    def end(self) -> list[Messages]: ...


def cutter(framing: Framing, max_line_bytes: int, *, nul_ends: bool = False) -> Cutter:
    if framing == "length-prefixed":
        return PrefixedFramer(max_line_bytes)
    if framing == "nul":
        return NulFramer(max_line_bytes)
    return Framer(framing, max_line_bytes, nul_ends=nul_ends)


class Framer:
    """Framing by newlines, with ``nul_ends`` also by NUL bytes, or by octet counts.

    ``auto`` decides by the first byte of the connection, after newlines and a PROXY protocol line:
    a digit from 1 to 9 begins an octet count. An invalid count sets ``malformed``; the stream is
    then cut at newlines up to the next count before a syslog priority. In ``auto``, a count over
    ``max_line_bytes`` is valid only before a syslog message: it may be a time that begins a line.
    Over-long messages keep at least a few bytes more than ``max_line_bytes``, by which the commit
    thread recognizes them; the others may be skipped."""

    __slots__ = (
        "_counting",
        "_dropped",
        "_guessing",
        "_limit",
        "_lost",
        "_most",
        "_needed",
        "_nul_ends",
        "_partial",
        "_recent",
        "_skip",
        "complaint",
        "malformed",
        "skipped",
    )
    hopeless = False

    def __init__(self, framing: Framing, max_line_bytes: int, *, nul_ends: bool = False) -> None:
        self._guessing = framing == "auto"
        self._counting = None if self._guessing else framing == "octet-counted"
        self._nul_ends = nul_ends
        self._most = max_line_bytes
        self._limit = max_line_bytes + TRAILER_BYTES + 1
        self._partial = bytearray()
        self._needed = 0
        self._skip = 0
        self._dropped = 0  # bytes of the unfinished line that are skipped
        self._lost = False  # the count of the next message is not known
        self._recent = b""  # the last bytes since then
        self.skipped = 0
        self.malformed = False
        self.complaint = _INVALID

    @property
    def held(self) -> int:
        return len(self._partial)

    def feed(self, buffer: bytes | bytearray, size: int) -> list[Messages]:
        """Frame the first ``size`` bytes of ``buffer``, which the caller may then overwrite."""
        if self._counting is None:
            return self._begin(bytes(self._partial) + bytes(memoryview(buffer)[:size]))
        if self._lost:
            return self._recover(bytes(memoryview(buffer)[:size]))
        return self._count(buffer, size) if self._counting else self._split(buffer, size)

    def _begin(self, data: bytes) -> list[Messages]:
        self._partial.clear()
        begin = data.lstrip(b"\r\n\0")
        proxy = begin.startswith(_PROXY)
        line_end = begin.find(_NEWLINE, 0, self._limit) + 1 if proxy else 0
        undecided = proxy and not line_end and len(begin) < self._limit
        if not begin or undecided or _PROXY.startswith(begin):
            self._partial += begin
            return []
        if line_end:
            return [Messages(begin[:line_end]), *self._begin(begin[line_end:])]
        self._counting = b"1" <= begin[:1] <= b"9"
        return self.feed(begin, len(begin))

    def _recover(self, data: bytes) -> list[Messages]:
        """Cut at newlines up to the next octet count before a priority."""
        seen = self._recent + data
        first = len(self._recent) == _FRAME_BYTES  # there was something before
        frames = (match for match in _FRAME.finditer(seen, first) if int(match[1]) <= _MAX_COUNT)
        frame = next(frames, None)
        if frame is None:
            self._recent = seen[-_FRAME_BYTES:]
            return self._split(data, len(data))
        begin = frame.start() - len(self._recent)
        messages = self._split(data, begin) if begin > 0 else []
        if begin < 0:
            unskipped = min(self._dropped, -begin)
            self.skipped -= unskipped
            del self._partial[len(self._partial) + begin + unskipped :]
        if self._partial:
            messages.append(Messages(bytes(self._partial) + _NEWLINE))
            self._partial.clear()
        self._lost, self._counting, self._recent, self._dropped = False, True, b"", 0
        rest = seen[frame.start() :]
        return messages + self._count(rest, len(rest))

    def end(self) -> list[Messages]:
        """Return the unfinished message, if any: the stream has ended."""
        rest = bytes(self._partial)
        self._partial.clear()
        count, space, _ = rest.partition(b" ")
        if not self._counting or not space:
            return [Messages(rest + _NEWLINE)] if rest else []
        bounds = array("q", [len(count) + 1]), array("q", [len(rest)])
        return [Messages(rest, bounds, incomplete=True)]

    def _split(self, buffer: bytes | bytearray, size: int) -> list[Messages]:
        view = memoryview(buffer)
        end = buffer.rfind(_NEWLINE, 0, size) + 1
        if self._nul_ends:
            end = max(end, buffer.rfind(_NUL, end, size) + 1)
        if not end:
            self._keep(view[:size])
            return []
        begin = 0
        if len(self._partial) >= self._limit:  # over-long: skip to its end
            begin = self._first_end(buffer, end)
            self.skipped += begin
        self._dropped = 0
        data = b"".join((self._partial, view[begin:end]))
        self._partial.clear()
        self._keep(view[end:size])
        return [Messages(data.replace(_NUL, _NEWLINE) if self._nul_ends else data)]

    def _first_end(self, buffer: bytes | bytearray, end: int) -> int:
        newline = buffer.find(_NEWLINE, 0, end)
        nul = buffer.find(_NUL, 0, end if newline < 0 else newline) if self._nul_ends else -1
        return newline if nul < 0 else nul

    def _keep(self, rest: memoryview) -> None:
        kept = rest[: self._limit - len(self._partial)]
        self._partial += kept
        self.skipped += len(rest) - len(kept)
        self._dropped += len(rest) - len(kept)

    def _count(self, buffer: bytes | bytearray, size: int) -> list[Messages]:
        skipped = min(self._skip, size)
        self._skip -= skipped
        self.skipped += skipped
        view = memoryview(buffer)[skipped:size]
        if not view:
            return []
        if len(self._partial) + len(view) < self._needed:
            self._partial += view
            return []
        data = b"".join((self._partial, view))
        self._partial.clear()
        starts, ends = array("q"), array("q")
        rest = self._walk(data, starts, ends)
        messages = [Messages(data, (starts, ends))] if starts else []
        if self._lost:
            self.malformed, self._counting, self.complaint = True, False, _INVALID
            return messages + self._recover(data[rest:])
        self._partial += memoryview(data)[rest:]
        return messages

    def _walk(self, data: bytes, starts: array[int], ends: array[int]) -> int:
        """Append the bounds of messages. Return the start of the first incomplete one, or of an
        invalid count, which sets ``_lost``."""
        position, size, limit = 0, len(data), self._limit
        self._needed = 0
        while position < size:
            space = data.find(b" ", position, position + _MAX_COUNT_DIGITS + 1)
            count = data[position : position + _MAX_COUNT_DIGITS + 1 if space < 0 else space]
            if not count.isdigit():
                if count[:1] in (_NEWLINE, _NUL, b"\r"):  # some senders do not count them
                    position += 1
                    continue
                end = self._without_drift(data, starts, ends)
                if end is not None:
                    position = end
                    continue
                self._lost = True
                return position
            if space < 0:
                self._lost = len(count) > _MAX_COUNT_DIGITS
                return position
            start, length = space + 1, int(count)
            if length > self._most:
                if self._guessing and start == size:
                    return position
                if not self._believes(length, data[start : start + 1]):
                    self._lost = True
                    return position
            end = start + (length if length <= limit else limit)
            if end > size:
                self._needed = end - position
                return position
            starts.append(start)
            ends.append(end)
            position = start + length
            if length > limit:
                self.skipped += min(position, size) - end
        self._skip = position - size
        return size

    def _without_drift(self, data: bytes, starts: array[int], ends: array[int]) -> int | None:
        """Correct the last two messages of a sender whose counts are one too high: the first took
        a digit of the second's count. Return the second's end; None when the data does not fit."""
        if len(starts) < 2 or not data[starts[-2]] == data[starts[-1]] == _PRIORITY[0]:
            return None
        head, start = ends[-2] - 1, starts[-1]
        count = data[head : start - 1]
        if not count.isdigit() or count.startswith(b"0") or int(count) > self._most:
            return None
        end = start + int(count) - 1
        if end != len(data) and not _HEAD.match(data, end):
            return None
        ends[-2], ends[-1] = head, end
        self.malformed, self.complaint = True, _TOO_HIGH
        return end

    def _believes(self, count: int, first: bytes) -> bool:
        return count <= _MAX_COUNT and (not self._guessing or first == _PRIORITY)


class NulFramer(Framer):
    """Framing by NUL bytes; messages may contain newlines."""

    __slots__ = ()

    def __init__(self, max_line_bytes: int) -> None:
        super().__init__("newline", max_line_bytes)

    def end(self) -> list[Messages]:
        return self._split(_NUL, 1) if self._partial else []

    def _split(self, buffer: bytes | bytearray, size: int) -> list[Messages]:
        view = memoryview(buffer)
        end = buffer.rfind(_NUL, 0, size) + 1
        if not end:
            self._keep(view[:size])
            return []
        begin = 0
        if len(self._partial) >= self._limit:
            begin = buffer.find(_NUL, 0, end)
            self.skipped += begin
        data = b"".join((self._partial, view[begin:end]))
        self._partial.clear()
        self._keep(view[end:size])
        ends = array("q", [nul.start() for nul in re.finditer(_NUL, data)])
        return [Messages(data, (array("q", [0, *(end + 1 for end in ends[:-1])]), ends))]


class PrefixedFramer(Framer):
    """Framing by a length before each message, 4 bytes big-endian."""

    __slots__ = ()
    hopeless = True

    def __init__(self, max_line_bytes: int) -> None:
        super().__init__("octet-counted", max_line_bytes)
        self.complaint = "an invalid length prefix: the rest of the data is discarded"

    def feed(self, buffer: bytes | bytearray, size: int) -> list[Messages]:
        if self.malformed:
            self.skipped += size
            return []
        return super().feed(buffer, size)

    def end(self) -> list[Messages]:
        rest = bytes(self._partial)
        self._partial.clear()
        if len(rest) <= _PREFIX_BYTES:
            self.skipped += len(rest)
            return []
        bounds = array("q", [_PREFIX_BYTES]), array("q", [len(rest)])
        return [Messages(rest, bounds, incomplete=True)]

    def _walk(self, data: bytes, starts: array[int], ends: array[int]) -> int:
        position, size, limit = 0, len(data), self._limit
        self._needed = 0
        while position + _PREFIX_BYTES <= size:
            start = position + _PREFIX_BYTES
            length = int.from_bytes(data[position:start], "big")
            if length > _MAX_PREFIX:
                self.malformed = True
                self.skipped += size - position
                return size
            end = start + min(length, limit)
            if end > size:
                self._needed = end - position
                return position
            starts.append(start)
            ends.append(end)
            position = start + length
            self.skipped += min(position, size) - end
        self._skip = max(position - size, 0)
        return min(position, size)


class Lines(NamedTuple):
    """Messages as slices of joined data. ``cut_bytes``: bytes cut off each over-long one, or 0."""

    starts: Indices
    ends: Indices
    cut_bytes: Indices


def find_lines(data: bytes, group: Sequence[ReceivedBlock]) -> Lines:
    """Return the messages of blocks joined in ``data``; adjacent equal rules share a pass."""
    lines: list[Lines] = []
    begin = 0
    for (rules, bounded), run in groupby(
        group, key=lambda block: (block.origin.rules, block.bounds is not None)
    ):
        blocks = list(run)
        end = begin + sum(len(block.data) for block in blocks)
        starts, ends = _bounds(blocks, begin) if bounded else _split_lines(data, begin, end)
        lines.append(_trim(np.frombuffer(data, np.uint8), starts, ends, rules))
        begin = end
    if len(lines) == 1:
        return lines[0]
    return Lines(*(np.concatenate(column) for column in zip(*lines, strict=True)))


def _split_lines(data: bytes, begin: int, end: int) -> tuple[Indices, Indices]:
    part = np.frombuffer(data, np.uint8)[begin:end]
    ends = np.flatnonzero(part == _NEWLINE[0]) + begin
    starts = np.empty_like(ends)
    starts[:1] = begin
    starts[1:] = ends[:-1] + 1
    return starts, ends


def _bounds(blocks: list[ReceivedBlock], begin: int) -> tuple[Indices, Indices]:
    columns: list[list[Indices]] = [[], []]
    for block in blocks:
        assert block.bounds is not None
        for column, bounds in zip(columns, block.bounds, strict=True):
            column.append(np.frombuffer(bounds, np.int64) + begin)
        begin += len(block.data)
    return np.concatenate(columns[0]), np.concatenate(columns[1])


def _trim(data: NDArray[np.uint8], starts: Indices, ends: Indices, rules: LineRules) -> Lines:
    """Strip trailers, cut over-long lines, drop empty ones unless ``rules`` keep them."""
    if not len(starts) or not len(data):
        return Lines(starts[:0], ends[:0], starts[:0])
    whole = ends
    overlong = ends - starts > rules.max_line_bytes + TRAILER_BYTES
    for _ in range(TRAILER_BYTES):
        last = data[ends - 1]
        trailing = np.logical_or.reduce([last == trailer for trailer in rules.trailers])
        trailing &= ends > starts
        if not trailing.any():
            break
        ends = ends - trailing
    overlong |= ends - starts > rules.max_line_bytes
    ends = np.minimum(ends, starts + rules.max_line_bytes)
    cut_bytes = np.where(overlong, whole - ends, 0)
    if not rules.keep_empty:
        filled = ends > starts
        if not filled.all():
            return Lines(starts[filled], ends[filled], cut_bytes[filled])
    return Lines(starts, ends, cut_bytes)
