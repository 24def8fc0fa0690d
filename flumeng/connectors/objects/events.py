"""Makes batches of events from the parts of many items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flumeng.connectors.api.ranged import Range
from flumeng.connectors.objects import lines
from flumeng.connectors.objects.archives import Origin
from flumeng.connectors.objects.lines import Cut
from flumeng.connectors.objects.parts import Part, Rows, Segment
from flumeng.events.reasons import PARSE_ERROR
from flumeng.events.schema import READ_SCHEMA

BATCH_BYTES = 4 << 20
BATCH_ROWS = 1 << 16
_PATH, _TRUNCATED = b"path", b"truncated"
_ERROR = PARSE_ERROR.encode()


class Gathered:
    """Parts of items until they make a batch."""

    def __init__(self, piece: Range, *, keep_empty: bool) -> None:
        self._piece = piece
        self._keep_empty = keep_empty
        self._clear()

    def _clear(self) -> None:
        self._origins: list[Origin] = []
        self._parts: list[Part] = []
        self._bytes = self._rows = 0

    def add(self, origin: Origin, part: Part) -> Iterator[pa.RecordBatch]:
        """Yields batches once there is enough for one."""
        self._origins.append(origin)
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
        origins, parts = self._origins, self._parts
        self._clear()
        if not parts:
            return
        found = _cut(parts, keep_empty=self._keep_empty)
        count = len(origins)
        owners = np.repeat(np.arange(count), found.counts)
        starts = np.fromiter((one.item.start for one in origins), np.int64, count)
        offsets = found.positions + starts[owners]
        attrs = _Attributes(origins, parts)
        times = np.fromiter((one.modified_us for one in origins), np.int64, count)
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
    def __init__(self, origins: Sequence[Origin], parts: Sequence[Part]) -> None:
        entries = [
            [(_PATH, origin.path.encode()), *_marks(part)]
            for origin, part in zip(origins, parts, strict=True)
        ]
        self._widths = np.fromiter(map(len, entries), np.int64, len(entries))
        self._firsts = np.cumsum(self._widths) - self._widths
        self._names = pa.array([name for some in entries for name, _ in some], pa.binary())
        self._values = pa.array([value for some in entries for _, value in some], pa.binary())

    def of(self, owners: npt.NDArray[np.int64]) -> pa.MapArray:
        widths = self._widths[owners]
        offsets = np.zeros(len(owners) + 1, np.int32)
        np.cumsum(widths, out=offsets[1:])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], widths)
        entries = pa.array(np.repeat(self._firsts[owners], widths) + within)
        keys, values = (of.take(entries).cast(pa.string()) for of in (self._names, self._values))
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)


def _marks(part: Part) -> list[tuple[bytes, bytes]]:
    if isinstance(part, Segment):
        return [(_TRUNCATED, b"true")] if part.cut else []
    return [(_ERROR, part.error.encode())] if part.error else []


def _cut(parts: Sequence[Part], *, keep_empty: bool) -> Cut:
    segments = [part for part in parts if isinstance(part, Segment)]
    if segments:
        return lines.cut(segments, keep_empty=keep_empty)
    rows = [part for part in parts if isinstance(part, Rows)]
    counts = np.fromiter((len(part.bodies) for part in rows), np.int64, len(rows))
    positions = np.concatenate([np.arange(part.position, part.end) for part in rows])
    return Cut(pa.concat_arrays([part.bodies for part in rows]), positions, counts)
