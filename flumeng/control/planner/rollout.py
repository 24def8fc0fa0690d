"""Rolls a new revision out over a flow's tasks: at once, or after a canary in waves. First
``canary`` tasks of each kind are *promoted* to the current revision. Once they have run it for the
settling time the others follow, at most ``max_parallel`` at once. When a promoted task fails, or
none makes progress, the flow returns to its previous revision. Tasks on down or unreadable nodes
come last and are not awaited, but a revision that no task could run is not proven. A changed
placement is not rolled out: it applies at once."""

from __future__ import annotations

from dataclasses import replace

from flumeng.config import Rollout
from flumeng.control.planner.actions import Revert
from flumeng.control.planner.placement_index import DRAINING
from flumeng.control.planner.plan_builder import PlanBuilder
from flumeng.control.snapshot.snapshot import FlowView, Snapshot
from zkschema.records import COLLECT, INGEST, Audit, PlannedTask

AUTHOR = "flumeng"
NAMED = 3


def revert(flow: FlowView, snapshot: Snapshot) -> Revert | None:
    """Return the end of a rollout in which a task failed or none makes progress, else None."""
    if not flow.rolling:
        return None
    current, before = flow.record.revision, flow.plan.revision
    why = _failure(flow, snapshot) or _standstill(flow, snapshot)
    if not why:
        return None
    command = f"flow {flow.name}: rollout of revision {current} goes back to {before}"
    entry = Audit(who=AUTHOR, command=command, reason=why, time=snapshot.now)
    record = replace(flow.record, revision=before, went_back=why)
    return Revert(flow.name, record, flow.version, entry, (f"{command}: {why}",))


def _failure(flow: FlowView, snapshot: Snapshot) -> str:
    current = flow.record.revision
    for name, task in flow.tasks.items():
        status = None if task.state == DRAINING else flow.status_of(name, task, snapshot.nodes)
        if status and (status.revision, status.state) == (current, "failed"):
            why = f"task {flow.name}/{name} on {task.node} failed with revision {current}: "
            return f"{why}{status.error or 'no reason given'}"
    return ""


def _standstill(flow: FlowView, snapshot: Snapshot) -> str:
    if flow.name not in snapshot.stalled or flow.rollout is None:
        return ""
    waiting = [
        f"task {flow.name}/{name} on {task.node or 'no node'} "
        f"{_progress(flow, name, task, snapshot)}"
        for name, task in sorted(flow.tasks.items())
        if flow.has_taken(task) and f"{flow.name}/{name}" not in snapshot.settled
    ]
    more = f" and {len(waiting) - NAMED} more" if len(waiting) > NAMED else ""
    those = ", ".join(waiting[:NAMED]) + more if waiting else "no task could run it"
    limit = flow.rollout.deadline_seconds
    return f"revision {flow.record.revision} made no progress for {limit:g} s: {those}"


def _progress(flow: FlowView, name: str, task: PlannedTask, snapshot: Snapshot) -> str:
    status = None if task.state == DRAINING else flow.status_of(name, task, snapshot.nodes)
    if status is None or status.revision != flow.record.revision:
        return "does not run it"
    error = f" ({status.error})" if status.error else ""
    return f"is {status.state}{error}"


def roll(builder: PlanBuilder) -> None:
    """Promote as many tasks as allowed now; end the rollout after the last."""
    flow = builder.flow
    if flow.place is None:
        return
    if not flow.rolling:
        builder.revision = flow.record.revision
        return
    if flow.record.rollout_paused == flow.record.revision:
        return
    assert flow.rollout is not None
    waves = [_Wave(builder, kind) for kind in (INGEST, COLLECT)]
    proven = [wave.canary_runs(flow.rollout) for wave in waves]
    if all(proven):
        room = flow.rollout.max_parallel - sum(len(wave.under_way) for wave in waves)
        for wave in waves:
            room -= wave.promote(room)
        done = not any(wave.waiting or wave.under_way for wave in waves)
        if done and builder.tasks and flow.record.state == "running":
            builder.revision = flow.record.revision


class _Wave:
    """The tasks of one kind that a live node may run, sorted by their progress."""

    def __init__(self, builder: PlanBuilder, kind: str) -> None:
        self._builder = builder
        self._is_planned = False
        self.runs: list[str] = []
        self.under_way: list[str] = []
        self.waiting: list[str] = []
        for name in sorted(builder.tasks, key=lambda name: (len(name), name)):
            task = builder.task(name)
            assert task is not None
            if task.kind == kind:
                self._is_planned = True
                self._sort_in(name, task)

    def _sort_in(self, name: str, task: PlannedTask) -> None:
        flow, snapshot = self._builder.flow, self._builder.snapshot
        node = snapshot.nodes.get(task.node or "")
        if node is None or not node.live or node.set_aside or node.status_unreadable:
            return
        if task.state == DRAINING and node.has_released(flow.name, name):
            return  # no node may run it
        if not flow.has_taken(task):
            self.waiting.append(name)
        elif f"{flow.name}/{name}" in snapshot.settled:
            self.runs.append(name)
        else:
            self.under_way.append(name)

    def canary_runs(self, rollout: Rollout) -> bool:
        """Promote the canary; return whether enough tasks have proven the revision."""
        if not self._is_planned:
            return True
        there = len(self.runs) + len(self.under_way) + len(self.waiting)
        canary = max(1, min(rollout.canary, there))
        self.promote(canary - len(self.runs) - len(self.under_way))
        return len(self.runs) >= canary

    def promote(self, count: int) -> int:
        chosen = self.waiting[: max(0, count)]
        builder = self._builder
        current = builder.flow.record.revision
        for name in chosen:
            task = builder.task(name)
            assert task is not None
            builder.put(name, replace(task, revision=current))
            builder.why.append(f"task {builder.flow.name}/{name} takes revision {current}")
        del self.waiting[: len(chosen)]
        self.under_way += chosen
        return len(chosen)
