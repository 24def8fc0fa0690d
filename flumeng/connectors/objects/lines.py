"""Lines of text: those of a range, and splitting many at once. A range has the lines whose first
byte lies in it: it is read from one byte before it to the end of its last line."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flumeng.connectors.objects.content import Content, text_from
from flumeng.connectors.objects.formats import Segment
from flumeng.connectors.objects.options import ObjectsSource

MOST_LINE_BYTES = 1 << 24
"""Longer lines are cut and marked."""
_NEWLINE, _RETURN = 10, 13


class Cut(NamedTuple):
    """Lines without line ends, their positions in the item, and ``counts`` of lines by segment."""

    bodies: pa.BinaryArray
    positions: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


def parts(content: Content, source: ObjectsSource, start: int, end: int) -> Iterator[Segment]:
    position, blocks = text_from(content, source.encoding, max(start - 1, 0))
    lines = segments(blocks, position, start, end)
    return lines if start or end <= len(codecs.BOM_UTF8) else _without_mark(lines)


def _without_mark(lines: Iterator[Segment]) -> Iterator[Segment]:
    for segment in lines:
        mark = len(codecs.BOM_UTF8) if segment.data.startswith(codecs.BOM_UTF8) else 0
        if segment.position or not mark:
            yield segment
        elif segment.data[mark:]:
            yield segment._replace(position=mark, data=segment.data[mark:])


def segments(blocks: Iterator[bytes], position: int, start: int, end: int) -> Iterator[Segment]:
    """Yield the lines that begin in [start, end). ``blocks`` begin at ``position`` <= ``start``."""
    held: _Held | None = None
    for first, block in _from_line(blocks, position, start):
        begin = 0
        if held is not None:
            begin = block.find(b"\n") + 1
            held.add(block[: begin or None])
            if not begin:
                continue
            yield held.segment()
        if first + begin >= end:
            return
        stop = max(block.rfind(b"\n") + 1, begin)
        if first + len(block) >= end:
            stop = block.find(b"\n", max(end - 1 - first, begin)) + 1 or stop
        if stop > begin:
            yield Segment(first + begin, first + stop, block[begin:stop])
        if first + stop >= end:
            return
        held = _Held(first + stop, block[stop:]) if stop < len(block) else None
    if held is not None:
        yield held.segment()


def _from_line(blocks: Iterator[bytes], position: int, start: int) -> Iterator[tuple[int, bytes]]:
    sought = start > position
    for block in blocks:
        skipped = 0
        if sought:
            skipped = block.find(b"\n", max(start - 1 - position, 0)) + 1
            sought = not skipped
        if not sought and skipped < len(block):
            yield position + skipped, block[skipped:]
        position += len(block)


class _Held:
    def __init__(self, position: int, beginning: bytes) -> None:
        self._position = position
        self._pieces = [beginning]
        self._size = len(beginning)

    def add(self, more: bytes) -> None:
        if self._size < MOST_LINE_BYTES + 2:
            self._pieces.append(more)
        self._size += len(more)

    def segment(self) -> Segment:
        data = b"".join(self._pieces)
        end = self._position + self._size
        body = data.removesuffix(b"\n").removesuffix(b"\r")
        if len(data) == self._size and len(body) <= MOST_LINE_BYTES:
            return Segment(self._position, end, data)
        return Segment(self._position, end, data[:MOST_LINE_BYTES], cut=True)


def cut(parts: Sequence[Segment], *, keep_empty: bool) -> Cut:
    """Return the segments' lines, without ``\\n`` or ``\\r\\n``; empty ones with ``keep_empty``."""
    whole = [s.data if s.data.endswith(b"\n") else s.data + b"\n" for s in parts]
    data = whole[0] if len(whole) == 1 else b"".join(whole)
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
    starts = np.empty_like(ends)
    starts[0], starts[1:] = 0, ends[:-1] + 1
    sizes = np.fromiter(map(len, whole), np.int64, len(whole))
    lasts = np.cumsum(sizes)
    stops = np.searchsorted(ends, lasts)
    shifts = np.fromiter((s.position for s in parts), np.int64, len(parts)) - (lasts - sizes)
    counts = np.diff(stops, prepend=0)
    positions = starts + np.repeat(shifts, counts)
    lengths = ends - starts
    if b"\r\n" in data:
        lengths -= np.frombuffer(data, np.uint8)[ends - 1] == _RETURN
        data = data.replace(b"\r\n", b"\n")
    data = data.replace(b"\n", b"")
    if not keep_empty and not lengths.all():
        kept = lengths > 0
        counts = np.add.reduceat(kept, stops - counts, dtype=np.int64)
        positions, lengths = positions[kept], lengths[kept]
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return Cut(pa.Array.from_buffers(pa.binary(), len(lengths), buffers), positions, counts)
