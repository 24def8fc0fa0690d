"""What waits in the work queues of flows, what is read, what was done, and what could not be read.

Reads only. What cannot be read is named, and costs the rest nothing. How much waits and how fast it
is read the flow's discovery process tells, for all flows at once; for one flow the items themselves
are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flumeng.errors import CorruptError, UserError
from flumeng.journal.account import Account
from flumeng.journal.past import AGO_SECONDS
from flumeng.state import items, queues
from flumeng.state.items import Item
from flumeng.state.partitions import ack_path, key
from flumeng.state.task_map import read_plans
from flumeng.store import Found, Unreadable, Versioned
from flumeng.views.reading import Reading
from flumeng.views.unreadable import Cause
from zkschema import paths
from zkschema.records import COLLECT, Ack, Flow, Queue, QueueFailure

N = TypeVar("N", int, float)
Accounts = Mapping[str, Account]
"""By ``partitions.key``."""
LOOKED_AT = 1000
"""Of so many failed items of a flow is looked at whether an operator wants them read again."""


@dataclass(frozen=True)
class QueueRow:
    """The queue of a flow. ``running`` of the ``waiting`` items are read now, one in a lane.
    ``bytes`` wait, and ``oldest`` is when the oldest item was written, in seconds since the epoch.
    ``items_per_second`` were done in the last minute, and nothing waits after ``end_seconds`` when
    that goes on, with as much added as was. None where nobody says it, or no end is in sight."""

    flow: str
    state: str
    lanes: int
    waiting: int
    running: int
    bytes: int | None
    oldest: float | None
    done: int
    failed: int
    items_per_second: float | None
    end_seconds: float | None
    problem: str = ""


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


def flows_with_queues(reading: Reading) -> list[str]:
    return reading.children(paths.queues())


def overview(reading: Reading, accounts: Accounts) -> list[QueueRow]:
    """A row for each queue, in a few requests however many there are."""
    names = flows_with_queues(reading)
    heads = dict(zip(names, reading.read_each([paths.queue(name) for name in names]), strict=True))
    known = {name: one.value for name, one in heads.items() if isinstance(one, Versioned)}
    records = reading.read_each([paths.flow(name) for name in names])
    states = dict(zip(names, map(_state, records), strict=True))
    failed = dict(
        zip(
            known,
            reading.children_many([paths.queue_failures(name) for name in known]),
            strict=True,
        )
    )
    look = _Look(_acks(reading, known), failed, _owners(reading, known), accounts)
    rows = []
    for name in names:
        if name in known:
            rows.append(look.row(name, states[name], known[name]))
        elif isinstance(why := heads[name], Unreadable):
            rows.append(
                QueueRow(name, states[name], 0, 0, 0, None, None, 0, 0, None, None, str(why))
            )
    return rows


def lanes(
    reading: Reading, flows: Iterable[str], accounts: Accounts | None = None
) -> list[LaneRow]:
    """A row for each lane of these flows; none for a flow without a queue, or with one that cannot
    be read."""
    rows = []
    for flow in flows:
        head = reading.read(paths.queue(flow))
        if head is not None:
            queue = _Queue.of(reading, flow, head.value)
            rows += [queue.row(lane, accounts or {}) for lane in _in_order(head.value)]
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
        for lane in _in_order(head.value):
            rows += queue.rows(lane, state, most - len(rows))
    return rows[:most]


def totals(rows: Sequence[LaneRow], state: str) -> QueueRow:
    """Of all lanes of one flow."""
    return QueueRow(
        flow=rows[0].flow,
        state=state,
        lanes=len(rows),
        waiting=sum(row.waiting for row in rows),
        running=sum(row.running for row in rows),
        bytes=_sum([row.bytes for row in rows]),
        oldest=min((row.oldest for row in rows if row.oldest is not None), default=None),
        done=sum(row.done for row in rows),
        failed=sum(row.failed for row in rows),
        items_per_second=_sum([row.items_per_second for row in rows]),
        end_seconds=_latest([row.end_seconds for row in rows]),
        problem="; ".join(dict.fromkeys(row.problem for row in rows if row.problem)),
    )


def causes(reading: Reading) -> Iterator[Cause]:
    """One for each flow with items that could not be read, of which nobody has decided."""
    flows = flows_with_queues(reading)
    failed = reading.children_many([paths.queue_failures(flow) for flow in flows])
    for flow, listed in zip(flows, failed, strict=True):
        some = listed[:LOOKED_AT]
        found = reading.read_many([paths.queue_failure(flow, name) for name in some])
        decided = sum(one is not None and bool(one.value.wanted) for one in found)
        if number := len(listed) - decided:
            said = f"{number} item{'' if number == 1 else 's'}"
            yield Cause(
                f"{said} of the queue of flow {flow} could not be read, at least not to the end",
                f"see why (`flumeng queue show {flow}`), then `flumeng queue retry {flow} --all` "
                f"or `flumeng queue skip {flow} --all`",
                about=f"flow {flow}: items that could not be read",
            )


@dataclass(frozen=True)
class _Owner:
    """``running``: the live ``node`` says that the task which reads a lane runs."""

    node: str = ""
    running: bool = False


NOBODY = _Owner()


@dataclass(frozen=True)
class _Queue:
    """``problems``: lane -> why some of its segments cannot be read."""

    flow: str
    head: Queue
    segments: Mapping[str, list[Item]]
    problems: Mapping[str, str]
    acks: Mapping[str, Found[Ack]]
    failures: Mapping[str, QueueFailure]
    owners: Mapping[str, _Owner]

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
            _acks(reading, {flow: head})[flow],
            {n: one.value for n, one in zip(kept, failed, strict=True) if one is not None},
            _owners(reading, {flow: head}),
        )

    def row(self, lane: str, accounts: Accounts) -> LaneRow:
        ack, problem = self.acks[lane], self.problems.get(lane, "")
        if isinstance(ack, Unreadable):
            problem = str(ack)
        offset, waiting = _offset(ack), self._waiting(lane)
        owner = self._owner(lane)
        account = accounts.get(key(self.flow, queues.lane_partition(lane, self.head.id)))
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
            done=items.number_of(offset) - len(own),
            failed=sum(not one.wanted for one in own),
            at=waiting[0].location if waiting else "",
            position=items.position_of(offset) if waiting else 0,
            since=ack.written if isinstance(ack, Versioned) and waiting else None,
            items_per_second=_rate(account),
            end_seconds=_end(account),
            problem=problem,
        )

    def rows(self, lane: str, state: str, most: int) -> list[ItemRow]:
        """The first of those that are not acked: the one that is read now, or those that wait."""
        ack, owner, waiting = self.acks[lane], self._owner(lane), self._waiting(lane)
        running = waiting[:1] if owner.running else []
        at = items.position_of(_offset(ack))
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

    def _owner(self, lane: str) -> _Owner:
        partition = queues.lane_partition(lane, self.head.id)
        return self.owners.get(key(self.flow, partition), NOBODY)

    def _waiting(self, lane: str) -> list[Item]:
        acked = items.number_of(_offset(self.acks[lane]))
        return [one for one in self.segments[lane] if one.number >= acked]


@dataclass(frozen=True)
class _Look:
    """At all queues: by flow the acks of its lanes, and the names of its failed items."""

    acks: Mapping[str, Mapping[str, Found[Ack]]]
    failed: Mapping[str, Sequence[str]]
    owners: Mapping[str, _Owner]
    accounts: Accounts

    def row(self, flow: str, state: str, queue: Queue) -> QueueRow:
        acks, failed = self.acks[flow], self.failed[flow]
        partitions = {lane: key(flow, queues.lane_partition(lane, queue.id)) for lane in queue.next}
        told = [self.accounts.get(one) for one in partitions.values()]
        acked = {lane: items.number_of(_offset(acks[lane])) for lane in queue.next}
        waiting = {lane: max(0, number - acked[lane]) for lane, number in queue.next.items()}
        oldest = [one.oldest_unacked_us for one in told if one and one.oldest_unacked_us]
        done = sum(acked.values())
        return QueueRow(
            flow=flow,
            state=state,
            lanes=len(queue.next),
            waiting=sum(waiting.values()),
            running=sum(
                self.owners.get(partitions[lane], NOBODY).running
                for lane, number in waiting.items()
                if number
            ),
            bytes=_sum([one.unacked_bytes if one else None for one in told]),
            oldest=min(oldest) / 1e6 if oldest else None,
            done=done - len(failed),
            failed=len(failed),
            items_per_second=_sum([_rate(one) for one in told]),
            end_seconds=_latest([_end(one) for one in told]),
            problem="; ".join(str(one) for one in acks.values() if isinstance(one, Unreadable)),
        )


def _acks(reading: Reading, heads: Mapping[str, Queue]) -> dict[str, dict[str, Found[Ack]]]:
    """Flow -> lane -> its ack; a lane that never had an item has none."""
    wanted = [
        (flow, lane, ack_path(flow, queues.lane_partition(lane, head.id)))
        for flow, head in heads.items()
        for lane, number in head.next.items()
        if number
    ]
    found: dict[str, dict[str, Found[Ack]]] = {
        flow: dict.fromkeys(head.next) for flow, head in heads.items()
    }
    read = reading.read_each([path for _, _, path in wanted])
    for (flow, lane, _), ack in zip(wanted, read, strict=True):
        found[flow][lane] = ack
    return found


def _owners(reading: Reading, flows: Iterable[str]) -> dict[str, _Owner]:
    """By ``partitions.key``: who reads it. A task runs where a live node says so."""
    plans = read_plans(reading, flows)
    nodes = reading.children(paths.live_nodes())
    told = reading.read_many([paths.status(node) for node in nodes])
    statuses = {
        node: one.value.tasks for node, one in zip(nodes, told, strict=True) if one is not None
    }
    owners: dict[str, _Owner] = {}
    for flow, plan in plans.items():
        for name, task in plan.value.tasks.items():
            if task.kind == COLLECT and task.node:
                status = statuses.get(task.node, {}).get(f"{flow}/{name}")
                said = (status.state, status.epoch) if status is not None else None
                owner = _Owner(task.node, said == ("running", task.epoch))
                owners.update((key(flow, partition), owner) for partition in task.partitions)
    return owners


def _state(flow: Found[Flow]) -> str:
    return flow.value.state if isinstance(flow, Versioned) else "unreadable" if flow else "gone"


def _offset(ack: Found[Ack]) -> int:
    return ack.value.offset if isinstance(ack, Versioned) else 0


def _rate(account: Account | None) -> float | None:
    if account is None or account.acked_minute_ago is None:
        return None
    done = account.distance(account.acked_minute_ago, account.acked)
    return round(max(0, done) / AGO_SECONDS, 3)


def _end(account: Account | None) -> float | None:
    """By bytes, or by items where those have none."""
    if account is None:
        return None
    if not account.unacked:
        return 0.0
    left, before = account.unacked_bytes, account.unacked_bytes_minute_ago
    if not left:
        left, before = account.unacked, account.unacked_minute_ago
    if before is None or before <= left:
        return None
    return round(left * AGO_SECONDS / (before - left), 1)


def _sum(numbers: Sequence[N | None]) -> N | None:
    """None unless all are known."""
    known = [one for one in numbers if one is not None]
    return sum(known, type(known[0])()) if known and len(known) == len(numbers) else None


def _latest(seconds: Sequence[float | None]) -> float | None:
    """None unless all are known."""
    known = [one for one in seconds if one is not None]
    return max(known) if known and len(known) == len(seconds) else None


def _in_order(head: Queue) -> list[str]:
    return sorted(head.next, key=lambda lane: int(lane) if lane.isdigit() else -1)
