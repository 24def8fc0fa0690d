"""Blocks: received lines, not split yet, with a common origin. A block is one copy out of the
receive buffer, one item in the commit thread's queue, and one change of the source's state."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_BOOKKEEPING_BYTES = 512


@dataclass(frozen=True, slots=True)
class LineRules:
    """Rules for splitting blocks into events. At most two bytes of ``trailers`` are stripped from a
    line's end. ``keep_empty``: empty lines become events."""

    max_line_bytes: int
    trailers: bytes
    keep_empty: bool


@dataclass(frozen=True, eq=False, slots=True)
class Origin:
    """The origin of lines: one object for each connection or file, compared by identity."""

    host: str
    attrs: tuple[tuple[str, str], ...]
    rules: LineRules


@dataclass(frozen=True, eq=False, slots=True)
class ReceivedBlock:
    """Whole lines: each ends with a newline; with ``bounds``, arrays of starts and ends, each is
    ``data[start:end]``. With ``columns``, events in EVENT_SCHEMA in the place of lines: at most
    ``journal.log.frame.MAX_ROWS``, without nulls; the origin's attributes are added to theirs.

    ``state``: changes of the source's state, journaled in the same frame as these lines, so a block
    with state has at most ``journal.log.frame.MAX_ROWS`` lines. ``file_offset``: of ``data`` in its
    file; events then have an ``offset``. ``file_places``: offsets of the lines when ``data`` is not
    the file's content. ``on_durable`` is called in the event loop once the whole block is durable,
    with a seq above its events that never falls; ``on_unfit`` with the reason when it can never be
    stored."""

    data: bytes
    origin: Origin
    received_us: int
    bounds: tuple[array[int], array[int]] | None = None
    state: Mapping[str, object] | None = None
    file_offset: int | None = None
    file_places: array[int] | None = None
    on_durable: Callable[[int], None] | None = None
    on_unfit: Callable[[str], None] | None = None
    columns: pa.RecordBatch | None = None

    @property
    def received_bytes(self) -> int:
        return len(self.data) if self.columns is None else int(self.columns.nbytes)

    @property
    def nbytes(self) -> int:
        return self.received_bytes + _BOOKKEEPING_BYTES
