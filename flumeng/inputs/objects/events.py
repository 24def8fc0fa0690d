"""What is found in items, of many at once, as events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flumeng.inputs import Range
from flumeng.inputs.objects import lines
from flumeng.inputs.objects.lines import Cut
from flumeng.inputs.objects.opened import name_of
from flumeng.inputs.objects.parts import Part, Rows, Segment
from flumeng.journal.schema import READ_SCHEMA
from flumeng.state.items import Item

BATCH_BYTES = 4 << 20
BATCH_ROWS = 1 << 16
_PATH, _TRUNCATED = b"path", b"truncated"


class Gathered:
    """Parts of items, until they make a batch."""

    def __init__(self, piece: Range, *, keep_empty: bool) -> None:
        self._piece = piece
        self._keep_empty = keep_empty
        self._clear()

    def _clear(self) -> None:
        self._items: list[Item] = []
        self._parts: list[Part] = []
        self._bytes = self._rows = 0

    def add(self, item: Item, part: Part) -> Iterator[pa.RecordBatch]:
        """Gives batches once there is enough for them."""
        self._items.append(item)
        self._parts.append(part)
        if isinstance(part, Segment):
            self._bytes += len(part.data)
            self._rows += part.data.count(b"\n")
        else:
            self._bytes += part.bodies.nbytes
            self._rows += len(part.bodies)
        if self._bytes >= BATCH_BYTES or self._rows >= BATCH_ROWS:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Gives batches of all that is there."""
        items, parts = self._items, self._parts
        self._clear()
        if not parts:
            return
        found = _cut(parts, keep_empty=self._keep_empty)
        owners = np.repeat(np.arange(len(items)), found.counts)
        starts = np.fromiter((item.start for item in items), np.int64, len(items))
        offsets = found.positions + starts[owners]
        attrs = _Attributes(items, parts)
        times = np.fromiter((item.modified_us for item in items), np.int64, len(items))
        for first in range(0, len(offsets), BATCH_ROWS):
            rows = slice(first, first + BATCH_ROWS)
            yield self._batch(found.bodies[rows], offsets[rows], owners[rows], times, attrs)

    def _batch(
        self,
        bodies: pa.BinaryArray,
        offsets: npt.NDArray[np.int64],
        owners: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        attrs: _Attributes,
    ) -> pa.RecordBatch:
        count = len(offsets)
        columns = {
            "body": bodies,
            "ts": pa.array(times[owners]).view(READ_SCHEMA.field("ts").type),
            "host": pa.repeat(pa.scalar("", pa.string()), count),
            "attrs": attrs.of(owners),
            "journal": pa.repeat(pa.scalar(self._piece.partition, pa.string()), count),
            "seq": pa.array(offsets),
            "replayed": pa.repeat(pa.scalar(self._piece.replayed, pa.bool_()), count),
        }
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in READ_SCHEMA.names], schema=READ_SCHEMA
        )


class _Attributes:
    """Of the events of each part."""

    def __init__(self, items: Sequence[Item], parts: Sequence[Part]) -> None:
        cut = [isinstance(part, Segment) and part.cut for part in parts]
        names = [(_PATH, _TRUNCATED) if is_cut else (_PATH,) for is_cut in cut]
        values = [
            (name_of(item).encode(), b"true")[: len(name)]
            for item, name in zip(items, names, strict=True)
        ]
        self._widths = np.fromiter(map(len, names), np.int64, len(names))
        self._firsts = np.cumsum(self._widths) - self._widths
        self._names = pa.array([each for some in names for each in some], pa.binary())
        self._values = pa.array([each for some in values for each in some], pa.binary())

    def of(self, owners: npt.NDArray[np.int64]) -> pa.MapArray:
        widths = self._widths[owners]
        offsets = np.zeros(len(owners) + 1, np.int32)
        np.cumsum(widths, out=offsets[1:])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], widths)
        entries = pa.array(np.repeat(self._firsts[owners], widths) + within)
        keys, values = (of.take(entries).cast(pa.string()) for of in (self._names, self._values))
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)


def _cut(parts: Sequence[Part], *, keep_empty: bool) -> Cut:
    segments = [part for part in parts if isinstance(part, Segment)]
    if segments:
        return lines.cut(segments, keep_empty=keep_empty)
    rows = [part for part in parts if isinstance(part, Rows)]
    counts = np.fromiter((len(part.bodies) for part in rows), np.int64, len(rows))
    positions = np.concatenate([np.arange(part.position, part.end) for part in rows])
    return Cut(pa.concat_arrays([part.bodies for part in rows]), positions, counts)
