"""What a discovery task asks of an input: which partitions there are, and how far they reach.

The registry names the class for each partitioned source. Light: what is loaded for it is the
implementation's affair.
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
    """What has been found so far. ``scope`` is what the finders of the flow were to look for last;
    None before the flow's first look. ``accepted``: what an operator lets go on that was ``held``
    -> where it is to begin, as ``Finder.offsets`` understands it."""

    partitions: Collection[str] = ()
    scope: Collection[str] | None = None
    accepted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Offer:
    """A partition that is there and wanted. ``start`` says where it begins, and counts when it is
    registered now; with an ``end`` nothing at that offset or after it is wanted."""

    start: int = 0
    end: int | None = None


@dataclass(frozen=True)
class Findings:
    """``offers`` are all partitions that are there and wanted. Of the others that were known,
    ``gone`` are not there any more, and ``kept`` wait for an operator, as ``held`` says: an id that
    is never used again -> what has happened. ``notes``: what happened and needs nobody.

    ``bounded``: each offer has an end, and the flow stops when all are read. ``more``: more is to
    be found at once; ``soon``: shortly, when readers have made room; ``due_seconds``: after that
    time at the latest. ``troubles``: what of it was
    not to be had, while all else was; ``lacks``: what is wanted, and is certainly not there.
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
    """A partition can be read from ``floor`` up to ``safe``; half-open. ``bytes_from`` tells how
    many bytes lie behind an offset, where that is known."""

    floor: int
    safe: int
    bytes_from: Callable[[int], int] | None = None


@dataclass(frozen=True)
class FindingTask:
    """The discovery task that asks."""

    flow: str
    epoch: int


class ProbedFinder(Protocol):
    """A finder class whose servers can be asked before a flow is applied."""

    def probe(self, options: Any) -> None:
        """Asks the servers of a source with these options once. Raises UserError for what the
        flow's author has to change, UnavailableError when there is no answer."""


class FinderClass(Protocol):
    """What the registry names."""

    def of(self, options: Any, store: Store, task: FindingTask) -> Finder:
        """For a source with these options, of the flow of ``task``. Raises UserError."""


class Finder(Protocol):
    """Of one source of a flow. Each call takes a bounded time, and raises UnavailableError when
    nobody answers, UserError for what a person has to mend. One thread finds; any number of others
    ask for the rest meanwhile."""

    def find(self, before: Before) -> Findings:
        """Look at everything."""

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        """How far these reach now; lacks those that do not say."""

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        """Where they would begin: ``earliest``, ``latest``, or a time with its zone; a time after
        the last event is the end. Lacks those that do not say."""

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        """When the event at the offset of each partition came, or the next one that can be read, in
        microseconds since the epoch; lacks those that do not say in time."""

    def finished(self) -> None:
        """All that was found has an end, and is read up to there; the flow stops when this has
        returned. It may be called again."""

    def close(self) -> None:
        """Nothing is asked any more."""


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
