"""The part of a ``Log`` that is delegated to a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from flumeng.journal.log.checkpoint import Durability
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.journal_cipher import JournalCipher
from flumeng.journal.log.limits import Limits, Room
from flumeng.journal.log.listeners import Listeners
from flumeng.journal.log.segment import Window


class DelegatedLog:
    """``_journal`` may be replaced; all of them have these ``_listeners``."""

    _journal: Journal
    _listeners: Listeners

    def read_frames(self, start: int, end: int) -> Iterator[Window]:
        return self._journal.read_frames(start, end)

    @property
    def limits(self) -> Limits:
        return self._journal.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._journal.limits = limits

    @property
    def room(self) -> Callable[[], Room]:
        return self._journal.room

    @room.setter
    def room(self, room: Callable[[], Room]) -> None:
        self._journal.room = room

    @property
    def listeners(self) -> Listeners:
        return self._listeners

    @property
    def cipher(self) -> JournalCipher:
        return self._journal.cipher

    @property
    def next_seq(self) -> int:
        return self._journal.next_seq

    @property
    def term(self) -> int:
        return self._journal.term

    @property
    def durability(self) -> Durability:
        return self._journal.durability

    @property
    def floor(self) -> int:
        return self._journal.floor

    @property
    def acked(self) -> int:
        return self._journal.acked

    @property
    def safe(self) -> int:
        return self._journal.safe

    @property
    def readable(self) -> int:
        return self._journal.readable

    @property
    def lost(self) -> int:
        return self._journal.lost

    @property
    def full(self) -> bool:
        return self._journal.full

    @property
    def bytes(self) -> int:
        return self._journal.bytes

    @property
    def state(self) -> Mapping[str, object]:
        return self._journal.state
