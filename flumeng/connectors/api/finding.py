"""Discovery: which partitions a partitioned source has, and how far they reach.

The registry names the finder class of each source. Light: the implementation loads what it needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class Before:
    """The discovery so far. ``scope``: what the finders last searched; None before the first time.
    ``accepted``: ``held`` partitions that an operator releases -> where to begin, as for
    ``Finder.offsets``."""

    partitions: Collection[str] = ()
    scope: Collection[str] | None = None
    accepted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Offer:
    """A partition to read: from ``start``, when it is registered now, to ``end``."""

    start: int = 0
    end: int | None = None


@dataclass(frozen=True)
class Findings:
    """``offers``: all partitions to read. Of the other known ones, ``gone`` no longer exist and
    ``kept`` wait for an operator. ``held``: unique id -> what has happened. ``notes``: events that
    need nobody.

    ``bounded``: each offer has an end, and the flow stops when all are read. Look again at once
    (``more``), shortly (``soon``), or after ``due_seconds`` at the latest. ``troubles``: parts that
    failed; ``lacks``: what is wanted and certainly missing.
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


@dataclass(frozen=True)
class Bounds:
    """A partition is readable in [``floor``, ``safe``). ``bytes_from``: bytes behind an offset, if
    known."""

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
        """Asks the servers once. Raises UserError for what the author has to change,
        UnavailableError without an answer."""


class FinderClass(Protocol):
    def of(self, options: Any, store: Store, task: FindingTask) -> Finder:
        """Raises UserError."""


class Finder(Protocol):
    """Of one source of a flow. Calls take a bounded time, and raise UnavailableError when nobody
    answers, UserError when a person has to act. One thread finds; others call the rest."""

    def find(self, before: Before) -> Findings:
        """Search everything."""

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        """How far partitions reach now; lacks unknown ones."""

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        """Offsets of ``earliest``, ``latest``, or a time with its zone; the end for a time after
        the last event. Lacks unknown ones."""

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        """When the event at the offset, or the next readable one, came, in microseconds since the
        epoch. Lacks those that do not answer in time."""

    def finished(self) -> None:
        """All that was found is read to its end; the flow stops after this. It may be called
        again."""

    def close(self) -> None:
        """Called last."""


class FinderBase(ABC):
    """A ``Finder`` whose offsets are found by bounds and not by time. ``no_times`` says so."""

    no_times: str

    @abstractmethod
    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]: ...

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        if to not in ("earliest", "latest"):
            raise UserError(f"{self.no_times}: {to}")
        found = self.bounds(partitions)
        return {name: one.floor if to == "earliest" else one.safe for name, one in found.items()}

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        """No event has a time that counts."""
        del at
        return {}

    def finished(self) -> None:  # noqa: B027  most finders have nothing to note
        """See ``Finder``."""

    def close(self) -> None:  # noqa: B027  most finders hold nothing open
        """See ``Finder``."""
