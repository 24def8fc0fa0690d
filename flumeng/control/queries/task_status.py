"""Compares planned tasks with the reports of nodes: rows, rollout and scaling of a flow. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flumeng.config import TaskRange
from flumeng.control.snapshot.snapshot import FlowView
from flumeng.control.zookeeper import Unreadable
from zkschema.records import COLLECT, DISCOVER, NodeStatus, Partitions, PlannedTask, TaskStatus

Statuses = Mapping[str, NodeStatus | Unreadable | None]
"""The status of each live node; None before its first one."""


@dataclass(frozen=True)
class TaskRow:
    """A task. ``state``: ``running``, ``draining``, ``starting`` (not running the wanted revision
    yet), ``retrying``, ``failed``, ``stopped``, ``waiting`` (no node may run it), ``down`` (its
    node is not live) or ``unknown`` (unreadable status). ``wanted``, ``revision``: the wanted and
    the applied revision. ``why`` of a running task: its problems. ``standbys``: ``standby``,
    ``starting``, ``down`` or ``failed: ...`` by node; ``lacking``: how many have no node."""

    flow: str
    task: str
    kind: str
    node: str | None
    epoch: int
    state: str
    partitions: tuple[str, ...]
    why: str
    wanted: int
    revision: int | None
    standbys: Mapping[str, str]
    lacking: int
    health: str = ""

    @property
    def key(self) -> str:
        return f"{self.flow}/{self.task}"

    @property
    def shown_revision(self) -> str:
        if self.revision == self.wanted:
            return str(self.wanted)
        return f"{'-' if self.revision is None else self.revision} ({self.wanted} wanted)"

    @property
    def shown_standbys(self) -> str:
        shown = [n if s == "standby" else f"{n} ({s})" for n, s in self.standbys.items()]
        return ", ".join([*shown, f"{self.lacking} without a node"] if self.lacking else shown)


@dataclass(frozen=True)
class EndedRow:
    """A task's outcome: ``succeeded``, ``superseded`` (by a higher epoch), ``stopped`` (by an
    operator or the plan) or ``failed``. ``time``: seconds since the epoch."""

    flow: str
    task: str
    node: str
    epoch: int
    how: str
    why: str
    time: float

    @property
    def key(self) -> str:
        return f"{self.flow}/{self.task}"


@dataclass(frozen=True)
class RolloutRow:
    """A rollout: ``taken`` of ``tasks`` may run the new revision, and ``running`` of them do.
    ``stage``: ``canary`` or ``waves``."""

    revision: int
    before: int
    stage: str
    canary: int
    max_parallel: int
    tasks: int
    taken: int
    running: int
    paused: bool = False

    def __str__(self) -> str:
        stage = (
            f"canary of {self.canary}"
            if self.stage == "canary"
            else f"waves of at most {self.max_parallel}"
        )
        return (
            f"revision {self.revision} runs in {self.running} of {self.tasks} tasks, the others "
            f"stay with {self.before} ({stage}, {self.taken} allowed)"
            f"{'; paused until `flow rollout resume`' if self.paused else ''}"
        )


@dataclass(frozen=True)
class RolloutStatus:
    """A flow's current revision, its rollout if one is under way, and why the last one went back to
    that revision."""

    flow: str
    revision: int
    rollout: RolloutRow | None
    went_back: str


def rows(flow: FlowView, statuses: Statuses) -> tuple[TaskRow, ...]:
    return tuple(_row(flow, name, task, statuses) for name, task in sorted(flow.tasks.items()))


def ended(flow: FlowView) -> tuple[EndedRow, ...]:
    """Return the kept outcomes of the flow's tasks, the newest last."""
    return tuple(
        EndedRow(flow.name, e.task, e.node, e.epoch, e.how, e.why, e.time) for e in flow.plan.ended
    )


def rollout(flow: FlowView, tasks: tuple[TaskRow, ...]) -> RolloutRow | None:
    """Return the flow's rollout; None unless one is under way."""
    if not flow.rolling or flow.rollout is None:
        return None
    tasks = tuple(task for task in tasks if task.kind != DISCOVER)  # it takes the revision last
    taken = [task for task in tasks if task.wanted == flow.record.revision]
    kinds = {task.kind for task in tasks}
    canary = sum(
        min(flow.rollout.canary, sum(task.kind == kind for task in tasks)) for kind in kinds
    )
    return RolloutRow(
        revision=flow.record.revision,
        before=flow.plan.revision,
        stage="canary" if len(taken) <= canary else "waves",
        canary=flow.rollout.canary,
        max_parallel=flow.rollout.max_parallel,
        tasks=len(tasks),
        taken=len(taken),
        running=sum(task.state == "running" for task in taken),
        paused=flow.record.rollout_paused == flow.record.revision,
    )


def _row(flow: FlowView, name: str, task: PlannedTask, statuses: Statuses) -> TaskRow:
    target_revision = flow.revision_of(task)
    status = statuses.get(task.node or "")
    reported = status.tasks if isinstance(status, NodeStatus) else {}
    status_of_task = reported.get(f"{flow.name}/{name}")
    own = status_of_task if status_of_task and status_of_task.epoch == task.epoch else None
    if isinstance(status, Unreadable):
        state, why = "unknown", str(status)
    else:
        state, why = _state(task, target_revision, status_of_task, live=task.node in statuses)
    return TaskRow(
        flow=flow.name,
        task=name,
        kind=task.kind,
        node=task.node,
        epoch=task.epoch,
        state=state,
        partitions=task.partitions,
        why=why,
        wanted=target_revision,
        revision=own.revision if own else None,
        standbys={node: _standby(flow, name, statuses, node) for node in task.standbys},
        lacking=max(0, _replicas(flow, task) - 1 - len(task.standbys)),
        health=own.health if own else "",
    )


def _replicas(flow: FlowView, task: PlannedTask) -> int:
    return flow.collect_place.replicas if task.kind == COLLECT and task.node else 1


def _standby(flow: FlowView, name: str, statuses: Statuses, node: str) -> str:
    status = statuses.get(node)
    if not isinstance(status, NodeStatus):
        return "starting" if node in statuses else "down"
    reported = status.tasks.get(f"{flow.name}/{name}")
    if reported is None or reported.state not in ("standby", "failed"):
        return "starting"
    return f"failed: {reported.error}" if reported.state == "failed" else "standby"


def _state(
    task: PlannedTask, target_revision: int, reported: TaskStatus | None, *, live: bool
) -> tuple[str, str]:
    if task.state == "waiting" or task.node is None:
        return "waiting", task.why
    if not live:
        return "down", f"node {task.node} is not live"
    if task.state == "draining" and reported is None:
        return "draining", f"{task.why}; its node released it, and no other node runs it yet"
    if reported is None or reported.epoch != task.epoch:
        return "starting", f"node {task.node} has not started it yet"
    if reported.state != "running":
        return reported.state, reported.error or ""
    if task.state == "draining":
        return "draining", task.why
    if reported.revision != target_revision:
        return "starting", f"runs revision {reported.revision} instead of {target_revision}"
    return "running", reported.error or ""


@dataclass(frozen=True)
class DecisionRow:
    """A decision on the number of tasks; ``before`` equals ``tasks`` if it was kept. ``time``:
    since the epoch; ``kind``: as in ``planner.scaling.Decision``."""

    time: float
    kind: str
    before: int
    tasks: int
    why: str


@dataclass(frozen=True)
class ScalingRow:
    """Automatic scaling. ``tasks``: the last proposed number, or 0; ``rate``: events per second and
    task, or 0. ``decisions``: newest first."""

    min: int
    max: int
    lag_seconds: float
    tasks: int
    rate: float
    decisions: tuple[DecisionRow, ...]


def scaling(tasks: object, record: Partitions | None) -> ScalingRow | None:
    """Return the scaling; None unless ``tasks`` is a range. ``record``: the discovery task's."""
    if not isinstance(tasks, TaskRange):
        return None
    scaling = record.scaling if record else None
    decisions = scaling.decisions if scaling else ()
    return ScalingRow(
        min=tasks.min,
        max=tasks.max,
        lag_seconds=tasks.lag_seconds,
        tasks=scaling.tasks if scaling else 0,
        rate=scaling.rate if scaling else 0.0,
        decisions=tuple(
            DecisionRow(decision.time, decision.kind, decision.before, decision.tasks, decision.why)
            for decision in reversed(decisions)
        ),
    )
