"""What a source hands over: some received lines, uncut, with all that is the same for them.

A block is the unit of everything between a source and its journal: one copy out of the receive
buffer, one item in the queue of the commit thread, and for a source with a cursor one step of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_BOOKKEEPING_BYTES = 512


@dataclass(frozen=True, slots=True)
class LineRules:
    """How a source's blocks are cut into events.

    ``trailers`` are the bytes of which up to ``framing.TRAILER_BYTES`` are taken off a line's end.
    """

    max_line_bytes: int
    trailers: bytes
    keep_empty: bool


@dataclass(frozen=True, eq=False, slots=True)
class Origin:
    """Where lines come from. One object for each connection or file, compared by identity."""

    host: str
    attrs: tuple[tuple[str, str], ...]
    rules: LineRules


@dataclass(frozen=True, eq=False, slots=True)
class ReceivedBlock:
    """Whole lines: each ends with a newline, or is ``data[start:end]`` of its ``bounds``.

    ``state`` is what becomes true of the source once these lines are journaled; both get into one
    frame, so a block with state holds at most ``FRAME_EVENTS`` lines. ``file_offset`` is where
    ``data`` begins in its file; its events then carry their ``offset``. ``file_places`` are those
    of its lines from there on, when ``data`` is not what the file holds.

    ``on_durable`` is called in the event loop's thread once all of it is durable, and never when it
    is not, with a seq of the journal above all of its events; of later blocks that is no lower.
    ``on_unfit`` is called there with the reason when it can never be stored.
    """

    data: bytes
    origin: Origin
    received_us: int
    bounds: tuple[array[int], array[int]] | None = None
    state: Mapping[str, object] | None = None
    file_offset: int | None = None
    file_places: array[int] | None = None
    on_durable: Callable[[int], None] | None = None
    on_unfit: Callable[[str], None] | None = None

    @property
    def nbytes(self) -> int:
        return len(self.data) + _BOOKKEEPING_BYTES
