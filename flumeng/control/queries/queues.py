"""The work queues of all flows; ``lanes`` has the items of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flumeng.control.queries.lanes import (
    NOBODY,
    Accounts,
    LaneRow,
    Owner,
    acks_of,
    end_of,
    latest_of,
    offset_of,
    owners_of,
    rate_of,
    sum_of,
)
from flumeng.control.queries.reading import Reading
from flumeng.control.queries.unreadable import Cause
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.partitions import key
from flumeng.control.zookeeper import Found, Unreadable, Versioned
from zkschema import paths
from zkschema.records import Ack, Flow, Queue


@dataclass(frozen=True)
class QueueRow:
    """``running`` of the ``waiting`` items are read now. ``oldest``: when the oldest item was
    written, in seconds since the epoch. ``items_per_second``: of the last minute; ``end_seconds``:
    until the queue is empty at that rate."""

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
    look = _Look(acks_of(reading, known), failed, owners_of(reading, known), accounts)
    rows = []
    for name in names:
        if name in known:
            rows.append(look.row(name, states[name], known[name]))
        elif isinstance(why := heads[name], Unreadable):
            rows.append(
                QueueRow(name, states[name], 0, 0, 0, None, None, 0, 0, None, None, str(why))
            )
    return rows


def totals(rows: Sequence[LaneRow], state: str) -> QueueRow:
    """The queue of one flow as the sum of its lanes."""
    return QueueRow(
        flow=rows[0].flow,
        state=state,
        lanes=len(rows),
        waiting=sum(row.waiting for row in rows),
        running=sum(row.running for row in rows),
        bytes=sum_of([row.bytes for row in rows]),
        oldest=min((row.oldest for row in rows if row.oldest is not None), default=None),
        done=sum(row.done for row in rows),
        failed=sum(row.failed for row in rows),
        items_per_second=sum_of([row.items_per_second for row in rows]),
        end_seconds=latest_of([row.end_seconds for row in rows]),
        problem="; ".join(dict.fromkeys(row.problem for row in rows if row.problem)),
    )


def causes(reading: Reading) -> Iterator[Cause]:
    """One for each flow with failed items about which nothing is decided."""
    flows = flows_with_queues(reading)
    failed = reading.children_many([paths.queue_failures(flow) for flow in flows])
    for flow, listed in zip(flows, failed, strict=True):
        some = listed[: queues.FAILURES_READ]
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
class _Look:
    """Of all queues: flow -> acks of its lanes, flow -> names of its failed items."""

    acks: Mapping[str, Mapping[str, Found[Ack]]]
    failed: Mapping[str, Sequence[str]]
    owners: Mapping[str, Owner]
    accounts: Accounts

    def row(self, flow: str, state: str, queue: Queue) -> QueueRow:
        acks, failed = self.acks[flow], self.failed[flow]
        partitions = {lane: key(flow, queues.partition_of(lane, queue)) for lane in queue.next}
        told = [self.accounts.get(one) for one in partitions.values()]
        acked = {lane: items.number_of(offset_of(acks[lane])) for lane in queue.next}
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
            bytes=sum_of([one.unacked_bytes if one else None for one in told]),
            oldest=min(oldest) / 1e6 if oldest else None,
            done=done - len(failed) - sum(queue.retried.values()),
            failed=len(failed),
            items_per_second=sum_of([rate_of(one) for one in told]),
            end_seconds=latest_of([end_of(one) for one in told]),
            problem="; ".join(str(one) for one in acks.values() if isinstance(one, Unreadable)),
        )


def _state(flow: Found[Flow]) -> str:
    return flow.value.state if isinstance(flow, Versioned) else "unreadable" if flow else "gone"
