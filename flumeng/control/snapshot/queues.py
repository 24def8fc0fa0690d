"""Work queues in ZooKeeper: a head, and segments of items for each lane. Only the flow's discovery
task appends, in one transaction with the head. A segment never changes and is removed when all its
items are acked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flumeng.control.snapshot.partitions import OBJECTS, POLLS, QUEUED
from flumeng.control.zookeeper import Found, ReadableStore, Versioned
from zkschema import paths
from zkschema.records import Queue, QueueSegment

_LANE = re.compile(rf"lane\.([0-9]+)\.([0-9a-z]+)@(?:{'|'.join(QUEUED)})", re.ASCII)
SCHEDULE = "schedule"
"""The value of ``Queue.rules`` when the items are due times."""
FAILURES_READ = 1000
"""The most failed items of a flow whose decisions are read."""
NUMBER_DIGITS = 10
"""Digits of a segment's name, so that names sort as their first item numbers do."""


@dataclass(frozen=True)
class Lane:
    """A lane: the first item numbers of its kept segments, and the next item number."""

    next: int
    segments: Sequence[int]


def lane_partition(lane: str, queue: str, input_: str = OBJECTS) -> str:
    """Return a name like ``lane.3.5f2a90c1@objects``; the queue's id ties acks to this queue."""
    return f"lane.{lane}.{queue}@{input_}"


def partition_of(lane: str, queue: Queue) -> str:
    return lane_partition(lane, queue.id, POLLS if queue.rules == SCHEDULE else OBJECTS)


def lane_of(partition: str) -> tuple[str, str] | None:
    """Return the lane and the queue's id in a partition's name, or None."""
    match = _LANE.fullmatch(partition)
    return (match[1], match[2]) if match else None


def segment_name(first: int) -> str:
    return f"{first:0{NUMBER_DIGITS}d}"


def head(store: ReadableStore, flow: str) -> Versioned[Queue] | None:
    """Return the queue's head record, or None. Raises CorruptError, UserError, UnavailableError."""
    return store.read(paths.queue(flow))


def lanes(store: ReadableStore, flow: str, queue: Queue, names: Iterable[str]) -> dict[str, Lane]:
    names = sorted(names)
    children = store.children_many([paths.queue_lane(flow, name) for name in names])
    return {
        name: Lane(queue.next.get(name, 0), sorted(int(child) for child in kept if child.isdigit()))
        for name, kept in zip(names, children, strict=True)
    }


def segments(
    store: ReadableStore, flow: str, lane: str, firsts: Sequence[int]
) -> list[Found[QueueSegment]]:
    """Return the segments with these first item numbers; None for removed ones."""
    return store.read_each(
        [paths.queue_segment(flow, lane, segment_name(first)) for first in firsts]
    )
