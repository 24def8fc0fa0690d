"""Protocols of journals, for group commit and for readers; ``Journal`` documents each method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from flumeng.journal.log.checkpoint import Durability
from flumeng.journal.log.frame import Payload
from flumeng.journal.log.journal_cipher import JournalCipher
from flumeng.journal.log.limits import Limits, Room
from flumeng.journal.log.listeners import Listeners
from flumeng.journal.log.segment import Window

Encoded = TypeVar("Encoded")


class Appendable(Protocol[Encoded]):
    """The methods of a journal that group commit calls. ``encode`` is thread-safe and raises as
    ``Payload.encode``. After a HeldError, group commit repeats the append with the same events."""

    id: str

    @property
    def state(self) -> Mapping[str, object]: ...
    @property
    def restless(self) -> bool: ...

    def encode(
        self, batch: pa.RecordBatch, state: Mapping[str, object] | None = None
    ) -> Encoded: ...
    def append_encoded(self, payload: Encoded) -> int: ...
    def sync(self) -> int: ...
    def confirms(self, end: int) -> bool:
        """Return whether events below ``end`` may be acknowledged; called after a sync. If not yet,
        the journal calls the callback of ``on_confirmed`` later."""

    def on_confirmed(self, wake: Callable[[], None]) -> None:
        """Set the callback for changes of ``confirms``; called once, before the first append."""

    def maintain(self) -> None: ...
    def trim(self, ack: int) -> None: ...


class Log(Appendable[Payload], Protocol):
    limits: Limits
    room: Callable[[], Room]

    @property
    def next_seq(self) -> int: ...
    @property
    def listeners(self) -> Listeners: ...
    @property
    def cipher(self) -> JournalCipher: ...
    @property
    def term(self) -> int: ...
    @property
    def durability(self) -> Durability: ...
    @property
    def floor(self) -> int: ...
    @property
    def acked(self) -> int: ...
    @property
    def safe(self) -> int: ...
    @property
    def readable(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def full(self) -> bool:
        """Whether the last append was rejected for lack of space."""

    @property
    def bytes(self) -> int: ...
    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """The first seq and the bytes of some parts of the journal, in order."""

    @property
    def lags(self) -> Mapping[str, int]: ...

    def append(self, batch: pa.RecordBatch, state: Mapping[str, object] | None = None) -> int: ...
    def close_for_appends(self) -> int: ...
    def close(self) -> None: ...
    def remove(self) -> None: ...
    def read_frames(self, start: int, end: int) -> Iterator[Window]: ...


@dataclass(frozen=True, slots=True)
class Position:
    """The progress of a journal, for its readers. Events of [floor, safe) can be read; ``held``
    more, after an unaccepted loss, cannot. A ``full`` journal accepts none until some are acked."""

    term: int
    floor: int
    safe: int
    closed: bool
    held: int = 0
    full: bool = False

    @classmethod
    def of(cls, journal: Log) -> Position:
        safe, readable = journal.safe, journal.readable
        return cls(
            journal.term,
            journal.floor,
            readable,
            journal.closed,
            held=max(0, safe - readable),
            full=journal.full,
        )
