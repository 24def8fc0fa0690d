"""A host more halves the time of work that its processors bound: objects of mixed sizes in lanes,
shared out by the real planner and read in batches that are cut as the collector cuts them.

Work is counted, in the events that objects weigh, and no clock is read. A host does so much of it
in a tick, for all of its tasks in turn.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from dataclasses import replace
from random import Random

import pytest

from flumeng.agent.collector.ranges import Scale, next_ranges
from flumeng.config import CollectPlace, Place
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.objects.formats import cuttable
from flumeng.connectors.objects.lanes import LaneContents, spread, weigh
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.objects.pages import Listed
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item
from flumeng.control.snapshot.queues import lane_partition
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from tests.props.planning import apply_all, converge, nodes_obey
from zkschema.records import Flow, Node, Partition

SEEDS = range(int(os.environ.get("FLUMENG_LANE_SEEDS", "2")))
SOURCE = ObjectsSource(paths=("/in/*",))
LANES = SOURCE.lanes
GIVEN_TASKS = 4
WEIGH = weigh(SOURCE)
ITEMS = 600
TICK_EVENTS = 5_000
BATCH_EVENTS = 1_000
COMPRESSED = 0.5
HANDOVER_TICKS = 1
MOST = 0.6
"""The allowed share of the time of half as many hosts."""


def objects(seed: int) -> list[Listed]:
    """Many small objects and some large ones; none is over a fiftieth of all work.

    Some are compressed: one of their bytes is ten times the work.
    """
    random = Random(seed)
    listed = []
    for number in range(ITEMS):
        size = min(int(random.lognormvariate(10.5, 1.6)), 1_000_000)
        packed = random.random() < COMPRESSED
        listed.append(
            Listed(f"/in/{number:06}.gz", size // 10, 0)
            if packed
            else Listed(f"/in/{number:06}", size, 0)
        )
    return listed


class Fleet:
    """``ticks`` until all is read. ``waits``: for how many ticks a non-empty lane had no owner, at
    most."""

    def __init__(
        self, listed: list[Listed], hosts: int, most_waiting: int = ITEMS, tasks: int | None = None
    ) -> None:
        self.partitions = {str(n): lane_partition(str(n), "q") for n in range(LANES)}
        self.lanes: dict[str, list[Item]] = {name: [] for name in self.partitions}
        self.acks = dict.fromkeys(self.partitions.values(), 0)
        self.read: Counter[tuple[str, int]] = Counter()
        self.ticks = self.waits = 0
        self._listed = deque(listed)
        self._most_waiting = most_waiting
        self._credit: Counter[str] = Counter()
        self._turn: Counter[str] = Counter()
        self._idle: Counter[str] = Counter()
        place = Place(collect=CollectPlace(tasks=tasks))
        flow = FlowView(
            "f",
            Flow(revision=1, state="running"),
            Version(0),
            place,
            partitions={name: Partition() for name in self.partitions.values()},
            discovers=True,
            pins=False,
        )
        self.snapshot = Snapshot(
            flows={"f": flow},
            nodes={},
            journals={},
            drained=frozenset(),
            mine=frozenset({"f"}),
            leads=True,
        )
        for _ in range(hosts):
            self.join()
        self.snapshot, _ = converge(self.snapshot)

    def join(self) -> None:
        name = f"n{len(self.snapshot.nodes)}"
        node = NodeView(name, Node(uuid=name, roles=("collect",), zone="a"), live=True)
        self.snapshot = replace(self.snapshot, nodes={**self.snapshot.nodes, name: node})

    def run(self, join_at: int | None = None) -> None:
        while self._listed or self._waiting:
            self._append()
            if self.ticks == join_at:
                for _ in range(len(self.snapshot.nodes)):
                    self.join()
            self.snapshot = apply_all(self.snapshot)
            self._tick()
            self.snapshot = nodes_obey(self.snapshot)
        assert self.read.keys() == {
            (name, item.number) for name, own in self.lanes.items() for item in own
        }

    @property
    def _waiting(self) -> int:
        return sum(
            len(own) - items.number_of(self.acks[self.partitions[name]])
            for name, own in self.lanes.items()
        )

    def _append(self) -> None:
        """As the discovery task does, while there is room."""
        room = self._most_waiting - self._waiting
        some = [self._listed.popleft() for _ in range(min(room, len(self._listed)))]
        weights = {
            name: sum(
                WEIGH(one.location, one.size)
                for one in own[items.number_of(self.acks[self.partitions[name]]) :]
            )
            for name, own in self.lanes.items()
        }
        for lane, one in zip(spread(some, weights, WEIGH), some, strict=True):
            own = self.lanes[lane]
            own.append(Item(len(own), one.location, one.size, one.modified_us))

    def _tick(self) -> None:
        """Each host reads its share; a batch that takes longer is still in progress."""
        self.ticks += 1
        running = {
            name: [task.partitions for task in node.assignment.tasks if task.state == "running"]
            for name, node in self.snapshot.nodes.items()
        }
        owned = {one for own in running.values() for task in own for one in task}
        for name, partition in self.partitions.items():
            lacks = partition not in owned and self.acks[partition] < self._end(name)
            self._idle[name] = self._idle[name] + 1 if lacks else 0
            self.waits = max(self.waits, self._idle[name])
        for host, own in running.items():
            self._credit[host] = min(self._credit[host], 0) + TICK_EVENTS
            idle = 0
            while self._credit[host] > 0 and idle < len(own):
                self._turn[host] += 1
                done = self._batch(own[self._turn[host] % len(own)])
                self._credit[host] -= done
                idle = 0 if done else idle + 1

    def _batch(self, partitions: tuple[str, ...]) -> int:
        """The work of the next batch of a task, which is acked."""
        lanes = {self.partitions[name]: name for name in self.lanes}
        starts = {name: self.acks[name] for name in partitions if name in lanes}
        contents = {}
        for name, start in starts.items():
            kept = self.lanes[lanes[name]][items.number_of(start) :]
            contents[name] = LaneContents(kept, cuttable(SOURCE))
        scale = Scale(contents)
        safe = {name: self._end(lanes[name]) for name in starts}
        ranges = next_ranges(starts, safe, BATCH_EVENTS, {}, scale)
        for piece in ranges:
            assert piece.start == self.acks[piece.partition], "read twice, or not at all"
            self._note(lanes[piece.partition], piece)
            self.acks[piece.partition] = piece.end
        return scale.total(ranges)

    def _note(self, lane: str, piece: Range) -> None:
        """Record the items of the batch."""
        for number in range(items.number_of(piece.start), items.number_of(piece.end - 1) + 1):
            if piece.start <= items.offset_of(number):
                self.read[lane, number] += 1

    def _end(self, lane: str) -> int:
        return items.offset_of(len(self.lanes[lane]))


def ran(
    seed: int,
    hosts: int,
    *,
    tasks: int | None,
    most_waiting: int = ITEMS,
    join_at: int | None = None,
) -> Fleet:
    fleet = Fleet(objects(seed), hosts, most_waiting, tasks)
    fleet.run(join_at)
    assert set(fleet.read.values()) == {1}
    return fleet


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [None, GIVEN_TASKS])
@pytest.mark.parametrize("most_waiting", [ITEMS, 200])
@pytest.mark.parametrize("seed", SEEDS)
def test_twice_as_many_hosts_take_little_more_than_half_the_time(
    seed: int, most_waiting: int, tasks: int | None
) -> None:
    """Whether all is in lanes at once or is listed as there is room, and the flow says how many
    tasks it has or not."""
    one, two, four = (
        ran(seed, hosts, tasks=tasks, most_waiting=most_waiting).ticks for hosts in (1, 2, 4)
    )
    assert two <= MOST * one
    assert four <= MOST * two


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [None, GIVEN_TASKS])
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_hosts_that_join_amid_a_backlog_take_their_share(
    seed: int, hosts: int, tasks: int | None
) -> None:
    """As many again: the rest takes little more than half as long, and no lane waits for longer
    than a batch."""
    alone = ran(seed, hosts, tasks=tasks)
    middle = alone.ticks // 2
    fleet = ran(seed, hosts, tasks=tasks, join_at=middle)
    assert fleet.ticks - middle <= HANDOVER_TICKS + MOST * (alone.ticks - middle)
    assert fleet.waits <= HANDOVER_TICKS
