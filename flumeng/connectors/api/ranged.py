"""Ranged inputs: the contract for journals, Kafka partitions and lanes of queues. They list
partitions (``control.snapshot.partitions``), give readable ends without waiting (``Positions``,
collector) and read ranges (``connectors.ranged.reading``, executors). This module is light."""

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
    """Offsets [``start``, ``end``) of a partition; ``replayed``: perhaps delivered before. Offsets
    only grow, and inputs may leave some out. With joined lines, ``emitted`` and ``sure`` are those
    of the ``Progress`` before, and ``flush`` ends all messages. ``leader_epoch``: see ``Reach``."""

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
    """Unreadable offsets [``start``, ``end``), to be acked in one transaction with ``also``."""

    start: int
    end: int
    why: str
    also: tuple[Write, ...] = ()


class Contents(Protocol):
    """Sizes in a partition whose offsets do not count events. Answers stay the same until acks."""

    def events(self, start: int, end: int) -> int:
        """About how many events lie in [start, end); at least one, unless it is empty."""

    def cut(self, start: int, end: int, events: int) -> int:
        """The end of a range of about ``events`` events: above ``start``, at most ``end``."""

    def address(self, start: int, end: int) -> str:
        """The address for a reader of [start, end)."""


@dataclass(frozen=True)
class Progress:
    """Progress of a partition with joined lines. Events with their first line below ``emitted`` are
    emitted. Reading resumes at ``offset``, which is no higher. Lines in [``offset``, ``sure``) are
    read only to find out whether the next line of their stream continues a message."""

    offset: int
    emitted: int
    sure: int = 0


DELETED = "they were deleted before they were read"


@dataclass(frozen=True)
class Reach:
    """The readable part of a partition: [``floor``, ``safe``) at ``address``, opaque to all but its
    reader.

    ``held``: unreadable events. ``trouble``: the error of a server that does not answer. A
    ``closed`` partition gets no more events, a ``full`` one none until the next ack.
    [``gone_from``, ``gone_below``) was lost for the reason ``gone_why``, and is skipped; from 0
    there is no ``floor``. ``contents``: of a partition whose offsets do not count events; its
    addresses omit ``left_out``. An exact repetition of a batch can be read up to ``repeatable``.
    ``leader_epoch``: of the server that has all below ``safe``; None: the partition is never
    truncated. ``cut``: the log was truncated below the ack, and the flow skips that.
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


Kind = Literal["nonsense", "lost", "gone", "held", "damaged", "unanswered"]


@dataclass(frozen=True)
class Standstill:
    """Why a partition is read only up to ``offset``, its ack or above.

    - ``nonsense``: its server contradicts itself, see ``why``;
    - ``lost``: it ends at ``offset``, below its ack, or was truncated there, see ``why``;
    - ``gone``: it keeps nothing below ``offset``, and only ``acked`` is acked;
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
    """How far partitions can be read, for one task. No call waits for a server: one that is down
    delays only its own partitions."""

    def open(self, spec: FlowSpec) -> None:
        """Called first with each claim: partitions are now read by ``spec``."""

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        """The reach of each; lacks unreachable partitions. The caller is woken when it changes."""

    def refresh(self, partitions: Collection[str]) -> None:
        """The next ``of`` returns data from after this call."""

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        """Try to read the first events of [start, end), not empty; fails like a reader."""

    def describe(self, standstill: Standstill) -> str:
        """A text for people: the partition, its offset, the reason and the remedy."""

    def close(self) -> None:
        """The claim has ended: watch nothing until ``open``."""


Parts = Mapping[str, Sequence[tuple[int, int]]]
"""Partition -> ranges of offsets."""


@runtime_checkable
class LeavingOut(Protocol):
    """Positions of partitions from which a batch may omit parts."""

    def leave_out(self, parts: Parts) -> None:
        """The repeated batch was written without ``parts``; holds until the next ``open``."""


class CutError(CorruptError):
    """The log was truncated at ``end``, below the offset to read from: see ``FindingCuts``."""

    def __init__(self, text: str, end: int) -> None:
        super().__init__(text, end)
        self.text, self.end = text, end

    def __str__(self) -> str:
        return self.text


@runtime_checkable
class FindingCuts(Protocol):
    """Positions of partitions whose servers elect leaders (KIP-320 of Kafka)."""

    def find_cut(self, partition: str, offset: int, leader_epoch: int) -> Future[Gone | None]:
        """Where the current log diverges from that of the leader of ``leader_epoch``, if below
        ``offset``; there must be an event at ``offset`` or above. Fails with CutError when the flow
        does not skip the lost part, else like a reader. Wakes the task."""


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
        """From the text, which is all that arrives of an executor's error."""
        match = _UNREADABLE.fullmatch(text)
        assert match, text
        return cls(match[1], int(match[3]), match[4], damaged=match[2] == _DAMAGED)
