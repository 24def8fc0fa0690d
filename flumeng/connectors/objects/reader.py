"""Executor-side reader of lane ranges: lines or rows of items as they were listed. A damaged item
yields all events before the damage, then UnreadableError."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.objects import lines
from flumeng.connectors.objects.archives import Origin, kind_of, parts_of_members
from flumeng.connectors.objects.compression import content_of
from flumeng.connectors.objects.content import Allowance, Content, is_utf8
from flumeng.connectors.objects.formats import MODULES, Part, Rows, Segment, parts_of
from flumeng.connectors.objects.lines import Cut
from flumeng.connectors.objects.open_item import SMALL_BYTES, ChangedError, OpenItem, name_of
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.ranged.reading import Secrets, resolved
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import MOST_POSITION, Item
from flumeng.events.attributes import PARSE_ERROR
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError, UserError
from flumeng.platform.options.locations import located

THREADS = 8
GROUPS_AHEAD = 12
GROUP_ITEMS = 16
GROUP_BYTES = 2 * SMALL_BYTES

Open = Callable[[Item], OpenItem]
Result = OpenItem | FlumengError


@dataclass(frozen=True)
class ObjectsReader:
    """``Reader`` of objects; an address encodes the range's items, see ``items.encode``."""

    source: ObjectsSource
    resolved: Secrets = ()

    @classmethod
    def of(cls, source: ObjectsSource) -> ObjectsReader:
        try:
            is_utf8(source.encoding)
        except LookupError as error:
            why = f'objects: unknown encoding "{source.encoding}": use utf-8, latin-1 or another'
            raise UserError(f"{why} codec of Python") from error
        return cls(source, resolved(source.credentials))

    @property
    def schema(self) -> pa.Schema:
        return READ_SCHEMA

    @property
    def modules(self) -> frozenset[str]:
        return frozenset({MODULES[self.source.format]})

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Yield events. Raises UnreadableError with the offset, which callers cannot count: there
        are unused offsets between events."""
        touched = [
            item
            for item in items.decode(address)
            if item.begin < piece.end
            and item.end > piece.start
            and (item.until is None or item.start + item.until > max(piece.start, item.begin))
        ]
        gathered = Gathered(piece, keep_empty=self.source.format == "lines")
        for item, opened in _opened_ahead(touched, self._open):
            begin = offset = max(piece.start, item.begin)
            try:
                for origin, part in self._parts(opened, piece):
                    offset = item.start + part.end
                    yield from gathered.add(origin, part)
            except FlumengError as error:
                if isinstance(error, ChangedError):
                    offset = begin
                yield from gathered.flush()
                why = " ".join(f"{name_of(item)}: {error}".split())
                damaged = not isinstance(error, UnavailableError)
                raise UnreadableError(piece.partition, offset, why, damaged=damaged) from error
        yield from gathered.flush()

    def _open(self, item: Item) -> OpenItem:
        resolve = dict(self.resolved).__getitem__
        return OpenItem.of(item, located(item.location, self.source.credentials), resolve)

    def _parts(self, opened: Result, piece: Range) -> Iterator[tuple[Origin, Part]]:
        if isinstance(opened, FlumengError):
            raise opened
        item = opened.item
        try:
            if not item.size:
                return
            start = max(piece.start, item.begin) - item.start
            end = min(piece.end - item.start, MOST_POSITION + 1)
            if item.until is not None:
                end = min(end, item.until)
            content = content_of(opened)
            if self.source.archives and kind_of(content) is not None:
                allowance = Allowance(item.size)
                yield from parts_of_members(
                    opened, content, self._find, allowance, start=start, end=end
                )
            else:
                origin = Origin(item, opened.name, item.modified_us)
                yield from ((origin, part) for part in self._find(content, start, end))
            opened.check()
        except CorruptError:
            opened.check()
            raise
        finally:
            opened.close()

    def _find(self, content: Content, start: int, end: int) -> Iterator[Part]:
        return parts_of(self.source.format)(content, self.source, start, end)


def _opened_ahead(items: Sequence[Item], open_: Open) -> Iterator[tuple[Item, Result]]:
    """Yield items with their ``OpenItem``, to close, or error; several are opened ahead."""
    if len(items) <= 1:
        yield from ((item, _result(item, open_)) for item in items)
        return
    groups = _groups(items)
    ahead: deque[tuple[list[Item], Future[list[Result]]]] = deque()
    pool = ThreadPoolExecutor(THREADS, "objects")
    try:
        while True:
            while len(ahead) < GROUPS_AHEAD and (group := next(groups, None)):
                ahead.append(
                    (
                        group,
                        pool.submit(lambda group: [_result(item, open_) for item in group], group),
                    )
                )
            if not ahead:
                return
            group, done = ahead.popleft()
            yield from zip(group, done.result(), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _groups(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Yield groups of small items, which open faster than a hand-over between threads."""
    group: list[Item] = []
    size = 0
    for item in items:
        size += item.size
        if group and (len(group) == GROUP_ITEMS or size > GROUP_BYTES):
            yield group
            group, size = [], item.size
        group.append(item)
    if group:
        yield group


def _result(item: Item, open_: Open) -> Result:
    try:
        return open_(item)
    except FlumengError as error:
        return error


BATCH_BYTES = 4 << 20
BATCH_ROWS = 1 << 16
_PATH, _TRUNCATED = b"path", b"truncated"
_ERROR = PARSE_ERROR.encode()


class Gathered:
    def __init__(self, piece: Range, *, keep_empty: bool) -> None:
        self._piece = piece
        self._keep_empty = keep_empty
        self._clear()

    def _clear(self) -> None:
        self._origins: list[Origin] = []
        self._parts: list[Part] = []
        self._bytes = self._rows = 0

    def add(self, origin: Origin, part: Part) -> Iterator[pa.RecordBatch]:
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
        cut = _cut(parts, keep_empty=self._keep_empty)
        count = len(origins)
        owners = np.repeat(np.arange(count), cut.counts)
        starts = np.fromiter((origin.item.start for origin in origins), np.int64, count)
        offsets = cut.positions + starts[owners]
        attrs = _Attributes(origins, parts)
        times = np.fromiter((origin.modified_us for origin in origins), np.int64, count)
        for first in range(0, len(offsets), BATCH_ROWS):
            rows = slice(first, first + BATCH_ROWS)
            yield self._batch(cut.bodies[rows], offsets[rows], owners[rows], times, attrs)

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
