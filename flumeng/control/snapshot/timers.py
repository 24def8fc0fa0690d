"""Measures how long facts hold, so that the planner needs no clock. A process counts only its own
observations, on a monotonic clock. A fact seen before and after a lost connection or failed read
counts as held in between, unless its witness (a version) changed. Masters record longer absences of
nodes by a wall clock, which decides about missing or forgotten nodes, never about ownership."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from zkschema.records import Cluster, PlannedTask

PAUSE_SECONDS = 1.0
PAUSE_MOST_SECONDS = 300.0
QUIET_PAUSES = 10
MARK_SECONDS = 300.0
"""A node that is down for less time, as during a restart, is not recorded as down."""


class _Timer(NamedTuple):
    since: float
    witness: object


class Timers:
    """Times how long facts hold, by snapshot. A snapshot is read between ``begin`` and ``end``; a
    failed one has no ``end``. ``soonest``: seconds until the next snapshot is needed, or None."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._before: dict[str, dict[str, _Timer]] = {}
        self._current: dict[str, dict[str, _Timer]] = {}
        self._missed_changes = False
        self.soonest: float | None = None

    def begin(self) -> None:
        self._current = {}
        self.soonest = None

    def miss_changes(self) -> None:
        """Note that changes since the last complete snapshot may have been missed."""
        self._missed_changes = True

    def end(self) -> None:
        """Complete the snapshot; forget facts that it did not request."""
        self._before, self._missed_changes = self._current, False

    def lasting(
        self, fact: str, keys: Collection[str] | Mapping[str, object], seconds: float
    ) -> frozenset[str]:
        """Return the ``keys`` that held for ``seconds``; called once a snapshot and fact, with all.
        A mapping has each key's witness: if it differs after missed changes, the key restarts."""
        now = self._clock()
        before = self._before.get(fact, {})
        witnesses = keys if isinstance(keys, Mapping) else dict.fromkeys(keys)
        current = self._current[fact] = {}
        for key, witness in witnesses.items():
            timer = before.get(key)
            lasts = timer and not (self._missed_changes and timer.witness != witness)
            current[key] = _Timer(timer.since if timer and lasts else now, witness)
        left = {key: seconds - (now - timer.since) for key, timer in current.items()}
        for rest in left.values():
            if rest > 0:
                self.wake_in(rest)
        return frozenset(key for key, rest in left.items() if rest <= 0)

    def wake_in(self, seconds: float) -> None:
        """Request the next snapshot within this time."""
        if self.soonest is None or seconds < self.soonest:
            self.soonest = seconds


class Pauses:
    """Pauses between rounds of moves, doubled up to five minutes, and reset after a quiet time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause = 0.0
        self._moving = False
        self._ended = float("-inf")

    def left(self, moving: bool) -> float:
        """Return the seconds until a round may begin; 0 in a round. Called for each snapshot."""
        now = self._clock()
        if moving and not self._moving:
            quiet = now - self._ended > QUIET_PAUSES * self._pause
            doubled = min(2 * self._pause, PAUSE_MOST_SECONDS)
            self._pause = PAUSE_SECONDS if quiet else doubled
        if self._moving and not moving:
            self._ended = now
        self._moving = moving
        return 0.0 if moving else max(0.0, self._ended + self._pause - now)


class NodeStates:
    """Marks which nodes are down; called once for each snapshot."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def mark(self, nodes: dict[str, NodeView], cluster: Cluster, now: float) -> dict[str, NodeView]:
        """Return the nodes with updated facts of their absence; ``nodes`` itself if unchanged."""
        disconnected = {name: node.status_version for name, node in nodes.items() if not node.live}
        down = self._timers.lasting("disconnected", disconnected, cluster.grace_seconds)
        new = {name: at for name, at in disconnected.items() if not nodes[name].record.down_since}
        mark_due = self._timers.lasting("down", new, MARK_SECONDS)
        changed = {}
        for name, node in nodes.items():
            since = node.record.down_since
            if node.live and not since and not node.mark_due:
                continue
            after = replace(
                node,
                down=name in down,
                mark_due=bool(since) if node.live else name in mark_due,
                gone=self._is_past(node, now, cluster.maintenance_limits.window_seconds),
                expired=self._is_past(node, now, cluster.forget_after_seconds),
            )
            if after != node:
                changed[name] = after
        return {**nodes, **changed} if changed else nodes

    def _is_past(self, node: NodeView, now: float, limit_seconds: float) -> bool:
        """Return whether the node is down for longer than the limit; 0 means no limit."""
        since = node.record.down_since
        if node.live or not since or not limit_seconds:
            return False
        left = since + limit_seconds - now
        if left > 0:
            self._timers.wake_in(left)
        return left <= 0


class Rollouts:
    """Measures the progress of rollouts; called once for each snapshot."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def settled(
        self, flows: Mapping[str, FlowView], nodes: Mapping[str, NodeView]
    ) -> frozenset[str]:
        """Return the tasks (``flow/task``) that ran the new revision for the settling time."""
        settled: set[str] = set()
        for flow in flows.values():
            if not flow.rolling or flow.rollout is None:
                continue
            running = {
                f"{flow.name}/{name}/{task.epoch}": nodes[task.node or ""].status_version
                for name, task in flow.tasks.items()
                if _runs(flow, name, task, nodes)
            }
            fact = f"revision {flow.record.revision} of {flow.name}"
            lasting = self._timers.lasting(fact, running, flow.rollout.settle_seconds)
            settled.update(key.rpartition("/")[0] for key in lasting)
        return frozenset(settled)

    def stalled(self, snapshot: Snapshot) -> frozenset[str]:
        """Return the flows in which for long no task got, started or proved the new revision."""
        stalled = set()
        for flow in snapshot.flows.values():
            if not flow.rolling or flow.rollout is None or not _is_waited_for(flow, snapshot):
                continue
            taken = [(name, task) for name, task in flow.tasks.items() if flow.has_taken(task)]
            running = sum(_runs(flow, name, task, snapshot.nodes) for name, task in taken)
            proven = sum(f"{flow.name}/{name}" in snapshot.settled for name, _ in taken)
            progress = f"{flow.record.revision}: {len(taken)} {running} {proven}"
            limit = flow.rollout.settle_seconds + flow.rollout.deadline_seconds
            if self._timers.lasting(f"progress of {flow.name}", [progress], limit):
                stalled.add(flow.name)
        return frozenset(stalled)


def _is_waited_for(flow: FlowView, snapshot: Snapshot) -> bool:
    assert flow.rollout is not None
    if flow.rollout.deadline_seconds == 0 or snapshot.cluster.maintenance:
        return False
    if flow.record.state != "running" or flow.record.rollout_paused == flow.record.revision:
        return False
    owners = (snapshot.nodes.get(task.node or "") for task in flow.tasks.values())
    return any(node is not None and node.live for node in owners)


def _runs(flow: FlowView, name: str, task: PlannedTask, nodes: Mapping[str, NodeView]) -> bool:
    status = flow.status_of(name, task, nodes)
    current = flow.record.revision
    return status is not None and (status.state, status.revision) == ("running", current)
