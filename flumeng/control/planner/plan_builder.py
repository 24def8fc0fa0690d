"""A flow's plan in the making: what has changed of it so far, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flumeng.control.planner.placement_index import ASSIGNED, DRAINING, FlowIndex, PlacementIndex
from flumeng.control.snapshot.snapshot import UNDECIDED, FlowView, IntentView, Snapshot
from flumeng.control.snapshot.task_map import Tasks, leaving
from zkschema.records import COLLECT, Plan, PlannedTask


@dataclass(frozen=True)
class ChangeSet:
    """What is to be looked at: ``everything``, or what has changed since everything was in order.

    ``partitions`` and ``tasks`` are those of the flow; ``nodes`` in the order of their names.
    """

    everything: bool = True
    nodes: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.everything or self.nodes or self.partitions or self.tasks)


@dataclass
class Recovery:
    """How many lost tasks may still be given away; None: any number."""

    left: int | None = None

    def begin(self) -> bool:
        """Whether one more may be; it counts."""
        if self.left is None:
            return True
        self.left -= 1
        return self.left >= 0


@dataclass
class PlanBuilder:
    """The index is brought up to date with each change. ``epoch`` is the highest given so far,
    ``revision`` the last that every task has run.

    A batch that a task has decided is repeated exactly until it is acked. So partitions leave a
    task only while it has no such batch: those that are to end or to read less, and wait for that,
    are ``held``. Those in ``fenced`` have lost partitions here. ``throttled``: moves begin here
    that a throttle of the cluster bounds.
    """

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
        """The task as it is now."""
        return self.changes[name] if name in self.changes else self.flow.tasks.find(name)

    def become(self, name: str, task: PlannedTask | None) -> None:
        """The task becomes this; None ends it."""
        self.index.put(self.flow, name, self.task(name), task)
        self.changes[name] = task

    def stand_by(self, name: str, task: PlannedTask, nodes: tuple[str, ...]) -> None:
        """These nodes stand by for the task, which is as it is now."""
        after = replace(task, standbys=nodes)
        self.index.stand_by(self.flow.name, name, task, after)
        self.changes[name] = after
        those = ", ".join(nodes) or "nobody"
        self.why.append(f"{self.flow.name}/{name}: {those} on standby")

    @property
    def receives(self) -> bool:
        """Whether its sources are to run."""
        return self.flow.record.state in ("running", "suspended")

    @property
    def decides(self) -> bool:
        """Whether what its tasks have decided is of any account."""
        record = self.flow.record
        return self.flow.by_batch and not (record.state == "deleted" and record.discard)

    @property
    def intents(self) -> Mapping[str, IntentView] | None:
        """What the flow's tasks have decided last; None when nobody has looked."""
        return self.snapshot.intents.get(self.flow.name)

    def intent(self, name: str) -> IntentView | None:
        """What the task has decided last; None when nobody has looked."""
        return None if self.intents is None else self.intents.get(name, UNDECIDED)

    def may_lose(self, name: str) -> bool:
        """Whether partitions may leave the task, or it may end."""
        if not self.decides:
            return True
        intent = self.intent(name)
        return intent is not None and not intent.open

    def begins_recovery(self) -> bool:
        """Whether one more lost task may be given away; it counts."""
        begins = self.recovery.begin()
        self.throttled = self.throttled or (begins and self.recovery.left is not None)
        return begins

    def lost(self, name: str) -> None:
        """Partitions leave the task, or it ends: no owner of before decides anything any more."""
        if self.decides:
            self.fenced.add(name)
            task = self.task(name)
            self.epoch = max(self.epoch, task.epoch + 1 if task else 0)

    def end(self, name: str) -> None:
        if name.startswith(f"{COLLECT}."):
            self.lost(name)
        self.become(name, None)
        self.why.append(f"{self.flow.name}/{name} ends: not wanted any more")

    def given(
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
        """The task as the node gets it, under a new epoch; it stands by for it no more."""
        self.epoch += 1
        self.why.append(f"{self.flow.name}/{name} goes to {node}: {reason}")
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
        """The task under a new epoch, when its owner has met a higher one than its own: the plan is
        older than what the owner writes."""
        owner = self.snapshot.nodes.get(task.node or "")
        said = (
            owner.status.tasks.get(f"{self.flow.name}/{name}") if owner and owner.status else None
        )
        if said is None or not said.epoch == task.epoch < said.epoch_seen:
            return task
        self.epoch = max(self.epoch, said.epoch_seen) + 1
        why = f"what it writes has epoch {said.epoch_seen}"
        self.why.append(f"{self.flow.name}/{name} starts anew: {why}")
        return replace(task, epoch=self.epoch)

    def leaving(self, task: PlannedTask, target: str | None, why: str) -> PlannedTask:
        """The task, which its owner is to let go."""
        after = leaving(task, target, why, self.epoch + 1)
        self.epoch = max(self.epoch, after.mark)
        return after

    @property
    def begun_moves(self) -> int:
        """How many more tasks drain now than before. Plans that begin fewest are written first, so
        that at no moment more moves are under way than at the end."""
        return sum(
            (task is not None and task.state == DRAINING)
            - (before is not None and before.state == DRAINING)
            for name, task in self.changes.items()
            for before in (self.flow.tasks.find(name),)
        )

    @property
    def touched(self) -> set[str]:
        """The nodes that had or get a task that changes."""
        before = map(self.flow.tasks.find, self.changes) if self.flow.tasks else ()
        both = [task for task in (*self.changes.values(), *before) if task is not None]
        owners = {task.node for task in both if task.node is not None}
        return owners.union(*(task.standbys for task in both if task.standbys))

    @property
    def tasks(self) -> Tasks:
        return self.flow.tasks.changed(self.changes) if self.changes else self.flow.tasks

    @property
    def plan(self) -> Plan:
        """The plan as it is to be written."""
        return replace(
            self.flow.plan,
            epoch=self.epoch,
            tasks=self.tasks,
            revision=self.revision,
            sharing=False,
        )
