"""Discovery of a partitioned source: its partitions and their offsets. The registry names each
source's finder class. This module loads no client library; the implementations do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class Before:
    """Results of earlier searches. ``partitions``: the known ones. ``scope``: that of the last
    search; None before the first. ``accepted``: by id in ``Findings.held``, the start that an
    operator has chosen, as ``to`` of ``Finder.offsets``."""

    partitions: Collection[str] = ()
    scope: Collection[str] | None = None
    accepted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Offer:
    """A partition to read up to ``end``, if any, from ``start`` if it is new."""

    start: int = 0
    end: int | None = None


@dataclass(frozen=True)
class Findings:
    """Result of a search. ``offers``: all partitions to read. Without ``troubles``, other known
    partitions are ended, except those ``kept``, which wait for an operator or could not be
    searched. ``gone`` ones no longer exist. ``held``: by unique id, the reason why an operator has
    to decide. ``notes``: other facts to report.

    ``bounded``: each offer has an end, and the flow stops when all are read. The next search is due
    at once (``more``), shortly (``soon``), or after ``due_seconds`` at the latest. ``troubles``:
    parts of the search that failed. ``lacks``: configured things that are missing or unusable.
    ``remember_seconds``: how long acks of gone partitions stay at least, as these may return.
    """

    offers: Mapping[str, Offer]
    scope: tuple[str, ...] = ()
    gone: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    held: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    bounded: bool = False
    more: bool = False
    soon: bool = False
    due_seconds: float | None = None
    troubles: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    remember_seconds: float = 0.0


@dataclass(frozen=True)
class Bounds:
    """Readable offsets [``floor``, ``safe``). ``bytes_from`` returns the number of bytes from an
    offset on; it is None when sizes are unknown."""

    floor: int
    safe: int
    bytes_from: Callable[[int], int] | None = None


@dataclass(frozen=True)
class FindingTask:
    flow: str
    epoch: int


class ProbedFinder(Protocol):
    """A finder class whose servers can be probed before a flow is applied."""

    def probe(self, options: Any) -> None:
        """Contact the servers once. Raises UserError when the author must change the options,
        UnavailableError when a server does not answer."""


class FinderClass(Protocol):
    def of(self, options: Any, store: Store, task: FindingTask) -> Finder:
        """Return the finder of one source of a flow. Raises UserError when a person has to act."""


class Finder(Protocol):
    """The finder of one source of a flow. One thread calls ``find``, other threads call the other
    methods. Calls take a bounded time. They raise UnavailableError when a server does not answer,
    UserError when a person has to act."""

    def find(self, before: Before) -> Findings:
        """Search for all partitions of the source."""

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        """Return the readable offsets; omits unknown partitions."""

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        """Return the partitions' offsets of ``earliest``, ``latest``, or a time with its zone. For
        a time after the last event, return the end. Omits unknown partitions."""

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        """Return when the events at these offsets, or the next readable events, arrived:
        microseconds since 1970. Omits partitions whose servers do not answer in time."""

    def finished(self) -> None:
        """Called, perhaps repeatedly, when all offers are read to their ends and the flow stops."""

    def close(self) -> None:
        """Release all resources. Called last."""


class FinderBase(ABC):
    """A ``Finder`` that finds offsets by ``bounds``, not by time (``no_times``: the error text)."""

    no_times: str

    @abstractmethod
    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]: ...

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        if to not in ("earliest", "latest"):
            raise UserError(f"{self.no_times}: {to}")
        items = self.bounds(partitions).items()
        return {name: bounds.floor if to == "earliest" else bounds.safe for name, bounds in items}

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        """Return nothing: no event has a usable time."""
        del at
        return {}

    def finished(self) -> None:  # noqa: B027  most finders have nothing to note
        """See ``Finder``."""

    def close(self) -> None:  # noqa: B027  most finders hold nothing open
        """See ``Finder``."""
