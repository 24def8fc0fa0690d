"""How a new revision reaches a flow's tasks: at once, or behind a canary and in waves.

A task that has been *let on* runs the flow's current revision, the others the one that all ran
before. First ``canary`` tasks of each kind are let on; when they have run it for the settling time,
the others follow, at most ``max_parallel`` under way at once. When a task that was let on fails,
the flow goes back by itself. Tasks on nodes that are away, and those that nobody may run, are not
waited for and come last; but as long as no task of a kind that the flow has could run the new
revision, or the flow does not run, nobody has proven it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flumeng.plan.actions import Revert
from flumeng.plan.placement_index import DRAINING
from flumeng.plan.plan_builder import PlanBuilder
from flumeng.spec import Rollout
from flumeng.state.snapshot import FlowView, NodeView, Snapshot
from zkschema.records import COLLECT, INGEST, Audit, PlannedTask, TaskStatus

AUTHOR = "flumeng"


def revert(flow: FlowView, snapshot: Snapshot) -> Revert | None:
    """The end of a rollout of which a task says that it failed."""
    if not flow.rolling:
        return None
    current, before = flow.record.revision, flow.plan.revision
    for name, task in flow.tasks.items():
        status = _said(flow, name, task, snapshot.nodes)
        if status and (status.revision, status.state) == (current, "failed"):
            why = f"{flow.name}/{name} on {task.node} failed with revision {current}: "
            why = f"{why}{status.error or 'no reason given'}"
            command = f"flow {flow.name}: rollout of revision {current} goes back to {before}"
            entry = Audit(who=AUTHOR, command=command, reason=why, time=snapshot.now)
            record = replace(flow.record, revision=before, went_back=why)
            return Revert(flow.name, record, flow.version, entry, (f"{command}: {why}",))
    return None


def roll(builder: PlanBuilder) -> None:
    """Let tasks on, as many as may be now; when none is left, the rollout is over."""
    flow = builder.flow
    if flow.place is None:
        return
    if not flow.rolling:
        builder.revision = flow.record.revision
        return
    assert flow.rollout is not None
    waves = [_Wave(builder, kind) for kind in (INGEST, COLLECT)]
    proven = [wave.canary_runs(flow.rollout) for wave in waves]
    if not all(proven):
        return
    room = flow.rollout.max_parallel - sum(len(wave.under_way) for wave in waves)
    for wave in waves:
        room -= wave.promoted(room)
    done = not any(wave.waiting or wave.under_way for wave in waves)
    if done and builder.tasks and flow.record.state == "running":
        builder.revision = flow.record.revision


class _Wave:
    """The tasks of one kind that a live node may run: which run the new revision, which are on the
    way to it, and which wait for their turn."""

    def __init__(self, builder: PlanBuilder, kind: str) -> None:
        self._builder = builder
        self._is_planned = False
        self.runs: list[str] = []
        self.under_way: list[str] = []
        self.waiting: list[str] = []
        for name in sorted(builder.tasks, key=lambda name: (len(name), name)):
            task = builder.task(name)
            assert task is not None
            if task.kind != kind:
                continue
            self._is_planned = True
            node = builder.snapshot.nodes.get(task.node or "")
            if node is None or not node.live or _is_stranded(builder.flow, name, task, node):
                continue
            if task.revision != builder.flow.record.revision:
                self.waiting.append(name)
            elif f"{builder.flow.name}/{name}" in builder.snapshot.settled:
                self.runs.append(name)
            else:
                self.under_way.append(name)

    def canary_runs(self, rollout: Rollout) -> bool:
        """Let the canary on; gives whether enough tasks have proven the revision by now."""
        if not self._is_planned:
            return True
        there = len(self.runs) + len(self.under_way) + len(self.waiting)
        canary = max(1, min(rollout.canary, there))
        self.promoted(canary - len(self.runs) - len(self.under_way))
        return len(self.runs) >= canary

    def promoted(self, count: int) -> int:
        """The next tasks take the current revision; gives how many."""
        chosen = self.waiting[: max(0, count)]
        for name in chosen:
            task = self._builder.task(name)
            assert task is not None
            current = self._builder.flow.record.revision
            self._builder.become(name, replace(task, revision=current))
            self._builder.why.append(f"{self._builder.flow.name}/{name} takes revision {current}")
        del self.waiting[: len(chosen)]
        self.under_way += chosen
        return len(chosen)


def _is_stranded(flow: FlowView, name: str, task: PlannedTask, node: NodeView) -> bool:
    """Whether its owner has let it go, and nobody may run it."""
    return task.state == DRAINING and node.has_let_go(flow.name, name)


def _said(
    flow: FlowView, name: str, task: PlannedTask, nodes: Mapping[str, NodeView]
) -> TaskStatus | None:
    """What its owner says of the task; nothing while it is not the owner's any more."""
    node = nodes.get(task.node or "")
    if node is None or node.status is None or task.state == DRAINING:
        return None
    status = node.status.tasks.get(f"{flow.name}/{name}")
    return status if status and status.epoch == task.epoch else None
