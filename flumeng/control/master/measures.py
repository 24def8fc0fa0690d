"""Metrics of a master."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from flumeng.control.planner.actions import Action, Replan
from flumeng.control.snapshot.snapshot import NodeView, Snapshot
from flumeng.control.snapshot.task_map import Tasks
from flumeng.platform.metrics import table
from flumeng.platform.metrics.health import Health
from flumeng.platform.metrics.histogram import Histogram
from flumeng.platform.metrics.table import Reading

STUCK_SECONDS = 120.0
"""A longer tick counts as stuck; planning very many flows takes only some seconds."""

Outcome = Literal["done", "conflict", "unavailable", "failed"]


class Measures:
    """Metrics, updated by the master's loop; ``readings`` may be called from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.health = Health(STUCK_SECONDS, clock)
        self.health.needs(lambda: self.trouble)
        self.trouble: str | None = "nothing has been planned yet"
        self._ticks: Counter[str] = Counter(done=0, conflict=0, unavailable=0, failed=0)
        self._actions: Counter[str] = Counter()
        self._plan_seconds = Histogram()
        self._seen = (0, 0, 0)
        self._set_aside = 0
        self._moves: Counter[str] = Counter(placed=0, recovery=0, handoff=0)
        self._nodes: Mapping[str, NodeView] = {}
        self.troubles = 0

    @contextmanager
    def planning(self, snapshot: Snapshot) -> Iterator[None]:
        live = sum(node.live for node in snapshot.nodes.values())
        self._seen = (len(snapshot.flows), live, len(snapshot.nodes) - live)
        self._nodes = snapshot.nodes
        self._set_aside = len(snapshot.unreadable)
        began = time.perf_counter()
        yield
        self._plan_seconds.add(time.perf_counter() - began)

    def planned(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._actions[type(action).__name__.lower()] += 1
            if isinstance(action, Replan):
                self._moves.update(self._kinds_of_moves(action))

    def _kinds_of_moves(self, replan: Replan) -> Iterator[str]:
        for _, old, new in Tasks.of(replan.plan.tasks).differences(replan.before):
            owner = old.node if old else None
            if new is None or new.node is None or new.node == owner:
                continue
            if owner is None:
                yield "placed"
            else:
                view = self._nodes.get(owner)
                yield "handoff" if view is not None and view.live else "recovery"

    def ticked(self, outcome: Outcome, sentence: str) -> str:
        """Count a tick; return its sentence. A conflict does not make the master unhealthy."""
        self._ticks[outcome] += 1
        self.trouble = sentence if outcome in ("unavailable", "failed") else None
        return sentence

    def readings(self) -> Iterator[Reading]:
        for outcome, count in list(self._ticks.items()):
            yield table.TICKS.of(count, outcome)
        for kind, count in list(self._actions.items()):
            yield table.ACTIONS.of(count, kind)
        for kind, count in list(self._moves.items()):
            yield table.MOVES.of(count, kind)
        yield table.PLAN_SECONDS.of(self._plan_seconds)
        flows, live, missing = self._seen
        yield table.RECORDS_SET_ASIDE.of(self._set_aside)
        yield table.TROUBLES.of(self.troubles)
        yield table.FLOWS.of(flows)
        yield table.NODES_LIVE.of(live)
        yield table.NODES_MISSING.of(missing)
