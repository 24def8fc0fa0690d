"""Watches the items in queue lanes: one thread rereads them when ZooKeeper reports a change."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field

from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.items import Item
from flumeng.control.zookeeper import Store, Unreadable
from flumeng.platform import fail_fast
from flumeng.platform.errors import FlumengError, UnavailableError
from zkschema import paths

log = logging.getLogger(__name__)

REREAD_SECONDS = 30.0
"""Queues are reread after this time without a change."""
RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class LaneLog:
    """The items kept of a lane, up to ``next``. ``trouble``: why they cannot be read."""

    next: int
    items: tuple[Item, ...] = ()
    trouble: str = ""

    @property
    def first(self) -> int:
        return self.items[0].number if self.items else self.next


@dataclass
class _Queue:
    """A watched queue. ``segments``: those that were read."""

    wakes: dict[Hashable, tuple[frozenset[str], Callable[[], None]]] = field(default_factory=dict)
    segments: dict[tuple[str, int], tuple[Item, ...]] = field(default_factory=dict)
    logs: dict[str, LaneLog] = field(default_factory=dict)
    id: str = ""

    @property
    def lanes(self) -> frozenset[str]:
        return frozenset().union(*(lanes for lanes, _ in self.wakes.values()))


class QueueWatcher:
    """Watcher of queues. Methods never wait for ZooKeeper."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._news = threading.Condition()
        self._queues: dict[str, _Queue] = {}
        self._changed: set[str] = set()
        self._runs = False

    def watch(
        self, owner: Hashable, flow: str, lanes: Collection[str], wake: Callable[[], None]
    ) -> None:
        """Watch these lanes; ``wake`` is called from another thread when they change."""
        with self._news:
            self._start()
            self._queues.setdefault(flow, _Queue()).wakes[owner] = frozenset(lanes), wake
            self._changed.add(flow)
            self._news.notify()

    def forget(self, owner: Hashable, flow: str) -> None:
        with self._news:
            queue = self._queues.get(flow)
            if queue is not None:
                queue.wakes.pop(owner, None)
                if not queue.wakes:
                    del self._queues[flow]

    def of(self, flow: str, queue: str, lanes: Collection[str]) -> dict[str, LaneLog]:
        """Return the lanes of the queue with this id; omits unknown lanes."""
        with self._news:
            watched = self._queues.get(flow)
            if watched is None or watched.id != queue:
                return {}
            return {name: watched.logs[name] for name in lanes if name in watched.logs}

    def reread(self, flow: str) -> None:
        with self._news:
            self._changed.add(flow)
            self._news.notify()

    def _start(self) -> None:
        if not self._runs:
            self._runs = True
            self.store.watch(paths.queues(), self._on_change)
            self._begin()

    def _begin(self) -> None:
        fail_fast.start("queues", self._work)

    def _on_change(self, path: str) -> None:
        if path.endswith("/polls"):  # only its writer reads it
            return
        flow = path.split("/")[2] if path.count("/") >= 2 else None
        with self._news:
            self._changed |= self._queues.keys() if flow is None else self._queues.keys() & {flow}
            if self._changed:
                self._news.notify()

    def _work(self) -> None:
        while True:
            self._turn(REREAD_SECONDS)

    def _turn(self, wait_seconds: float) -> None:
        """Read the changed queues, or all after ``wait_seconds`` without a change."""
        with self._news:
            if not self._changed and not self._news.wait(wait_seconds):
                self._changed |= self._queues.keys()
            changed, self._changed = self._changed, set()
            due = {flow: self._queues[flow] for flow in sorted(changed & self._queues.keys())}
        for flow, queue in due.items():
            self._follow(flow, queue)

    def _follow(self, flow: str, queue: _Queue) -> None:
        try:
            self._read(flow, queue)
        except UnavailableError:
            self._reread_later(flow)
        except FlumengError as error:
            unreadable = LaneLog(0, trouble=str(error))
            self._publish(queue, dict.fromkeys(queue.lanes, unreadable), queue.id)

    def _reread_later(self, flow: str) -> None:
        threading.Timer(RETRY_SECONDS, self.reread, [flow]).start()

    def _read(self, flow: str, queue: _Queue) -> None:
        head = queues.head(self.store, flow)
        if head is None:
            self._publish(queue, {}, "")
            return
        if head.value.id != queue.id:
            queue.segments.clear()
        lanes = queues.lanes(self.store, flow, head.value, queue.lanes)
        logs: dict[str, LaneLog] = {}
        for name, lane in lanes.items():
            fresh = [first for first in lane.segments if (name, first) not in queue.segments]
            read = queues.segments(self.store, flow, name, fresh)
            for first, segment in zip(fresh, read, strict=True):
                if isinstance(segment, Unreadable):
                    raise segment.error
                if segment is not None:
                    queue.segments[name, first] = tuple(items.of_segment(segment.value))
            logs[name] = _log(queue.segments, name, lane)
        kept: Mapping[str, set[int]] = defaultdict(set)
        for name, lane in lanes.items():
            kept[name].update(lane.segments)
        queue.segments = {k: part for k, part in queue.segments.items() if k[1] in kept[k[0]]}
        self._publish(queue, logs, head.value.id)

    def _publish(self, queue: _Queue, logs: dict[str, LaneLog], queue_id: str) -> None:
        with self._news:
            changed = {name for name in logs | queue.logs if logs.get(name) != queue.logs.get(name)}
            queue.logs, queue.id = logs, queue_id
            wakes = [wake for lanes, wake in queue.wakes.values() if lanes & changed]
        for wake in wakes:
            wake()


def _log(
    segments: Mapping[tuple[str, int], tuple[Item, ...]], name: str, lane: queues.Lane
) -> LaneLog:
    """Return the last consecutive items below the head's end; unread segments are omitted."""
    consecutive: list[Item] = []
    for first in lane.segments:
        part = segments.get((name, first), ())
        if first >= lane.next or not part:
            continue
        if consecutive and consecutive[-1].number + 1 != part[0].number:
            consecutive = []  # earlier items are acked and being removed
        consecutive.extend(part)
    return LaneLog(lane.next, tuple(consecutive))
