"""Contract of inputs with ranges of offsets: journals, Kafka partitions and lanes of queues. They
list partitions (``control.snapshot.partitions``), report ends without waiting (``Positions``, in
the collector), and read (``connectors.ranged.reading``, in executors). Loads no pyarrow."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from flumeng.config import FlowSpec
from flumeng.control.zookeeper import Write
from flumeng.platform.errors import CorruptError, FlumengError


@dataclass(frozen=True)
class Range:
    """Offsets [``start``, ``end``) of a partition; they grow, perhaps with gaps. ``replayed``:
    perhaps delivered before. When lines are joined, ``emitted`` and ``sure`` are from the last
    ``Progress``, and ``flush`` emits unfinished messages too. ``leader_epoch``: see ``Reach``."""

    partition: str
    start: int
    end: int
    replayed: bool = False
    emitted: int = 0
    flush: bool = False
    leader_epoch: int | None = None
    sure: int = 0

    @property
    def events(self) -> int:
        return self.end - self.start


Split = tuple[Range, ...]


@dataclass(frozen=True)
class Gone:
    """Unreadable [``start``, ``end``), to be acked in one transaction with the writes ``also``."""

    start: int
    end: int
    why: str
    also: tuple[Write, ...] = ()


class Contents(Protocol):
    """Event counts of a partition whose offsets do not count events."""

    def events(self, start: int, end: int) -> int:
        """Return about how many events lie in [start, end); at least one unless empty."""

    def cut(self, start: int, end: int, events: int) -> int:
        """Return the end of a range of about ``events`` events, above ``start``, up to ``end``."""

    def address(self, start: int, end: int) -> str:
        """Return the address that a reader of [start, end) needs."""


@dataclass(frozen=True)
class Progress:
    """Progress where lines are joined to messages. Messages whose first line is below ``emitted``
    were emitted. Reading resumes at ``offset``, at most ``emitted``. Lines in [``offset``,
    ``sure``) are read only to find out if the next line of their stream continues a message."""

    offset: int
    emitted: int
    sure: int = 0


DELETED = "they were deleted before they were read"


@dataclass(frozen=True)
class Reach:
    """The readable part of a partition: [``floor``, ``safe``) at ``address``, which only the
    partition's reader interprets.

    ``held``: how many offsets from ``safe`` on are unreadable. ``trouble``: why nothing is read
    until a person acts; a server that does not answer has no ``Reach``. A ``closed`` partition gets
    no more events, a ``full`` one none until the next ack. [``gone_from``, ``gone_below``), unless
    empty, was lost for the reason ``gone_why``, and is skipped; if it begins at 0, ``floor`` is 0.
    ``contents``: event counts when offsets do not count events; its addresses omit the unreadable
    parts ``left_out``. An exact repetition of a batch can be read up to ``repeatable``, even above
    ``safe``. ``leader_epoch``: of the server that has all events below ``safe``; None if unknown,
    or if the partition is never truncated. ``cut``: the lost part, if the log was truncated below
    the ack and the flow skips it. ``term``: of a local journal, else 0.
    """

    address: str
    safe: int
    held: int = 0
    trouble: str = ""
    floor: int = 0
    closed: bool = False
    gone_below: int = 0
    gone_from: int = 0
    gone_why: str = DELETED
    contents: Contents | None = None
    repeatable: int = 0
    left_out: tuple[Gone, ...] = ()
    full: bool = False
    leader_epoch: int | None = None
    cut: Gone | None = None
    term: int = 0


Kind = Literal["nonsense", "lost", "gone", "held", "damaged", "unanswered"]


@dataclass(frozen=True)
class Standstill:
    """The reason why a partition is not read, or only up to ``offset``.

    - ``nonsense``: its ``Reach`` has a ``trouble``, here ``why``;
    - ``lost``: it ends at ``offset``, below its ack; with ``why``, it was truncated there;
    - ``gone``: it no longer has events below ``offset``, but only events below ``acked`` are acked;
    - ``held``: its server reports the next events unreadable;
    - ``damaged``: a batch has read corrupt data there, see ``why``;
    - ``unanswered``: its server does not send its reported events, see ``why``.
    """

    kind: Kind
    partition: str
    offset: int
    acked: int
    why: str = ""


class Positions(Protocol):
    """Ends of partitions, for one task. Never waits: a dead server delays only its partitions."""

    def open(self, spec: FlowSpec) -> None:
        """Read partitions as ``spec`` requires. Called first after each claim. Raises UserError."""

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        """Return known readable parts by partition. The task is woken when a result changes."""

    def refresh(self, partitions: Collection[str]) -> None:
        """Make the next ``of`` return only data from after this call."""

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        """Try to read from non-empty [start, end). The future fails as a read. Wakes the task."""

    def describe(self, standstill: Standstill) -> str:
        """Return a text for people: the partition, its offset, the reason and the remedy."""

    def close(self) -> None:
        """Watch nothing until the next ``open``: the collector's claim has ended."""


Parts = Mapping[str, Sequence[tuple[int, int]]]
"""Ranges of offsets by partition."""


@runtime_checkable
class LeavingOut(Protocol):
    """Positions of partitions from which a batch may omit parts."""

    def leave_out(self, parts: Parts) -> None:
        """Omit ``parts`` until the next ``open``: the batch to repeat was written without them."""


class CutError(CorruptError):
    """The log was truncated at ``end``, below the offset to read from: see ``FindingCuts``."""

    def __init__(self, text: str, end: int) -> None:
        super().__init__(text, end)
        self.text, self.end = text, end

    def __str__(self) -> str:
        return self.text


@runtime_checkable
class FindingCuts(Protocol):
    """Positions of partitions whose logs an elected leader may truncate (KIP-320 of Kafka)."""

    def find_cut(self, partition: str, offset: int, leader_epoch: int) -> Future[Gone | None]:
        """Find the part below ``offset`` that the current log lost since ``leader_epoch``; None if
        it lost nothing. Needs an event at ``offset`` or above. The future fails with CutError when
        the flow does not skip the lost part, and as a read would. Wakes the task."""


@runtime_checkable
class Paced(Protocol):
    """Positions of an input that is read at a limited rate, or not at some times of the day."""

    def rate(self) -> int:
        """Return the limit in bytes per second; 0: none. Never waits."""

    def rests(self) -> bool:
        """Return whether no batch may begin now. Never waits; the task looks again every second."""


OpenPositions = Callable[[Callable[[], None]], Positions]
"""Creates the positions of a task; its argument is the thread-safe call that wakes the task."""

_DAMAGED, _UNANSWERED = "cannot be read", "is unavailable"
_UNREADABLE = re.compile(rf"partition (\S+) ({_DAMAGED}|{_UNANSWERED}) at (\d+): (.*)")


class UnreadableError(FlumengError):
    """A partition cannot be read from ``offset`` now; ``why`` is for people. ``damaged``: the data
    is corrupt, else it does not come in time. The task leaves the partition out for a while."""

    def __init__(self, partition: str, offset: int, why: str, *, damaged: bool = True) -> None:
        super().__init__(partition, offset, why)
        self.partition, self.offset, self.why, self.damaged = partition, offset, why, damaged

    def __str__(self) -> str:
        kind = _DAMAGED if self.damaged else _UNANSWERED
        return f"partition {self.partition} {kind} at {self.offset}: {self.why}"

    @classmethod
    def parse(cls, text: str) -> UnreadableError:
        """Return the error with this text, which is all that arrives of an executor's error."""
        match = _UNREADABLE.fullmatch(text)
        assert match, text
        return cls(match[1], int(match[3]), match[4], damaged=match[2] == _DAMAGED)
