"""How a modelled collector reads lanes: with the positions, standstills and gaps of the real one,
whose threads are called for, over modelled objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, cast

from flumeng.agent.collector.gaps import Gap, gaps, gone
from flumeng.agent.collector.partitions import Partitions
from flumeng.agent.collector.ranges import MOST
from flumeng.connectors.api.ranged import Range, Reach
from flumeng.connectors.objects.input import LanePositions
from flumeng.connectors.objects.watcher import REREAD_SECONDS, RETRY_SECONDS, QueueWatcher
from flumeng.connectors.ranged.positions import Probes
from flumeng.control.snapshot import items
from flumeng.control.snapshot.partitions import OBJECTS, input_of
from flumeng.control.zookeeper import Store
from tests.testkit.simulation.bucket import Bucket
from tests.testkit.simulation.cluster import Cluster

Reaches = Mapping[str, Reach]


def lanes_of(offsets: Mapping[str, int]) -> dict[str, int]:
    """The partitions that are lanes."""
    return {name: at for name, at in offsets.items() if input_of(name) == OBJECTS}


class SteppedWatcher(QueueWatcher):
    """A watcher whose turns the simulation calls."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        super().__init__(store)
        self._clock = clock
        self._due = clock() + REREAD_SECONDS
        self._later: set[str] = set()
        self._later_at = 0.0

    @property
    def has_news(self) -> bool:
        now = self._clock()
        again = self._later and now >= self._later_at
        return bool(self._queues) and bool(self._changed or again or now >= self._due)

    @property
    def due(self) -> float:
        """The time of the next look without a notification."""
        if not self._queues:
            return float("inf")
        return min(self._due, self._later_at) if self._later else self._due

    def turn(self) -> None:
        if self._later and self._clock() >= self._later_at:
            self._changed |= self._later
            self._later = set()
        self._due = self._clock() + REREAD_SECONDS
        self._turn(0.0)

    def _begin(self) -> None:
        """Start no thread."""

    def _reread_later(self, flow: str) -> None:
        self._later.add(flow)
        self._later_at = self._clock() + RETRY_SECONDS


class AtOnce(Executor):
    """Runs each call in ``submit``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Lanes:
    """The lanes of one task."""

    def __init__(
        self, world: Cluster, watcher: QueueWatcher, flow: str, wake: Callable[[], None]
    ) -> None:
        self._world = world
        self._bucket: Bucket = world.disks.bucket(flow)
        positions = LanePositions(
            watcher,
            Probes("objects", AtOnce()),
            wake,
            reader=lambda _: cast(Any, self._bucket),
            pause=lambda _: None,
            wall=world.clock,
        )
        self.partitions = Partitions(positions, world.clock)

    def reached(self, starts: Mapping[str, int]) -> Reaches:
        return self.partitions.of(lanes_of(starts))

    def gaps(self, starts: Mapping[str, int], reached: Reaches) -> tuple[Gap, ...]:
        return gaps(lanes_of(starts), reached, MOST)

    def gone(self, ranges: Sequence[Range], reached: Reaches) -> tuple[Gap, ...]:
        return gone(tuple(ranges), reached)

    def next_ranges(self, starts: Mapping[str, int], reached: Reaches) -> list[Range]:
        """Some readable ranges; a range may end within an item."""
        return [
            Range(name, start, self._end(start, reached[name]))
            for name, start in sorted(lanes_of(starts).items())
            if name in reached and reached[name].safe > start
        ]

    def read(self, piece: Range, reach: Reach) -> list[int]:
        """The offsets of its events. Raises UnreadableError."""
        assert reach.contents is not None
        address = reach.contents.address(piece.start, piece.end)
        return list(self._bucket.read(piece, address))

    def _end(self, start: int, reach: Reach) -> int:
        if not self._world.rough:
            return reach.safe
        assert reach.contents is not None
        found = items.decode(reach.contents.address(start, reach.safe))
        ends = {item.start + at for item in found for at in range(item.size)}
        ends |= {item.end for item in found}
        return self._world.random.choice(
            [*sorted(end for end in ends if start < end < reach.safe), reach.safe]
        )
