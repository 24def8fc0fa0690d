"""The work queues of flows: all queues, their lanes, and the items of one queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flumeng.control.commands.lookup import found_by_name, readable_by_name
from flumeng.control.queries.causes import Cause
from flumeng.control.queries.lag import if_all_known
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.items import Item
from flumeng.control.snapshot.partitions import ack_path, key
from flumeng.control.snapshot.task_map import read_plans
from flumeng.control.zookeeper import Found, Unreadable, Versioned, readable
from flumeng.journal.log.progress_history import AGO_SECONDS
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import CorruptError, UserError
from zkschema import paths
from zkschema.records import COLLECT, Ack, Flow, Queue, QueueFailure

Accounts = Mapping[str, Account]
"""The accounts by ``partitions.key``."""


@dataclass(frozen=True)
class Owner:
    """The owner of a lane. ``running``: the live ``node`` reports that the lane's task runs."""

    node: str = ""
    running: bool = False


NOBODY = Owner()


@dataclass(frozen=True)
class QueueRow:
    """A queue. ``running``: those of ``waiting`` being read. ``oldest``: seconds since the epoch of
    the oldest item. Rates are of the last minute; ``end_seconds``: until empty at that rate."""

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
    """A lane; fields as in ``QueueRow``. ``running``: an item waits and the lane's task runs.
    ``at``: the location of its first unfinished item, acked to ``position`` at ``since``."""

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
    """An item. ``state``: ``failed``, ``retry``, ``running`` or ``waiting``. ``position``: bytes or
    rows read. ``node``: where it is read; ``since``: time of the lane's last ack."""

    item: str
    state: str
    location: str
    bytes: int
    modified: float
    position: int
    why: str
    node: str = ""
    since: float | None = None


def overview(cache: ReadCache, accounts: Accounts) -> list[QueueRow]:
    """Return a row per queue, in a constant number of requests."""
    names = cache.children(paths.queues())
    heads = found_by_name(cache, paths.queue, names)
    readable = {name: head.value for name, head in heads.items() if isinstance(head, Versioned)}
    flows = found_by_name(cache, paths.flow, names)
    states = {name: _state(flow) for name, flow in flows.items()}
    listed = cache.children_many([paths.queue_failures(name) for name in readable])
    failed = dict(zip(readable, listed, strict=True))
    acks, owners = acks_of(cache, readable), owners_of(cache, readable)
    all_queues = _Overview(acks, failed, owners, accounts)
    rows = []
    for name in names:
        if name in readable:
            rows.append(all_queues.row(name, states[name], readable[name]))
        elif isinstance(why := heads[name], Unreadable):
            rows.append(
                QueueRow(name, states[name], 0, 0, 0, None, None, 0, 0, None, None, str(why))
            )
    return rows


def totals(rows: Sequence[LaneRow], state: str) -> QueueRow:
    return QueueRow(
        flow=rows[0].flow,
        state=state,
        lanes=len(rows),
        waiting=sum(row.waiting for row in rows),
        running=sum(row.running for row in rows),
        bytes=if_all_known(sum, [row.bytes for row in rows]),
        oldest=min((row.oldest for row in rows if row.oldest is not None), default=None),
        done=sum(row.done for row in rows),
        failed=sum(row.failed for row in rows),
        items_per_second=if_all_known(sum, [row.items_per_second for row in rows]),
        end_seconds=if_all_known(max, [row.end_seconds for row in rows]),
        problem="; ".join(dict.fromkeys(row.problem for row in rows if row.problem)),
    )


def causes(cache: ReadCache) -> Iterator[Cause]:
    """Yield one cause per flow with failed items that need an operator's decision."""
    flows = cache.children(paths.queues())
    failed = cache.children_many([paths.queue_failures(flow) for flow in flows])
    for flow, listed in zip(flows, failed, strict=True):
        some = listed[: queues.FAILURES_READ]
        failures = cache.read_many([paths.queue_failure(flow, name) for name in some])
        decided = sum(failure is not None and bool(failure.value.wanted) for failure in failures)
        if number := len(listed) - decided:
            yield Cause(
                f"{number} item{'' if number == 1 else 's'} of the queue of flow {flow} could not "
                "be fully read",
                f"see why (`flumeng queue show {flow}`), then `flumeng queue retry {flow} --all` "
                f"or `flumeng queue skip {flow} --all`",
                about=f"flow {flow}: items that could not be read",
            )


@dataclass(frozen=True)
class _Overview:
    """Data of all queues: by flow, ``acks`` of lanes and names of ``failed`` items."""

    acks: Mapping[str, Mapping[str, Found[Ack]]]
    failed: Mapping[str, Sequence[str]]
    owners: Mapping[str, Owner]
    accounts: Accounts

    def row(self, flow: str, state: str, queue: Queue) -> QueueRow:
        acks, failed = self.acks[flow], self.failed[flow]
        partitions = {lane: key(flow, queues.partition_of(lane, queue)) for lane in queue.next}
        accounts = [self.accounts.get(partition) for partition in partitions.values()]
        acked = {lane: items.number_of(offset_of(acks[lane])) for lane in queue.next}
        waiting = {lane: max(0, number - acked[lane]) for lane, number in queue.next.items()}
        oldest = [a.oldest_unacked_us for a in accounts if a and a.oldest_unacked_us]
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
            bytes=if_all_known(sum, [a.unacked_bytes if a else None for a in accounts]),
            oldest=min(oldest) / 1e6 if oldest else None,
            done=done - len(failed) - sum(queue.retried.values()),
            failed=len(failed),
            items_per_second=if_all_known(sum, [rate_of(account) for account in accounts]),
            end_seconds=if_all_known(max, [end_of(account) for account in accounts]),
            problem="; ".join(str(ack) for ack in acks.values() if isinstance(ack, Unreadable)),
        )


def _state(flow: Found[Flow]) -> str:
    return flow.value.state if isinstance(flow, Versioned) else "unreadable" if flow else "gone"


def lanes_of(
    cache: ReadCache, flows: Iterable[str], accounts: Accounts | None = None
) -> list[LaneRow]:
    """Return a row per lane of the flows with a readable queue."""
    rows = []
    for flow in flows:
        head = cache.read(paths.queue(flow))
        if head is not None:
            queue = _Queue.of(cache, flow, head.value)
            rows += [queue.row(lane, accounts or {}) for lane in in_order(head.value)]
    return rows


def listed_items(cache: ReadCache, flow: str, most: int) -> list[ItemRow]:
    """Return up to ``most`` items: failed, then running, then waiting. Raises ``UserError`` without
    a queue, and ``Unreadable.error``."""
    (found,) = cache.read_each([paths.queue(flow)])
    head = readable(found)
    if head is None:
        raise UserError(f"flow {flow} has no queue: no source `objects` of it has run yet")
    queue = _Queue.of(cache, flow, head.value)
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
    """A queue with its items. ``problems``: by lane, why some of its segments cannot be read."""

    flow: str
    head: Queue
    segments: Mapping[str, list[Item]]
    problems: Mapping[str, str]
    acks: Mapping[str, Found[Ack]]
    failures: Mapping[str, QueueFailure]
    owners: Mapping[str, Owner]

    @classmethod
    def of(cls, cache: ReadCache, flow: str, head: Queue) -> _Queue:
        listed = cache.children_many([paths.queue_lane(flow, name) for name in head.next])
        segments_listed = [
            (name, paths.queue_segment(flow, name, number))
            for name, numbers in zip(head.next, listed, strict=True)
            for number in sorted(numbers)
            if number.isdigit()
        ]
        segments: dict[str, list[Item]] = {name: [] for name in head.next}
        problems: dict[str, str] = {}
        records_read = cache.read_each([path for _, path in segments_listed])
        for (name, path), record in zip(segments_listed, records_read, strict=True):
            try:
                if isinstance(record, Versioned):
                    segments[name] += items.of_segment(record.value)
                elif record is not None:
                    problems[name] = str(record)
            except CorruptError as error:
                problems[name] = f"{path}: {error}"
        kept = cache.children(paths.queue_failures(flow))
        failed = readable_by_name(cache, lambda name: paths.queue_failure(flow, name), kept)
        return cls(
            flow,
            head,
            segments,
            problems,
            acks_of(cache, {flow: head})[flow],
            {name: failure.value for name, failure in failed.items()},
            owners_of(cache, {flow: head}),
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
            oldest=min((item.modified_us / 1e6 for item in waiting), default=None),
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
        """Return up to ``most`` unacked items in this ``state``."""
        ack, owner, waiting = self.acks[lane], self._owner(lane), self._waiting(lane)
        running = waiting[:1] if owner.running else []
        at = items.position_of(offset_of(ack))
        since = ack.written if isinstance(ack, Versioned) else None
        where = (owner.node, since) if state == "running" else ()
        some = running if state == "running" else waiting[len(running) :]
        return [
            ItemRow(
                f"{lane}.{item.number}",
                state,
                item.location,
                item.size,
                item.modified_us / 1e6,
                at if item is waiting[0] else 0,
                "",
                *where,
            )
            for item in some[: max(0, most)]
        ]

    def _owner(self, lane: str) -> Owner:
        partition = queues.partition_of(lane, self.head)
        return self.owners.get(key(self.flow, partition), NOBODY)

    def _waiting(self, lane: str) -> list[Item]:
        acked = items.number_of(offset_of(self.acks[lane]))
        return [item for item in self.segments[lane] if item.number >= acked]


def acks_of(cache: ReadCache, heads: Mapping[str, Queue]) -> dict[str, dict[str, Found[Ack]]]:
    """Return the ack of each lane by flow; None for a lane that never had an item."""
    ack_paths = [
        (flow, lane, ack_path(flow, queues.partition_of(lane, head)))
        for flow, head in heads.items()
        for lane, number in head.next.items()
        if number
    ]
    by_flow: dict[str, dict[str, Found[Ack]]] = {
        flow: dict.fromkeys(head.next) for flow, head in heads.items()
    }
    read = cache.read_each([path for _, _, path in ack_paths])
    for (flow, lane, _), ack in zip(ack_paths, read, strict=True):
        by_flow[flow][lane] = ack
    return by_flow


def owners_of(cache: ReadCache, flows: Iterable[str]) -> dict[str, Owner]:
    plans = read_plans(cache, flows)
    status_records = readable_by_name(cache, paths.status, cache.children(paths.live_nodes()))
    statuses = {node: status.value.tasks for node, status in status_records.items()}
    owners: dict[str, Owner] = {}
    for flow, plan in plans.items():
        for name, task in plan.value.tasks.items():
            if task.kind == COLLECT and task.node:
                status = statuses.get(task.node, {}).get(f"{flow}/{name}")
                works = status is not None and status.works and status.epoch == task.epoch
                owner = Owner(task.node, works)
                owners.update((key(flow, partition), owner) for partition in task.partitions)
    return owners


def offset_of(ack: Found[Ack]) -> int:
    return ack.value.offset if isinstance(ack, Versioned) else 0


def rate_of(account: Account | None) -> float | None:
    if account is None or account.acked_minute_ago is None:
        return None
    done = account.distance(account.acked_minute_ago, account.acked)
    return round(max(0, done) / AGO_SECONDS, 3)


def end_of(account: Account | None) -> float | None:
    """Estimate the seconds until the lane is empty, by bytes, or by items without sizes."""
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


def in_order(head: Queue) -> list[str]:
    return sorted(head.next, key=lambda lane: int(lane) if lane.isdigit() else -1)
