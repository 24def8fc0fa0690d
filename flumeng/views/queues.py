"""What waits in the work queues of flows, what was done, and what could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from flumeng.errors import UserError
from flumeng.state import items, queues
from flumeng.state.items import Item
from flumeng.state.partitions import ack_path
from flumeng.state.task_map import read_plans
from flumeng.store import Versioned
from flumeng.views.reading import Reading
from flumeng.views.unreadable import Cause
from zkschema import paths
from zkschema.records import Queue, QueueFailure

State = Literal["running", "waiting", "failed"]


@dataclass(frozen=True)
class LaneRow:
    """``waiting`` items of ``bytes`` are not acked, of which one is read now: ``at``, up to
    ``position``. ``oldest`` is when the oldest of them was written (seconds since the epoch). The
    lane is read by a ``node``."""

    flow: str
    lane: str
    node: str
    waiting: int
    bytes: int
    oldest: float | None
    done: int
    failed: int
    at: str
    position: int


@dataclass(frozen=True)
class ItemRow:
    """``position``: up to where it was read, in bytes or rows. ``item``: as commands call it."""

    item: str
    state: State
    location: str
    bytes: int
    modified: float
    position: int
    why: str


def flows_with_queues(reading: Reading) -> list[str]:
    return reading.children(paths.queues())


def lanes(reading: Reading, flows: Iterable[str]) -> list[LaneRow]:
    """A row for each lane of these flows; none for a flow without a queue."""
    rows = []
    for flow in flows:
        head = reading.read(paths.queue(flow))
        if head is None:
            continue
        queue = _Queue.of(reading, flow, head.value)
        nodes = _nodes(reading, flow)
        for lane in sorted(head.value.next, key=_number):
            waiting = queue.waiting(lane)
            first = waiting[0] if waiting else None
            position = items.position_of(queue.acks.get(lane, 0)) if first else 0
            rows.append(
                LaneRow(
                    flow=flow,
                    lane=lane,
                    node=nodes.get(queues.lane_partition(lane, head.value.id), ""),
                    waiting=len(waiting),
                    bytes=sum(one.size for one in waiting),
                    oldest=min((one.modified_us / 1e6 for one in waiting), default=None),
                    done=items.number_of(queue.acks.get(lane, 0)) - queue.failures_of(lane),
                    failed=queue.failures_of(lane),
                    at=first.location if first else "",
                    position=position,
                )
            )
    return rows


def listed_items(reading: Reading, flow: str, most: int) -> list[ItemRow]:
    """The items that failed, and then those that wait, ``most`` of them. Raises UserError."""
    head = reading.read(paths.queue(flow))
    if head is None:
        raise UserError(f"flow {flow} has no queue: it has no source `objects` that ever ran")
    queue = _Queue.of(reading, flow, head.value)
    rows = [
        ItemRow(name, "failed", f.location, f.size, f.modified / 1e6, f.position, f.why)
        for name, f in queue.failures.items()
        if not f.wanted
    ]
    for lane in sorted(head.value.next, key=_number):
        at = queue.acks.get(lane, 0)
        for place, one in enumerate(queue.waiting(lane)):
            started = items.position_of(at) if place == 0 else 0
            state: State = "running" if started else "waiting"
            name = f"{lane}.{one.number}"
            rows.append(
                ItemRow(name, state, one.location, one.size, one.modified_us / 1e6, started, "")
            )
            if len(rows) >= most:
                return rows
    return rows[:most]


def causes(reading: Reading) -> Iterator[Cause]:
    """One for each flow with objects that could not be read."""
    flows = flows_with_queues(reading)
    failed = reading.children_many([paths.queue_failures(flow) for flow in flows])
    for flow, listed in zip(flows, failed, strict=True):
        if listed:
            objects = f"{len(listed)} object{'' if len(listed) == 1 else 's'}"
            yield Cause(
                f"{objects} of flow {flow} could not be read, at least not to the end",
                f"see why (`flumeng queue show {flow}`), then `flumeng queue retry {flow} --all` "
                f"or `flumeng queue skip {flow} --all`",
                about=f"flow {flow}: objects that could not be read",
            )


@dataclass(frozen=True)
class _Queue:
    segments: Mapping[str, list[Item]]
    acks: Mapping[str, int]
    failures: Mapping[str, QueueFailure]

    @classmethod
    def of(cls, reading: Reading, flow: str, head: Queue) -> _Queue:
        known = queues.lanes(reading.store, flow, head, head.next)
        segments: dict[str, list[Item]] = {}
        for name, lane in known.items():
            found = reading.read_many(
                [paths.queue_segment(flow, name, queues.segment_name(n)) for n in lane.segments]
            )
            segments[name] = [
                item for one in found if one is not None for item in items.of_segment(one.value)
            ]
        wanted = [ack_path(flow, queues.lane_partition(name, head.id)) for name in known]
        acks = dict(zip(known, reading.read_many(wanted), strict=True))
        kept = reading.children(paths.queue_failures(flow))
        failed = reading.read_many([paths.queue_failure(flow, name) for name in kept])
        return cls(
            segments,
            {name: ack.value.offset for name, ack in acks.items() if ack is not None},
            {n: one.value for n, one in zip(kept, failed, strict=True) if one is not None},
        )

    def waiting(self, lane: str) -> list[Item]:
        acked = items.number_of(self.acks.get(lane, 0))
        return [one for one in self.segments[lane] if one.number >= acked]

    def failures_of(self, lane: str) -> int:
        return sum(name.partition(".")[0] == lane for name in self.failures)


def _nodes(reading: Reading, flow: str) -> dict[str, str]:
    """Partition -> the node whose task reads it."""
    plan = read_plans(reading.store, [flow]).get(flow)
    tasks = plan.value.tasks.values() if isinstance(plan, Versioned) else ()
    return {name: task.node or "" for task in tasks for name in task.partitions}


def _number(lane: str) -> int:
    return int(lane) if lane.isdigit() else -1
