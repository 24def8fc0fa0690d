"""Builds Arrow batches from received blocks, in the commit thread.

numpy finds, trims and measures lines over whole arrays, which releases the interpreter lock for the
event loop. Arrays are made from buffers: ``pa.array`` would import pandas, and the compute
functions their registry, as much memory as the rest of the worker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flumeng.connectors.api.framing import Indices, Lines, find_lines
from flumeng.connectors.api.received_block import ReceivedBlock
from flumeng.events.buffers import offsets_of
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.frame import MAX_ROWS
from flumeng.platform.errors import UserError

if TYPE_CHECKING:
    from flumeng.journal.log.contract import Encoded

FRAME_BYTES = 1 << 20
"""Most bytes of raw lines in a frame, unless one block has more: they fit the CPU's cache."""

BUILT_BYTES = 8 << 20
"""Most bytes of uncompressed columns in a frame. LZ4 makes dictionaries unnecessary."""

FRAME_STATES = 256
"""Most blocks with source state in a frame: each names a file twice, by a path of up to 4 KiB."""

Build = tuple[pa.RecordBatch, Mapping[str, object]]

_UNFIT = (UserError, ValueError, OverflowError)
"""Errors of events that can never be encoded. After others the flow starts again, and events that
were not acknowledged are received again: a shortage of memory ends."""

_ROW_BYTES = 8 + 3 * 4
"""Bytes of a row without texts: its time, and the ends of its body, host and attributes."""

_ABSENT = -1


class Counts(NamedTuple):
    """The numbers of events in a block, of truncated lines, and of bytes cut off."""

    block: ReceivedBlock
    events: int
    truncated: int
    cut_bytes: int


class Run(NamedTuple):
    """Neighbouring rows with the same attributes, except for their ``offsets`` in a file."""

    rows: int
    attrs: tuple[tuple[str, str], ...]
    offsets: Indices | None


def encode(
    blocks: Sequence[ReceivedBlock],
    on_count: Callable[[Counts], None],
    on_unfit: Callable[[ReceivedBlock, Exception], None],
    make: Callable[[pa.RecordBatch, Mapping[str, object]], Encoded],
) -> Iterator[Encoded]:
    """Encode blocks to frames, yielded in order. ``on_count`` is called for each block before its
    frame is yielded. A block that cannot be encoded is passed to ``on_unfit`` and left out."""
    for group in _groups(blocks):
        yield from _encoded(group, on_count, on_unfit, make)


def _encoded(
    group: list[ReceivedBlock],
    on_count: Callable[[Counts], None],
    on_unfit: Callable[[ReceivedBlock, Exception], None],
    make: Callable[[pa.RecordBatch, Mapping[str, object]], Encoded],
) -> Iterator[Encoded]:
    counts: list[Counts] = []
    try:
        payloads = [make(*frame) for frame in build(group, counts.append)]
    except _UNFIT as error:
        middle = len(group) // 2
        if middle:
            yield from _encoded(group[:middle], on_count, on_unfit, make)
            yield from _encoded(group[middle:], on_count, on_unfit, make)
        else:
            on_unfit(group[0], error)
        return
    for counted in counts:
        on_count(counted)
    yield from payloads


def build(blocks: Sequence[ReceivedBlock], on_count: Callable[[Counts], None]) -> Iterator[Build]:
    """Yield the record batches of the blocks, in order, each with its source state. ``on_count`` is
    called for each block before its batch is yielded."""
    for group in _groups(blocks):
        yield from _frames(group, on_count)


def _groups(blocks: Iterable[ReceivedBlock]) -> Iterator[list[ReceivedBlock]]:
    group: list[ReceivedBlock] = []
    size = states = 0
    for block in blocks:
        full = size + block.received_bytes > FRAME_BYTES or states >= FRAME_STATES
        if group and (full or (block.columns is None) != (group[0].columns is None)):
            yield group
            group, size, states = [], 0, 0
        group.append(block)
        size += block.received_bytes
        states += block.state is not None
    if group:
        yield group


def _frames(group: list[ReceivedBlock], on_count: Callable[[Counts], None]) -> Iterator[Build]:
    """Yield the batches of a group of blocks, halving a group too large for a frame. A single block
    is cut into several frames, unless it has source state, which stays with all of its lines."""
    if group[0].columns is not None:
        yield _joined_columns(group, on_count), {}
        return
    data = b"".join([block.data for block in group])
    lines = find_lines(data, group)
    rows = len(lines.starts)
    places = np.array(_places(group))
    edges = np.searchsorted(lines.starts, places)
    counts = np.diff(edges)
    lengths = lines.ends - lines.starts
    fixed = np.array([_row_bytes(block.origin.host, block.origin.attrs) for block in group])
    fits = rows <= MAX_ROWS and lengths.sum() + counts @ fixed <= BUILT_BYTES
    if not fits and len(group) > 1:
        middle = len(group) // 2
        yield from _frames(group[:middle], on_count)
        yield from _frames(group[middle:], on_count)
        return
    state = {key: value for block in group for key, value in (block.state or {}).items()}
    assert rows <= MAX_ROWS or not state, "a block with state must fit into one frame"
    truncated, cut_bytes = (
        np.diff(np.concatenate([[0], np.cumsum(column)])[edges]).tolist()
        for column in (lines.cut_bytes > 0, lines.cut_bytes)
    )
    for counted in map(Counts, group, counts.tolist(), truncated, cut_bytes):
        on_count(counted)
    if not rows and state:
        yield NO_EVENTS, state
    elif fits or state:
        if rows:
            yield _to_batch(data, lines, group, places, counts), state
    else:
        for first, last in _parts(lengths + fixed[0]):
            part = Lines(*(column[first:last] for column in lines))
            yield _to_batch(data, part, group, places, np.array([last - first])), state


def _joined_columns(
    group: list[ReceivedBlock], on_count: Callable[[Counts], None]
) -> pa.RecordBatch:
    """Join blocks with columns. One block alone fits into a frame; several are of FRAME_BYTES."""
    batches = []
    for block in group:
        assert block.columns is not None
        on_count(Counts(block, block.columns.num_rows, 0, 0))
        batches.append(_with_attributes(block.columns, block.origin.attrs))
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches, EVENT_SCHEMA).combine_chunks().to_batches()
    return joined


def _with_attributes(events: pa.RecordBatch, attrs: tuple[tuple[str, str], ...]) -> pa.RecordBatch:
    """Add ``attrs`` behind the attributes of each event."""
    own = events.column(3)
    rows = offsets_of(own)
    names, values = (
        _followed(column, rows, [attr[part] for attr in attrs])
        for part, column in enumerate((own.keys, own.items))
    )
    ends = (rows - rows[0] + len(attrs) * np.arange(len(rows))).astype(np.int32)
    column = pa.MapArray.from_arrays(_fixed(pa.int32(), ends), names, values)
    return pa.RecordBatch.from_arrays([*events.columns[:3], column], schema=EVENT_SCHEMA)


def _followed(column: pa.StringArray, rows: NDArray[np.int32], more: list[str]) -> pa.Array:
    """Return the texts of a map column with ``more`` behind those of each row; row ``i`` has the
    texts from ``rows[i]`` to ``rows[i + 1]``."""
    places = offsets_of(column)
    own, added = memoryview(column.buffers()[2] or b""), "".join(more).encode()
    bounds = pairwise(places[rows].tolist())
    data = b"".join([part for start, end in bounds for part in (own[start:end], added)])
    lengths = np.insert(
        np.diff(places)[rows[0] : rows[-1]],
        np.repeat(rows[1:] - rows[0], len(more)),
        np.tile([len(text.encode()) for text in more], len(rows) - 1),
    )
    return _strings(column.type, lengths, data)


def _parts(sizes: Indices) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(sizes)
    first, before = 0, 0
    while first < len(sizes):
        last = int(np.searchsorted(ends, before + BUILT_BYTES, "right"))
        last = min(max(last, first + 1), first + MAX_ROWS)
        yield first, last
        first, before = last, int(ends[last - 1])


@lru_cache(maxsize=1024)
def _row_bytes(host: str, attrs: tuple[tuple[str, str], ...]) -> int:
    return _ROW_BYTES + len(host.encode()) + sum(8 + len("".join(a).encode()) for a in attrs)


def _to_batch(
    data: bytes, lines: Lines, group: list[ReceivedBlock], places: Indices, counts: Indices
) -> pa.RecordBatch:
    received = np.array([block.received_us for block in group])
    hosts = [block.origin.host.encode() for block in group]
    columns = [
        _strings(pa.binary(), lines.ends - lines.starts, _bodies(data, lines, group)),
        _fixed(EVENT_SCHEMA.field("ts").type, np.repeat(received, counts)),
        _strings(
            pa.string(),
            np.repeat([len(host) for host in hosts], counts),
            b"".join([host * count for host, count in zip(hosts, counts.tolist(), strict=True)]),
        ),
        _attributes(list(_runs(group, places, counts, lines))),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _places(blocks: Iterable[ReceivedBlock]) -> list[int]:
    """Return the start of each block in the joined bytes, and the end of the last one."""
    return list(accumulate((len(block.data) for block in blocks), initial=0))


def _bodies(data: bytes, lines: Lines, group: list[ReceivedBlock]) -> bytes:
    between = len(data) - int((lines.ends - lines.starts).sum())
    if between == len(lines.starts) and all(block.bounds is None for block in group):
        return data.replace(b"\n", b"")
    view = memoryview(data)
    bounds = zip(lines.starts.tolist(), lines.ends.tolist(), strict=True)
    return b"".join([view[start:end] for start, end in bounds])


def _runs(
    group: list[ReceivedBlock], places: Indices, counts: Indices, lines: Lines
) -> Iterator[Run]:
    """Yield the runs of each block; a truncated line is a run of its own."""
    cut = np.flatnonzero(lines.cut_bytes).tolist()
    stop = 0
    for block, position, count in zip(group, places.tolist(), counts.tolist(), strict=False):
        start, stop = stop, stop + count
        edges = {start, stop}
        for row in cut[bisect_left(cut, start) : bisect_left(cut, stop)]:
            edges |= {row, row + 1}
        for begin, end in pairwise(sorted(edges)):
            attrs, offsets = block.origin.attrs, None
            if lines.cut_bytes[begin]:
                attrs = (*attrs, ("truncated", "true"))
            if block.file_offset is not None:
                attrs = (*attrs, ("offset", ""))
                offsets = lines.starts[begin:end] + (block.file_offset - position)
                if block.file_places is not None:
                    places_of_rows = np.frombuffer(block.file_places, np.int64)
                    offsets = places_of_rows[begin - start : end - start] + block.file_offset
            yield Run(end - begin, attrs, offsets)


def _attributes(runs: list[Run]) -> pa.Array:
    """Return the map column of attributes; names and values lie row after row in two arrays."""
    width = max(len(run.attrs) for run in runs)
    counts = [run.rows for run in runs]
    name_lengths, value_lengths = (
        np.repeat(
            np.array([_lengths(run.attrs, part, width) for run in runs], np.int64), counts, axis=0
        )
        for part in (0, 1)
    )
    names, values = [], []
    row = 0
    for run in runs:
        names.append(_joined(run.attrs, 0) * run.rows)
        value = _joined(run.attrs, 1)
        if run.offsets is None:
            values.append(value * run.rows)
        else:
            texts = [b"%d" % offset for offset in run.offsets.tolist()]
            values.extend(value + text for text in texts)
            value_lengths[row : row + run.rows, len(run.attrs) - 1] = [len(t) for t in texts]
        row += run.rows
    present = name_lengths != _ABSENT
    return pa.MapArray.from_arrays(
        _fixed(pa.int32(), _ends(np.repeat([len(run.attrs) for run in runs], counts))),
        _strings(pa.string(), name_lengths[present], b"".join(names)),
        _strings(pa.string(), value_lengths[present], b"".join(values)),
    )


@lru_cache(maxsize=1024)
def _joined(attrs: tuple[tuple[str, str], ...], part: int) -> bytes:
    return "".join(attr[part] for attr in attrs).encode()


@lru_cache(maxsize=1024)
def _lengths(attrs: tuple[tuple[str, str], ...], part: int, width: int) -> list[int]:
    lengths = [len(attr[part].encode()) for attr in attrs]
    return lengths + [_ABSENT] * (width - len(lengths))


def _fixed(kind: pa.DataType, values: NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _strings(kind: pa.DataType, lengths: Indices, data: bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(_ends(lengths)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(lengths), buffers)


def _ends(lengths: Indices) -> NDArray[np.int32]:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return ends


_NO_LENGTHS = np.zeros(0, np.int64)
NO_EVENTS = pa.RecordBatch.from_arrays(
    [
        _strings(pa.binary(), _NO_LENGTHS, b""),
        _fixed(EVENT_SCHEMA.field("ts").type, _NO_LENGTHS),
        _strings(pa.string(), _NO_LENGTHS, b""),
        _attributes([Run(0, (), None)]),
    ],
    schema=EVENT_SCHEMA,
)
