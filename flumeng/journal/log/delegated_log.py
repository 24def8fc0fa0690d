"""A base class that forwards most attributes of ``Log`` to a wrapped journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from flumeng.journal.log.checkpoint import Durability
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.journal_cipher import JournalCipher
from flumeng.journal.log.limits import Limits, Room
from flumeng.journal.log.listeners import Listeners
from flumeng.journal.log.segment import Window

T = TypeVar("T")


class _Delegated(Generic[T]):
    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, log: Any, owner: type | None = None) -> T:
        value: T = getattr(log._journal, self._name)
        return value

    def __set__(self, log: Any, value: T) -> None:
        setattr(log._journal, self._name, value)


class DelegatedLog:
    """A log that forwards to ``_journal``, which may be replaced; ``listeners`` stay registered."""

    _journal: Journal
    listeners: Listeners

    limits = _Delegated[Limits]()
    room = _Delegated[Callable[[], Room]]()
    cipher = _Delegated[JournalCipher]()
    next_seq = _Delegated[int]()
    term = _Delegated[int]()
    durability = _Delegated[Durability]()
    floor = _Delegated[int]()
    acked = _Delegated[int]()
    safe = _Delegated[int]()
    readable = _Delegated[int]()
    lost = _Delegated[int]()
    full = _Delegated[bool]()
    bytes = _Delegated[int]()
    sizes = _Delegated[tuple[tuple[int, int], ...]]()
    state = _Delegated[Mapping[str, object]]()

    def read_frames(self, start: int, end: int) -> Iterator[Window]:
        return self._journal.read_frames(start, end)
