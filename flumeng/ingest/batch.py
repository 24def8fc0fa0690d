"""From chunks to Arrow batches, in the commit thread.

No Python code runs per line: bytes are joined once, lines are found, trimmed and measured by numpy
over whole arrays, and Arrow copies them out in one ``take``. numpy and Arrow let go of the
interpreter lock, so the event loop receives meanwhile. What is the same for a run of lines (host,
attributes, receive time) is repeated by run lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flumeng.ingest.chunk import Chunk, LineRules
from flumeng.ingest.framing import TRAILER_BYTES
from flumeng.journal.frame import MAX_ROWS, TARGET_BYTES
from flumeng.journal.schema import EVENT_SCHEMA

Indices = NDArray[np.int64]
Build = tuple[pa.RecordBatch, Mapping[str, object]]

_ABSENT = -1
_NEWLINE = 10


class Lines(NamedTuple):
    """Rows of a group of chunks: slices of the joined bytes, and which of them were cut short."""

    starts: Indices
    ends: Indices
    truncated: NDArray[np.bool_]


def build(chunks: Sequence[Chunk], on_truncated: Callable[[int], None]) -> Iterator[Build]:
    """Yield the frames that hold these chunks, in order, each with the state it makes true.

    ``on_truncated`` is told how many over-long lines were cut.
    """
    for group in _groups(chunks):
        yield from _frames(group, on_truncated)


def _groups(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if group and size + len(chunk.data) > TARGET_BYTES:
            yield group
            group, size = [], 0
        group.append(chunk)
        size += len(chunk.data)
    if group:
        yield group


def _frames(group: list[Chunk], on_truncated: Callable[[int], None]) -> Iterator[Build]:
    """One frame, nearly always; a group of very short lines is halved until it fits."""
    data = b"".join([chunk.data for chunk in group])
    lines = _find_lines(data, group)
    rows = len(lines.starts)
    if rows > MAX_ROWS and len(group) > 1:
        middle = len(group) // 2
        yield from _frames(group[:middle], on_truncated)
        yield from _frames(group[middle:], on_truncated)
        return
    state = {key: value for chunk in group for key, value in (chunk.state or {}).items()}
    assert rows <= MAX_ROWS or not state, "a chunk with state must fit into one frame"
    if rows or state:
        on_truncated(int(np.count_nonzero(lines.truncated)))
        batch = _to_batch(data, lines, group)
        for start in range(0, max(rows, 1), MAX_ROWS):
            yield batch.slice(start, MAX_ROWS), state


def _find_lines(data: bytes, group: list[Chunk]) -> Lines:
    """Neighbours that are cut by the same rules are cut in one pass."""
    found: list[Lines] = []
    begin = 0
    for (rules, bounded), run in groupby(
        group, key=lambda chunk: (chunk.origin.rules, chunk.bounds is not None)
    ):
        chunks = list(run)
        sizes = [len(chunk.data) for chunk in chunks]
        if bounded:
            starts, ends = _bounds(chunks, list(accumulate(sizes, initial=begin)))
        else:
            starts, ends = _split(data, begin, begin + sum(sizes))
        found.append(_cut(np.frombuffer(data, np.uint8), starts, ends, rules))
        begin += sum(sizes)
    if len(found) == 1:
        return found[0]
    return Lines(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _split(data: bytes, begin: int, end: int) -> tuple[Indices, Indices]:
    part = np.frombuffer(data, np.uint8, end - begin, begin) if end > begin else np.empty(0)
    ends = np.flatnonzero(part == _NEWLINE) + begin
    starts = np.empty_like(ends)
    starts[:1] = begin
    starts[1:] = ends[:-1] + 1
    return starts, ends


def _bounds(chunks: list[Chunk], places: list[int]) -> tuple[Indices, Indices]:
    columns: list[list[Indices]] = [[], []]
    for chunk, place in zip(chunks, places, strict=False):
        assert chunk.bounds is not None
        for column, bounds in zip(columns, chunk.bounds, strict=True):
            column.append(np.frombuffer(bounds, np.int64) + place)
    return np.concatenate(columns[0]), np.concatenate(columns[1])


def _cut(data: NDArray[np.uint8], starts: Indices, ends: Indices, rules: LineRules) -> Lines:
    """Take off trailers, cut over-long lines, drop empty ones."""
    if not len(starts):
        return Lines(starts, ends, np.zeros(0, np.bool_))
    truncated = ends - starts > rules.max_line_bytes + TRAILER_BYTES
    for _ in range(TRAILER_BYTES):
        last = data[ends - 1]
        trailing = np.logical_or.reduce([last == trailer for trailer in rules.trailers])
        trailing &= ends > starts
        if not trailing.any():
            break
        ends = ends - trailing
    truncated |= ends - starts > rules.max_line_bytes
    ends = np.minimum(ends, starts + rules.max_line_bytes)
    if not rules.keep_empty:
        filled = ends > starts
        if not filled.all():
            return Lines(starts[filled], ends[filled], truncated[filled])
    return Lines(starts, ends, truncated)


def _to_batch(data: bytes, lines: Lines, group: list[Chunk]) -> pa.RecordBatch:
    places = list(accumulate((len(chunk.data) for chunk in group), initial=0))
    counts = np.diff(np.searchsorted(lines.starts, places))
    chunk_of_row = np.repeat(np.arange(len(group)), counts)
    received = np.array([chunk.received_us for chunk in group], np.int64)
    columns = [
        _bodies(data, lines),
        pa.array(received[chunk_of_row]).view(EVENT_SCHEMA.field("ts").type),
        pa.array([chunk.origin.host for chunk in group]).take(pa.array(chunk_of_row)),
        _attributes(group, places, chunk_of_row, lines),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _bodies(data: bytes, lines: Lines) -> pa.Array:
    """Lines and the gaps between them alternate in one array; taking every other one copies the
    lines together."""
    rows = len(lines.starts)
    if not rows:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * rows, np.int32)
    offsets[0::2] = lines.starts
    offsets[1::2] = lines.ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    alternating = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, buffers)
    return alternating.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32)))


class _Pool:
    """Strings that rows refer to by index."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    def size(self) -> int:
        return len(self._places)

    def array(self) -> pa.Array:
        return pa.array(list(self._places), pa.string())


def _attributes(
    group: list[Chunk], places: list[int], chunk_of_row: Indices, lines: Lines
) -> pa.Array:
    """A matrix with a row for each attribute that events may have and a column for each event holds
    indices into the pools of names and values; what is absent drops out at the end."""
    names, values = _Pool(), _Pool()
    width = max(len(chunk.origin.attrs) for chunk in group)
    name_matrix = np.full((width, len(group)), _ABSENT, np.int32)
    value_matrix = np.full((width, len(group)), _ABSENT, np.int32)
    for column, chunk in enumerate(group):
        for row, (name, value) in enumerate(chunk.origin.attrs):
            name_matrix[row, column] = names.place(name)
            value_matrix[row, column] = values.place(value)
    name_of, value_of = name_matrix[:, chunk_of_row], value_matrix[:, chunk_of_row]

    def add(name: str, present: NDArray[np.bool_], value: Any) -> None:
        nonlocal name_of, value_of
        name_of = np.vstack([name_of, np.where(present, np.int32(names.place(name)), _ABSENT)])
        value_of = np.vstack([value_of, np.where(present, np.int32(value), _ABSENT)])

    if lines.truncated.any():
        add("truncated", lines.truncated, values.place("true"))
    pool = values.array()
    if any(chunk.file_offset is not None for chunk in group):
        shift = np.array([(chunk.file_offset or 0) for chunk in group]) - places[:-1]
        offsets = pa.array(lines.starts + shift[chunk_of_row]).cast(pa.string())
        in_file = np.array([chunk.file_offset is not None for chunk in group])[chunk_of_row]
        add("offset", in_file, values.size() + np.arange(len(offsets)))
        pool = pa.concat_arrays([pool, offsets])
    present = name_of != _ABSENT
    ends = np.zeros(len(chunk_of_row) + 1, np.int32)
    np.cumsum(present.sum(axis=0), out=ends[1:])
    return pa.MapArray.from_arrays(
        pa.array(ends),
        names.array().take(pa.array(name_of.T[present.T])),
        pool.take(pa.array(value_of.T[present.T])),
    )
