"""Discovery of a partitioned source: its partitions and their offsets. The registry names each
source's finder class. Light: implementations load their libraries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class Before:
    """The discovery so far. ``scope``: the last search's; None before the first. ``accepted``:
    ``held`` partitions that an operator released -> start, as for ``Finder.offsets``."""

    partitions: Collection[str] = ()
    scope: Collection[str] | None = None
    accepted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Offer:
    """A partition to read up to ``end``, from ``start`` if it is new."""

    start: int = 0
    end: int | None = None


@dataclass(frozen=True)
class Findings:
    """``offers``: all partitions to read. Of the other known ones, ``gone`` no longer exist and
    ``kept`` wait for an operator. ``held``: unique id -> a reason for an operator to decide.
    ``notes``: other events.

    ``bounded``: each offer has an end, and the flow stops when all are read. Search again at once
    (``more``), shortly (``soon``), or after ``due_seconds`` at the latest. ``troubles``: parts that
    failed; ``lacks``: wanted and certainly missing.
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
    """Readable offsets [``floor``, ``safe``). ``bytes_from``: bytes behind an offset, if known."""

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
        UnavailableError without an answer."""


class FinderClass(Protocol):
    def of(self, options: Any, store: Store, task: FindingTask) -> Finder:
        """Raises UserError."""


class Finder(Protocol):
    """The finder of one source of a flow. One thread calls ``find``, others the rest. Calls take a
    bounded time. They raise UnavailableError without an answer, UserError when a person has to
    act."""

    def find(self, before: Before) -> Findings:
        """Search everything."""

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        """The readable offsets; lacks unknown partitions."""

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        """Offsets of ``earliest``, ``latest``, or a time with its zone; the end for a time after
        the last event. Lacks unknown partitions."""

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        """When the events at these offsets, or the next readable ones, came: microseconds since
        1970. Lacks partitions that do not answer in time."""

    def finished(self) -> None:
        """Called, perhaps repeatedly, when all offers are read to their ends and the flow stops."""

    def close(self) -> None:
        """Called last."""


class FinderBase(ABC):
    """A ``Finder`` that has offsets by bounds but not by time; ``no_times`` is the error text."""

    no_times: str

    @abstractmethod
    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]: ...

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        if to not in ("earliest", "latest"):
            raise UserError(f"{self.no_times}: {to}")
        items = self.bounds(partitions).items()
        return {name: bounds.floor if to == "earliest" else bounds.safe for name, bounds in items}

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        """No event has a usable time."""
        del at
        return {}

    def finished(self) -> None:  # noqa: B027  most finders have nothing to note
        """See ``Finder``."""

    def close(self) -> None:  # noqa: B027  most finders hold nothing open
        """See ``Finder``."""
