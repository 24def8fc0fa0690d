"""Reads ranges of lanes in executors: the lines or rows of their items.

An item is read only as it was listed. Of a damaged one all events before the damage are read, then
the range ends in an error. Of one that was rewritten meanwhile nothing counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.objects.archives import Origin, kind_of, parts_of_members
from flumeng.connectors.objects.compression import content_of
from flumeng.connectors.objects.content import Content, is_utf8
from flumeng.connectors.objects.events import Gathered
from flumeng.connectors.objects.formats import MODULES, parts_of
from flumeng.connectors.objects.opened import SMALL_BYTES, ChangedError, Opened, name_of
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.objects.parts import Part
from flumeng.connectors.ranged.reading import Secrets, resolved
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import MOST_POSITION, Item
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError, UserError
from flumeng.platform.options.locations import located

THREADS = 8
GROUPS_AHEAD = 12
GROUP_ITEMS = 16
GROUP_BYTES = 2 * SMALL_BYTES

Open = Callable[[Item], Opened]
Result = Opened | FlumengError


@dataclass(frozen=True)
class ObjectsReader:
    """See ``Reader``; an address has the items of the range, see ``items.encode``."""

    source: ObjectsSource
    resolved: Secrets = ()

    @classmethod
    def of(cls, source: ObjectsSource) -> ObjectsReader:
        """Raises UserError."""
        try:
            is_utf8(source.encoding)
        except LookupError as error:
            raise UserError(f"objects: nobody knows the encoding {source.encoding}") from error
        return cls(source, resolved(source.credentials))

    @property
    def schema(self) -> pa.Schema:
        return READ_SCHEMA

    @property
    def modules(self) -> frozenset[str]:
        return frozenset({MODULES[self.source.format]})

    def read(self, piece: Range, address: str) -> Iterator[pa.RecordBatch]:
        """Raises UnreadableError itself, since items have fewer events than positions."""
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

    def _open(self, item: Item) -> Opened:
        resolve = dict(self.resolved).__getitem__
        return Opened.of(item, located(item.location, self.source.credentials), resolve)

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
            kind = kind_of(content) if self.source.archives else None
            if kind is not None:
                yield from parts_of_members(opened, content, kind, self._find, start=start, end=end)
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
    """Each item in turn, open, or its error; several are opened at once. The caller closes them."""
    if len(items) <= 1:
        yield from ((item, _result(item, open_)) for item in items)
        return
    groups = _groups(items)
    ahead: deque[tuple[list[Item], Future[list[Result]]]] = deque()
    pool = ThreadPoolExecutor(THREADS, "objects")
    try:
        while True:
            while len(ahead) < GROUPS_AHEAD and (group := next(groups, None)):
                ahead.append((group, pool.submit(_results, group, open_)))
            if not ahead:
                return
            group, done = ahead.popleft()
            yield from zip(group, done.result(), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _groups(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Small items together, which take less time than handing one over."""
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


def _results(group: list[Item], open_: Open) -> list[Result]:
    return [_result(item, open_) for item in group]


def _result(item: Item, open_: Open) -> Result:
    try:
        return open_(item)
    except FlumengError as error:
        return error
