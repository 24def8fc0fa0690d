"""What is read in ranges: one contract for journals, Kafka's partitions and the lanes of queues.

Nobody outside the implementations asks of which kind a partition is. A kind of input says three
things:

- *which partitions there are* (``flumeng.control.snapshot.partitions``): out of ZooKeeper, for
  masters, acks and views, which import no input;
- *how far each can be read* (``Positions``): in the collector, without ever waiting for a server;
- *how a range is read* (``flumeng.connectors.ranged.reading``): in executors.

An input is added by a folder here, which names its partitions as ``input_of`` understands them, and
by a line in ``flumeng.agent.collector.daemon``.

This module is light: it says what is read, and nothing of how.
"""

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
    """Offsets ``start`` to ``end - 1`` of a partition; ``replayed``: perhaps delivered before.

    Offsets only grow. Where an input leaves some out, a range has fewer events than ``events``.
    Where lines are joined, ``emitted`` and ``sure`` are those of the ``Progress`` before it, and
    ``flush`` says that no line is waited for any more. ``leader_epoch``: see ``Reach``.
    """

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
    """Offsets [``start``, ``end``) cannot be read any more, and why; that is acked in one
    transaction with ``also``."""

    start: int
    end: int
    why: str
    also: tuple[Write, ...] = ()


class Contents(Protocol):
    """What lies between offsets of a partition whose offsets do not count events. It says the same
    of the same offsets for as long as they are not acked."""

    def events(self, start: int, end: int) -> int:
        """About how many events lie in [start, end); at least one, unless it is empty."""

    def cut(self, start: int, end: int, events: int) -> int:
        """Where a range of about so many events from ``start`` may end: above ``start``, and at
        ``end`` when there are no more."""

    def address(self, start: int, end: int) -> str:
        """What a reader has to know of [start, end)."""


@dataclass(frozen=True)
class Progress:
    """How far the events of a partition are emitted whose lines are joined: all whose first line is
    below ``emitted``. To go on, lines are read again from ``offset``, which is no higher.

    Lines may be pieces of messages. Those below ``sure``, when that is above ``offset``, are read
    only since they tell whether the next line of their stream goes on with a message."""

    offset: int
    emitted: int
    sure: int = 0


DELETED = "they were deleted before they were read"


@dataclass(frozen=True)
class Reach:
    """What can be read of a partition: [``floor``, ``safe``), at ``address``, which is whatever its
    reader understands.

    ``held`` more events are there, or were, and cannot be read. ``trouble``: the server does not
    say how far the partition reaches, but something else. One that is ``closed`` takes no more.
    What lies in [``gone_from``, ``gone_below``) cannot be read any more, as ``gone_why`` says, and
    the flow goes on without it. Where it begins at 0 there is no ``floor``. ``contents`` are of a
    partition whose offsets do not count events, and say the addresses there, which leave out all
    that is ``left_out``: the parts of what is gone, and of what was before. A batch that is
    repeated exactly can be read up to ``repeatable`` too. One that is ``full`` takes no more until
    something is acked.

    ``leader_epoch`` is of the server that has all below ``safe``. A partition without one is never
    cut. ``cut``: its log was cut below the ack, and the flow goes on without what is there now.
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
    """Why a partition is read up to ``offset`` only, which is its ack or lies above it.

    - ``nonsense``: its server says something that makes none, see ``why``;
    - ``lost``: it ends at ``offset``, below its ack, or its log was cut there, see ``why``;
    - ``gone``: it keeps nothing below ``offset``, and only ``acked`` is acked;
    - ``held``: from there on there is something that cannot be read, as its server says;
    - ``damaged``: what a batch has found there makes no sense, see ``why``;
    - ``unanswered``: its server does not send what it says that it has, see ``why``.
    """

    kind: Kind
    partition: str
    offset: int
    acked: int
    why: str = ""


class Positions(Protocol):
    """How far partitions can be read, for one task. No call waits for a server.

    A server that does not answer costs its own partitions a delay, and the others nothing. What
    does not change costs nothing.
    """

    def open(self, spec: FlowSpec) -> None:
        """Called with each claim, before all else: from now on partitions are read as ``spec``
        says."""

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        """How far each can be read. Lacks those that cannot be reached now. Whoever calls it is
        woken when it would say something else of these partitions."""

    def refresh(self, partitions: Collection[str]) -> None:
        """What ``of`` says of them next is from after this call."""

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        """Try to read the first events of [start, end), which is not empty; fails as a reader does
        when that is not possible."""

    def describe(self, standstill: Standstill) -> str:
        """For people: which partition stands still, where, why, and what an operator does."""

    def close(self) -> None:
        """The claim has ended: nothing is watched until ``open`` is called again."""


Parts = Mapping[str, Sequence[tuple[int, int]]]
"""Partition -> parts of it, each from an offset to another."""


@runtime_checkable
class LeavingOut(Protocol):
    """Positions of partitions of which a batch may be written without some parts."""

    def leave_out(self, parts: Parts) -> None:
        """A batch that is repeated was written without these, whether they can be read by now or
        not. Called after ``open``, and holds until the next."""


class CutError(CorruptError):
    """The log was cut at ``end``, below the offset that is to be read from: see ``FindingCuts``."""

    def __init__(self, text: str, end: int) -> None:
        super().__init__(text, end)
        self.text, self.end = text, end

    def __str__(self) -> str:
        return self.text


@runtime_checkable
class FindingCuts(Protocol):
    """Positions of partitions whose servers elect leaders, as KIP-320 describes for Kafka."""

    def find_cut(self, partition: str, offset: int, leader_epoch: int) -> Future[Gone | None]:
        """Where the log of today leaves the one that the leader of ``leader_epoch`` had, if that is
        below ``offset``; from there to ``offset`` it is given. Fails with CutError when the flow
        does not go on without that, else as a reader does. There is an event at or above
        ``offset``. The task is woken afterwards."""


OpenPositions = Callable[[Callable[[], None]], Positions]
"""Makes the positions of a task; it is given what wakes that task, from any thread."""

_DAMAGED, _UNANSWERED = "cannot be read", "does not come"
_UNREADABLE = re.compile(rf"partition (\S+) ({_DAMAGED}|{_UNANSWERED}) at (\d+): (.*)")


class UnreadableError(FlumengError):
    """What a partition has from ``offset`` on cannot be read now; ``why`` is for people.

    ``damaged``: what is there makes no sense; else the server does not send it, or not in time.
    Whoever made the batch leaves the partition out for a while, and goes on with the others.
    """

    def __init__(self, partition: str, offset: int, why: str, *, damaged: bool = True) -> None:
        super().__init__(partition, offset, why)
        self.partition, self.offset, self.why, self.damaged = partition, offset, why, damaged

    def __str__(self) -> str:
        kind = _DAMAGED if self.damaged else _UNANSWERED
        return f"partition {self.partition} {kind} at {self.offset}: {self.why}"

    @classmethod
    def parse(cls, text: str) -> UnreadableError:
        """The reverse: all that comes of an executor's error is its text."""
        found = _UNREADABLE.fullmatch(text)
        assert found, text
        return cls(found[1], int(found[3]), found[4], damaged=found[2] == _DAMAGED)
