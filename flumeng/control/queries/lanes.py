"""The lanes of one flow's queue, and the items in them. Reads only: what cannot be read is named,
and costs the rest nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flumeng.control.queries.queue_state import (
    NOBODY,
    Accounts,
    Owner,
    acks_of,
    end_of,
    in_order,
    offset_of,
    owners_of,
    rate_of,
)
from flumeng.control.queries.reading import Reading
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.items import Item
from flumeng.control.snapshot.partitions import key
from flumeng.control.zookeeper import Found, Unreadable, Versioned
from flumeng.platform.errors import CorruptError, UserError
from zkschema import paths
from zkschema.records import Ack, Queue, QueueFailure


@dataclass(frozen=True)
class LaneRow:
    """A lane, as a ``QueueRow``. A task on ``node`` reads it. ``at`` is the item that is read now
    if it is ``running``, else next; its events up to ``position`` are acked, ``since`` then."""

    flow: str
    lane: str
    node: str
    running: bool
    waiting: int
    bytes: int | None
    oldest: float | None
    done: int
    failed: int
    at: str
    position: int
    since: float | None
    items_per_second: float | None
    end_seconds: float | None
    problem: str = ""


@dataclass(frozen=True)
class ItemRow:
    """``state`` is ``failed``, ``retry`` (to be read again), ``running`` or ``waiting``.
    ``position``: up to where it was read, in bytes or rows. ``item``: as commands call it.
    ``node`` reads it, and its lane was acked ``since`` for the last time, if ever."""

    item: str
    state: str
    location: str
    bytes: int
    modified: float
    position: int
    why: str
    node: str = ""
    since: float | None = None


def lanes_of(
    reading: Reading, flows: Iterable[str], accounts: Accounts | None = None
) -> list[LaneRow]:
    """A row for each lane of these flows; none for a flow without a queue, or with one that cannot
    be read."""
    rows = []
    for flow in flows:
        head = reading.read(paths.queue(flow))
        if head is not None:
            queue = _Queue.of(reading, flow, head.value)
            rows += [queue.row(lane, accounts or {}) for lane in in_order(head.value)]
    return rows


def listed_items(reading: Reading, flow: str, most: int) -> list[ItemRow]:
    """The items that failed, those that are read, and then those that wait, ``most`` of them.
    Raises UserError."""
    head = reading.read(paths.queue(flow))
    if head is None:
        raise UserError(
            reading.why(paths.queue(flow))
            or f"flow {flow} has no queue: it has no source `objects` that ever ran"
        )
    queue = _Queue.of(reading, flow, head.value)
    rows = [
        ItemRow(name, f.wanted or "failed", f.location, f.size, f.modified / 1e6, f.position, f.why)
        for name, f in queue.failures.items()
        if f.wanted != "skip"
    ]
    for state in ("running", "waiting"):
        for lane in in_order(head.value):
            rows += queue.rows(lane, state, most - len(rows))
    return rows[:most]


@dataclass(frozen=True)
class _Queue:
    """``problems``: lane -> why some of its segments cannot be read."""

    flow: str
    head: Queue
    segments: Mapping[str, list[Item]]
    problems: Mapping[str, str]
    acks: Mapping[str, Found[Ack]]
    failures: Mapping[str, QueueFailure]
    owners: Mapping[str, Owner]

    @classmethod
    def of(cls, reading: Reading, flow: str, head: Queue) -> _Queue:
        listed = reading.children_many([paths.queue_lane(flow, name) for name in head.next])
        wanted = [
            (name, paths.queue_segment(flow, name, number))
            for name, numbers in zip(head.next, listed, strict=True)
            for number in sorted(numbers)
            if number.isdigit()
        ]
        segments: dict[str, list[Item]] = {name: [] for name in head.next}
        problems: dict[str, str] = {}
        found = reading.read_each([path for _, path in wanted])
        for (name, path), one in zip(wanted, found, strict=True):
            try:
                if isinstance(one, Versioned):
                    segments[name] += items.of_segment(one.value)
                elif one is not None:
                    problems[name] = str(one)
            except CorruptError as error:
                problems[name] = f"{path}: {error}"
        kept = reading.children(paths.queue_failures(flow))
        failed = reading.read_many([paths.queue_failure(flow, name) for name in kept])
        return cls(
            flow,
            head,
            segments,
            problems,
            acks_of(reading, {flow: head})[flow],
            {n: one.value for n, one in zip(kept, failed, strict=True) if one is not None},
            owners_of(reading, {flow: head}),
        )

    def row(self, lane: str, accounts: Accounts) -> LaneRow:
        ack, problem = self.acks[lane], self.problems.get(lane, "")
        if isinstance(ack, Unreadable):
            problem = str(ack)
        offset, waiting = offset_of(ack), self._waiting(lane)
        owner = self._owner(lane)
        account = accounts.get(key(self.flow, queues.partition_of(lane, self.head)))
        own = [f for name, f in self.failures.items() if name.partition(".")[0] == lane]
        number = max(0, self.head.next[lane] - items.number_of(offset))
        left = items.bytes_from(waiting, offset)
        return LaneRow(
            flow=self.flow,
            lane=lane,
            node=owner.node,
            running=bool(number) and owner.running,
            waiting=number,
            bytes=None if problem else left,
            oldest=min((one.modified_us / 1e6 for one in waiting), default=None),
            done=items.number_of(offset) - len(own) - self.head.retried.get(lane, 0),
            failed=len(own),
            at=waiting[0].location if waiting else "",
            position=items.position_of(offset) if waiting else 0,
            since=ack.written if isinstance(ack, Versioned) and waiting else None,
            items_per_second=rate_of(account),
            end_seconds=end_of(account),
            problem=problem,
        )

    def rows(self, lane: str, state: str, most: int) -> list[ItemRow]:
        """The first of those that are not acked: the one that is read now, or those that wait."""
        ack, owner, waiting = self.acks[lane], self._owner(lane), self._waiting(lane)
        running = waiting[:1] if owner.running else []
        at = items.position_of(offset_of(ack))
        since = ack.written if isinstance(ack, Versioned) else None
        where = (owner.node, since) if state == "running" else ()
        some = running if state == "running" else waiting[len(running) :]
        return [
            ItemRow(
                f"{lane}.{one.number}",
                state,
                one.location,
                one.size,
                one.modified_us / 1e6,
                at if one is waiting[0] else 0,
                "",
                *where,
            )
            for one in some[: max(0, most)]
        ]

    def _owner(self, lane: str) -> Owner:
        partition = queues.partition_of(lane, self.head)
        return self.owners.get(key(self.flow, partition), NOBODY)

    def _waiting(self, lane: str) -> list[Item]:
        acked = items.number_of(offset_of(self.acks[lane]))
        return [one for one in self.segments[lane] if one.number >= acked]
