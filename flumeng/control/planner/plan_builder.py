"""A mutable draft of a flow's plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flumeng.control.planner.placement_index import ASSIGNED, DRAINING, FlowIndex, PlacementIndex
from flumeng.control.snapshot.snapshot import UNDECIDED, FlowView, IntentView, Snapshot
from flumeng.control.snapshot.task_map import Tasks, leaving
from zkschema.records import COLLECT, Plan, PlannedTask


@dataclass
class Recovery:
    """Counts the lost tasks that may still be reassigned; None: any number."""

    left: int | None = None

    def begin(self) -> bool:
        if self.left is None:
            return True
        self.left -= 1
        return self.left >= 0


@dataclass
class PlanBuilder:
    """A flow's draft; each change also updates the index. ``epoch``: the highest so far;
    ``revision``: the last that all tasks took. A decided batch is repeated exactly until acked, so
    partitions leave only tasks without one. Tasks that wait for their batch are ``held``, those
    that lost partitions are ``fenced``. ``throttled``: begins moves that throttles limit."""

    flow: FlowView
    snapshot: Snapshot
    index: PlacementIndex
    epoch: int
    revision: int
    recovery: Recovery = field(default_factory=Recovery)
    changes: dict[str, PlannedTask | None] = field(default_factory=dict)
    why: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    fenced: set[str] = field(default_factory=set)
    throttled: bool = False

    @property
    def flow_index(self) -> FlowIndex:
        return self.index.flow_index(self.flow.name)

    def task(self, name: str) -> PlannedTask | None:
        return self.changes[name] if name in self.changes else self.flow.tasks.find(name)

    def put(self, name: str, task: PlannedTask | None) -> None:
        """Replace the task; None ends it."""
        self.index.put(self.flow, name, self.task(name), task)
        self.changes[name] = task

    def stand_by(self, name: str, task: PlannedTask, nodes: tuple[str, ...]) -> None:
        after = replace(task, standbys=nodes)
        self.index.stand_by(self.flow.name, name, task, after)
        self.changes[name] = after
        self.why.append(f"task {self.flow.name}/{name}: standby on {', '.join(nodes) or 'no node'}")

    @property
    def receives(self) -> bool:
        return self.flow.record.state in ("running", "suspended")

    @property
    def decides(self) -> bool:
        """Whether tasks decide batches that the plan must not break."""
        record = self.flow.record
        return self.flow.by_batch and not (record.state == "deleted" and record.discard)

    @property
    def intents(self) -> Mapping[str, IntentView] | None:
        """The last decisions of the flow's tasks; None when they were not read."""
        return self.snapshot.intents.get(self.flow.name)

    def intent(self, name: str) -> IntentView | None:
        return None if self.intents is None else self.intents.get(name, UNDECIDED)

    def may_lose(self, name: str) -> bool:
        """Return whether the task may lose partitions or end."""
        if not self.decides:
            return True
        intent = self.intent(name)
        return intent is not None and not intent.open

    def begin_recovery(self) -> bool:
        """Count one more reassigned lost task; return whether the throttle allows it."""
        begins = self.recovery.begin()
        self.throttled = self.throttled or (begins and self.recovery.left is not None)
        return begins

    def fence(self, name: str) -> None:
        """Fence the task, which loses partitions or ends."""
        if self.decides:
            self.fenced.add(name)
            task = self.task(name)
            self.epoch = max(self.epoch, task.epoch + 1 if task else 0)

    def end(self, name: str) -> None:
        if name.startswith(f"{COLLECT}."):
            self.fence(name)
        self.put(name, None)
        self.why.append(f"task {self.flow.name}/{name} ends: no longer needed")

    def assigned(
        self,
        kind: str,
        name: str,
        node: str,
        reason: str,
        *,
        partitions: tuple[str, ...] = (),
        revision: int = 0,
        standbys: tuple[str, ...] = (),
    ) -> PlannedTask:
        self.epoch += 1
        self.why.append(f"task {self.flow.name}/{name} goes to node {node}: {reason}")
        return PlannedTask(
            kind=kind,
            node=node,
            epoch=self.epoch,
            state=ASSIGNED,
            partitions=partitions,
            revision=revision,
            standbys=tuple(standby for standby in standbys if standby != node),
        )

    def renewed(self, name: str, task: PlannedTask) -> PlannedTask:
        """Return the task, under a new epoch if its owner found a higher one in the acks."""
        status = self.flow.status_of(name, task, self.snapshot.nodes)
        if status is None or status.epoch_seen <= task.epoch:
            return task
        self.epoch = max(self.epoch, status.epoch_seen) + 1
        why = f"epoch {status.epoch_seen} is already in use"
        self.why.append(f"task {self.flow.name}/{name} starts again: {why}")
        return replace(task, epoch=self.epoch)

    def leaving(self, task: PlannedTask, target: str | None, why: str) -> PlannedTask:
        after = leaving(task, target, why, self.epoch + 1)
        self.epoch = max(self.epoch, after.mark)
        return after

    @property
    def begun_moves(self) -> int:
        """By how much the number of draining tasks grows. Plans with the smallest growth go first,
        so that the moves under way never exceed the final number."""
        return sum(
            (task is not None and task.state == DRAINING)
            - (before is not None and before.state == DRAINING)
            for name, task in self.changes.items()
            for before in (self.flow.tasks.find(name),)
        )

    @property
    def touched(self) -> set[str]:
        before = map(self.flow.tasks.find, self.changes) if self.flow.tasks else ()
        both = [task for task in (*self.changes.values(), *before) if task is not None]
        owners = {task.node for task in both if task.node is not None}
        return owners.union(*(task.standbys for task in both if task.standbys))

    @property
    def tasks(self) -> Tasks:
        return self.flow.tasks.changed(self.changes) if self.changes else self.flow.tasks

    @property
    def plan(self) -> Plan:
        return replace(
            self.flow.plan,
            epoch=self.epoch,
            tasks=self.tasks,
            revision=self.revision,
            sharing=False,
        )
