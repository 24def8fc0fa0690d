"""Invariants of a work queue, checked after every transaction.

1. The items of a lane that are kept are numbered without a gap, and end at the queue head's number
   of the next one; the epoch of a head never goes back.
2. An object is an item of one lane, once; a failed one becomes an item again when an operator wants
   it, in the transaction that removes its failure.
3. A segment goes when all of it is acked, and an object only when all of its items are.
4. The acked events of a lane were written: each at least once, where the flow delivers exactly once
   not twice. Only failed items are passed over: to the end of the item in which the failure was
   noted, in one transaction with the ack; nothing behind the unreadable place is written.
5. There is no queue without its flow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.items import Item
from flumeng.control.snapshot.partitions import OBJECTS, input_of
from tests.testkit.simulation.bucket import Identity, identity
from tests.testkit.simulation.ensemble import Change, Ensemble
from tests.testkit.simulation.partition_file import PartitionFile
from zkschema import paths
from zkschema.records import Ack, Commit, Flow, Queue, QueueFailure, QueueSegment

RETRY = "retry"


@dataclass
class Lane:
    """``items`` are all that it ever had, by their numbers; ``kept`` the segments that are there.

    ``passed_over`` maps the offset where an item was passed over to its end; items that were
    ``retried`` are read again from there on. Events in ``excused`` were in a batch that was given
    up.
    """

    flow: str
    items: list[Item] = field(default_factory=list)
    kept: dict[int, tuple[Item, ...]] = field(default_factory=dict)
    passed_over: dict[int, int] = field(default_factory=dict)
    retried: set[int] = field(default_factory=set)
    excused: set[int] = field(default_factory=set)
    acked: int = 0

    @property
    def file(self) -> PartitionFile:
        """Its readable range."""
        end = items.offset_of(len(self.items))
        floor = items.offset_of(min(self.kept)) if self.kept else end
        return PartitionFile(self.flow, floor, end)

    def events(self, start: int, end: int) -> Iterator[int]:
        """The offsets of the events that lie between two offsets."""
        for item in self.items[items.number_of(start) : items.number_of(end - 1) + 1]:
            first = max(start, item.begin)
            yield from range(first, min(end, item.start + item.size))

    def is_passed_over(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.passed_over.items())


class QueueChecks:
    """Checks every transaction. ``lanes``: partition -> the lane.

    ``times`` tells how often an event of a lane is in the target; more than ``most`` times is
    wrong. ``strict``: events that were passed over must not be there; a target that knows batches
    by number may have taken them with a batch that cannot be repeated as a whole.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        times: Callable[[str, int], int],
        *,
        most: float,
        strict: bool,
        commit: Callable[[str], None],
        require: Callable[[bool, str], None],
    ) -> None:
        self.lanes: dict[str, Lane] = {}
        self._ensemble = ensemble
        self._times = times
        self._most = most
        self._strict = strict
        self._commit = commit
        self._require = require
        self._partitions: dict[tuple[str, str], str] = {}
        """(flow, lane) -> partition, of the queues that are there."""
        self._known: defaultdict[str, dict[Identity, list[tuple[str, int]]]] = defaultdict(dict)
        """Id of a queue -> the objects that became items of it -> the lanes and numbers."""

    def hear(self, changes: Iterable[tuple[str, tuple[str, ...], Change]]) -> None:
        """Check the changes of one transaction, each with its pattern and names; a lane is checked
        when all its changes are known."""
        by_kind: defaultdict[str, list[tuple[tuple[str, ...], Change]]] = defaultdict(list)
        for pattern, names, change in changes:
            by_kind[pattern].append((names, change))
            if change.after is not None and isinstance(change.after.value, Commit):
                self._commit(change.path)
        touched = {names[0] for names, _ in by_kind[paths.queue.pattern]}
        for names, change in by_kind[paths.queue.pattern]:
            self._on_head(names[0], change)
        failures = by_kind[paths.queue_failure.pattern]
        for (flow, lane, segment), change in by_kind[paths.queue_segment.pattern]:
            self._on_segment(flow, lane, int(segment), change, [one for _, one in failures])
            touched.add(flow)
        moved = {names[-1]: change for names, change in by_kind[paths.ack.pattern]}
        for (flow, item), change in failures:
            self._on_failure(flow, item, change, moved)
        for partition, change in moved.items():
            self._on_ack(partition, change)
        for flow in touched:
            self._require_whole(flow)

    def excuse(self, partition: str, start: int, end: int) -> bool:
        """A batch with these ranges was given up. Returns whether it is of a lane."""
        lane = self.lanes.get(partition)
        if lane is not None:
            lane.excused.update(lane.events(start, end))
        return lane is not None

    def unfinished(self, flow: str, queue: str, there: Iterable[Identity]) -> str:
        """Unread objects of the flow at rest, as a sentence."""
        for one in there:
            if one not in self._known[queue]:
                return f"{one[0]} is in no lane of {flow}: it is lost"
        for partition, lane in self.lanes.items():
            if queues.lane_of(partition) == (partition.split(".")[1], queue):
                if lane.acked < lane.file.end:
                    return f"{partition} is acked up to {lane.acked} of {lane.file.end}"
                if lane.kept:
                    return f"{partition} keeps segments that are acked"
        return ""

    def on_removed(self, flow: str, item: Item) -> None:
        """The object is about to be removed, since it is done."""
        for (owner, _), partition in self._partitions.items():
            lane = self.lanes[partition]
            for one in lane.items if owner == flow else ():
                if identity(one) == identity(item):
                    self._require(
                        lane.acked >= one.end and not self._failed(partition, one),
                        f"{item.location} is taken away, and is not acked in {partition}",
                    )

    def _failed(self, partition: str, item: Item) -> bool:
        lane = self.lanes[partition]
        over = any(item.start <= start < item.end for start in lane.passed_over)
        return over and item.number not in lane.retried

    def _on_head(self, flow: str, change: Change) -> None:
        if change.after is None:
            self._partitions = {
                key: name for key, name in self._partitions.items() if key[0] != flow
            }
            return
        head = change.after.value
        assert isinstance(head, Queue)
        self._require(self._flow(flow) is not None, f"there is a queue of {flow}, and no such flow")
        before = change.before.value if change.before else Queue(epoch=0)
        assert isinstance(before, Queue)
        self._require(head.epoch >= before.epoch, f"the queue of {flow} goes to an older epoch")
        for lane in head.next:
            partition = queues.lane_partition(lane, head.id)
            self._partitions[flow, lane] = partition
            self.lanes.setdefault(partition, Lane(flow))

    def _on_segment(
        self, flow: str, name: str, first: int, change: Change, failures: Iterable[Change]
    ) -> None:
        partition = self._partitions.get((flow, name))
        if partition is None:
            self._require(change.after is None, f"a segment of {flow} has no queue")
            return
        lane = self.lanes[partition]
        if change.after is None:
            gone = lane.kept.pop(first)
            dropped = (flow_record := self._flow(flow)) is None or flow_record.discard
            self._require(
                dropped or lane.acked >= gone[-1].end,
                f"{partition}: the segment {first} goes, acked is {lane.acked}",
            )
            return
        segment = change.after.value
        assert isinstance(segment, QueueSegment)
        self._require(change.before is None, f"{partition}: the segment {first} changes")
        found = tuple(items.of_segment(segment))
        self._require(
            segment.first == first == len(lane.items),
            f"{partition}: the segment {first} comes after {len(lane.items)} items",
        )
        again = {_of_failure(one) for one in failures if one.after is None}
        for item in found:
            known = self._known[_queue_of(partition)].setdefault(identity(item), [])
            self._require(
                not known or (identity(item), item.first) in again,
                f"{item.location} is item {item.number} of {partition}, and is {known} already",
            )
            known.append((partition, item.number))
        lane.items.extend(found)
        lane.kept[first] = found

    def _on_failure(
        self, flow: str, name: str, change: Change, moved: Mapping[str, Change]
    ) -> None:
        if change.after is None:
            assert change.before is not None
            before = change.before.value
            assert isinstance(before, QueueFailure)
            gone = (record := self._flow(flow)) is None or record.discard
            self._require(
                bool(before.wanted) or gone, f"{name} of {flow} failed, and that is forgotten"
            )
            if before.wanted == RETRY and not gone:
                lane_name, _, item = name.partition(".")
                self.lanes[self._partitions[flow, lane_name]].retried.add(int(item))
            return
        if change.before is not None:
            before, after = change.before.value, change.after.value
            assert isinstance(before, QueueFailure)
            assert isinstance(after, QueueFailure)
            if before.position == after.position:
                return
        number, failure = int(name.partition(".")[2]), change.after.value
        assert isinstance(failure, QueueFailure)
        partition = self._partitions[flow, name.partition(".")[0]]
        lane, place = self.lanes[partition], items.offset_of(number, failure.position)
        end = items.offset_of(number + 1)
        ack = moved[partition].after if partition in moved else None
        offset = ack.value.offset if ack and isinstance(ack.value, Ack) else -1
        self._require(
            lane.acked <= place < offset,
            f"{partition}: {number} failed at {failure.position}, and the ack goes from "
            f"{lane.acked} to {offset}",
        )
        lane.passed_over[place] = end

    def _on_ack(self, partition: str, change: Change) -> None:
        if input_of(partition) != OBJECTS or change.after is None:
            return
        ack = change.after.value
        assert isinstance(ack, Ack)
        lane = self.lanes[partition]
        for offset in lane.events(lane.acked, ack.offset) if ack.offset > lane.acked else ():
            times, over = self._times(partition, offset), lane.is_passed_over(offset)
            at = f"{partition} {items.number_of(offset)}.{items.position_of(offset)}"
            self._require(over or times > 0, f"{at} is acked, and is nowhere in the target")
            most = math.inf if offset in lane.excused else self._most
            self._require(times <= most, f"{at} is {times} times in the target")
            self._require(
                not over or not times or not self._strict, f"{at} has failed, and is in the target"
            )
        lane.acked = max(lane.acked, ack.offset)

    def _require_whole(self, flow: str) -> None:
        znode = self._ensemble.newest(str(paths.queue(flow)))
        if znode is None:
            return
        head = znode.value
        assert isinstance(head, Queue)
        record = self._flow(flow)
        if record is None or record.discard:
            return
        for name, number in head.next.items():
            lane = self.lanes[self._partitions[flow, name]]
            kept = [one.number for first in sorted(lane.kept) for one in lane.kept[first]]
            self._require(
                kept == list(range(number - len(kept), number)) and number == len(lane.items),
                f"lane {name} of {flow} has the items {kept}, and the next one is {number}",
            )

    def _flow(self, flow: str) -> Flow | None:
        znode = self._ensemble.newest(str(paths.flow(flow)))
        assert znode is None or isinstance(znode.value, Flow)
        return znode.value if znode else None  # type: ignore[return-value]


def _queue_of(partition: str) -> str:
    found = queues.lane_of(partition)
    assert found is not None
    return found[1]


def _of_failure(change: Change) -> tuple[Identity, int]:
    """Which object failed, and where."""
    assert change.before is not None
    failed = change.before.value
    assert isinstance(failed, QueueFailure)
    of = failed.location, failed.size, failed.modified, failed.tag
    return of, failed.position if failed.wanted == RETRY else -1
