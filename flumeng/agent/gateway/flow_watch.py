"""Positions of the flows that other sites read, watched while they ask."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from flumeng.connectors.api.ranged import Reach
from flumeng.connectors.flows.flow_journals import FlowJournals
from flumeng.connectors.journals.positions import PositionWatcher
from flumeng.control.zookeeper import Store
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.gateway_wire import WAIT_SECONDS, FlowPositions
from zkschema.records import Journal

FIRST_SECONDS = 1.5
"""How long a first answer waits for the servers of all journals."""
LISTED_SECONDS = 1.0
IDLE_SECONDS = 60.0


@dataclass(eq=False)
class _Flow:
    """One watched flow. ``changed`` guards the other fields."""

    journals: FlowJournals
    changed: threading.Condition = field(default_factory=threading.Condition)
    registered: Mapping[str, Journal] = field(default_factory=dict)
    listed_at: float = float("-inf")
    asked_at: float = 0.0

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()


class FlowWatch:
    """Answers requests for positions. Thread-safe. ``site``: this cluster's name."""

    def __init__(
        self, store: Store, watcher: PositionWatcher, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._watcher = watcher
        self._clock = clock
        self._lock = threading.Lock()
        self._flows: dict[str, _Flow] = {}

    def positions(
        self, site: str, flow: str, seen: str = "", wait_seconds: float = 0.0
    ) -> FlowPositions:
        """Return the positions of the flow's journals when they differ from ``seen``, at the latest
        after ``wait_seconds``. Raises UnavailableError."""
        watched = self._watched(flow)
        now = self._clock()
        first = FIRST_SECONDS if not seen else 0.0
        until = now + max(first, min(wait_seconds, WAIT_SECONDS))
        while True:
            self._list(watched)
            answer = self._answer(site, watched)
            now = self._clock()
            complete = bool(seen) or not answer.away
            if (answer.seen != seen and complete) or now >= until:
                return answer
            with watched.changed:
                watched.changed.wait(min(until - now, LISTED_SECONDS))

    def reach(self, journal: str) -> Reach | None:
        """Return the readable part of a watched journal, if its server answers."""
        return self._watcher.of([journal]).get(journal)

    def drop_idle(self) -> None:
        """End the watches of flows that nobody has requested for ``IDLE_SECONDS``."""
        with self._lock:
            idle = [n for n, f in self._flows.items() if self._clock() - f.asked_at > IDLE_SECONDS]
            dropped = [self._flows.pop(name) for name in idle]
        for flow in dropped:
            self._watcher.forget(flow)
            flow.journals.close()

    def _watched(self, name: str) -> _Flow:
        with self._lock:
            flow = self._flows.get(name)
            if flow is None:
                flow = self._flows[name] = _Flow(FlowJournals(name, self._store))
            flow.asked_at = self._clock()
            return flow

    def _list(self, flow: _Flow) -> None:
        with flow.changed:
            if self._clock() - flow.listed_at < LISTED_SECONDS:
                return
            before = flow.registered
            flow.registered = flow.journals.registered()
            flow.listed_at = self._clock()
            if before.keys() == flow.registered.keys():
                return
        self._watcher.watch(flow, flow.registered, flow.wake)

    def _answer(self, site: str, flow: _Flow) -> FlowPositions:
        registered = flow.registered
        reaches = self._watcher.of(registered)
        positions = {
            name: _position(reach) for name, reach in sorted(reaches.items()) if not reach.trouble
        }
        ends = {n: journal.end or 0 for n, journal in sorted(registered.items()) if journal.closed}
        away = tuple(sorted(registered.keys() - positions.keys()))
        contents = FlowPositions(site, positions, ends, away, "")
        digest = hashlib.blake2b(msgspec.json.encode(contents), digest_size=12).hexdigest()
        return msgspec.structs.replace(contents, seen=digest)


def _position(reach: Reach) -> Position:
    return Position(
        reach.term, reach.floor, reach.safe, reach.closed, held=reach.held, full=reach.full
    )
