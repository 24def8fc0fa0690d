"""Which node runs which task of a flow: sticky, so that as little as possible moves.

A task changes hands in one of two ways. Its owner is gone: another takes it with a higher epoch
after the grace period, and fencing makes that safe. Its owner may not keep it: the task is marked
``draining``, the owner finishes its batch, acks and lets go, and only then it is given away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flumeng.model import FlowView, NodeView, Snapshot
from flumeng.spec import CollectPlace, Place
from zkschema.records import COLLECT, INGEST, Plan, PlannedTask

ASSIGNED = "assigned"
DRAINING = "draining"
WAITING = "waiting"


def place(flow: FlowView, snapshot: Snapshot, load: Mapping[str, int]) -> tuple[Plan, list[str]]:
    """The flow's plan as it should be now, and the reason of each change.

    ``load`` counts the collect tasks of each node over all flows.
    """
    if flow.place is None:
        return flow.plan, []
    draft = _Draft(flow, snapshot, dict(load), flow.plan.epoch)
    tasks = {**draft.ingest_tasks(flow.place), **draft.collect_tasks(flow.place.collect)}
    draft.explain_removals(tasks)
    return replace(flow.plan, epoch=draft.epoch, tasks=tasks), draft.why


@dataclass
class _Draft:
    """A flow's plan in the making. ``epoch`` is the highest one given so far."""

    flow: FlowView
    snapshot: Snapshot
    load: dict[str, int]
    epoch: int
    why: list[str] = field(default_factory=list)

    def ingest_tasks(self, place: Place) -> dict[str, PlannedTask]:
        """Pinned: one task on every node that matches, live or not; also while suspended."""
        if self.flow.record.state not in ("running", "suspended"):
            return {}
        tasks = {}
        for node in self.snapshot.nodes.values():
            if not node.eligible(INGEST, place.ingest.labels):
                continue
            name = f"{INGEST}.{node.name}"
            task = self.flow.plan.tasks.get(name)
            tasks[name] = task or self._give(INGEST, name, node.name, "sources run there")
        return tasks

    def collect_tasks(self, place: CollectPlace) -> dict[str, PlannedTask]:
        """Partitioned: the flow's journals over a fixed number of tasks; none while suspended."""
        if self.flow.record.state == "suspended":
            return {}
        open_journals = sorted(
            name
            for name, journal in self.snapshot.journals.items()
            if journal.flow == self.flow.name and name not in self.snapshot.drained
        )
        if self.flow.record.state != "running":
            busy = open_journals or self.flow.name in self.snapshot.committing
            if not busy or self.flow.record.discard:
                return {}
        shares = _share(open_journals, place.tasks, self.flow.plan)
        return {name: self._collect(name, shares[name], place) for name in shares}

    def explain_removals(self, tasks: Mapping[str, PlannedTask]) -> None:
        self.why += [
            f"{self.flow.name}/{name} ends: not wanted any more"
            for name in self.flow.plan.tasks
            if name not in tasks
        ]

    def _collect(self, name: str, partitions: tuple[str, ...], place: CollectPlace) -> PlannedTask:
        task = self.flow.plan.tasks.get(name)
        if task is None or task.node is None:
            return self._hand_over(name, partitions, place, "nobody runs it")
        owner = self.snapshot.nodes.get(task.node)
        if partitions != task.partitions:
            self.why.append(f"{self.flow.name}/{name} now reads {len(partitions)} journals")
            task = replace(task, partitions=partitions)
        if owner is None or not owner.live:
            return self._recover(name, task, owner, place)
        if owner.eligible(COLLECT, place.labels):
            if task.state != ASSIGNED:
                self.why.append(f"{self.flow.name}/{name} stays with {owner.name} after all")
            return replace(task, state=ASSIGNED, why="")
        return self._drain(name, task, owner, place)

    def _recover(
        self, name: str, task: PlannedTask, owner: NodeView | None, place: CollectPlace
    ) -> PlannedTask:
        if owner is not None and owner.gone_seconds < self.snapshot.grace_seconds:
            return task
        return self._hand_over(name, task.partitions, place, f"{task.node} is gone", task)

    def _drain(
        self, name: str, task: PlannedTask, owner: NodeView, place: CollectPlace
    ) -> PlannedTask:
        """Mark, wait until the owner has seen the mark and let go, then give away.

        Past the deadline it is given away all the same: fencing keeps that safe.
        """
        if task.state != DRAINING:
            self.why.append(f"{self.flow.name}/{name} is to leave {owner.name}")
            return replace(task, state=DRAINING, why=f"{owner.name} may not keep it")
        told = any(
            assigned.state == DRAINING
            for assigned in owner.assignment.tasks
            if (assigned.flow, assigned.task) == (self.flow.name, name)
        )
        seen = owner.status is not None and (
            owner.status.assignment_version == getattr(owner.assignment_version, "number", None)
        )
        key = f"{self.flow.name}/{name}"
        if told and seen and not owner.lists(key):
            return self._hand_over(name, task.partitions, place, f"{owner.name} let it go", task)
        if self.snapshot.draining_seconds.get(key, 0.0) >= self.snapshot.drain_limit_seconds:
            return self._hand_over(name, task.partitions, place, f"{owner.name} is too late", task)
        return task

    def _hand_over(
        self,
        name: str,
        partitions: tuple[str, ...],
        place: CollectPlace,
        reason: str,
        task: PlannedTask | None = None,
    ) -> PlannedTask:
        """Give the task to the least loaded node, or leave it as it is when there is none."""
        able = [
            node
            for node in self.snapshot.nodes.values()
            if node.live and node.eligible(COLLECT, place.labels)
        ]
        if able:
            chosen = min(able, key=lambda node: (self.load.get(node.name, 0), node.name))
            self.load[chosen.name] = self.load.get(chosen.name, 0) + 1
            return self._give(COLLECT, name, chosen.name, reason, partitions)
        if task is not None:
            return task
        if name not in self.flow.plan.tasks:
            self.why.append(f"{self.flow.name}/{name} waits: no live node may run it")
        return PlannedTask(
            kind=COLLECT,
            node=None,
            epoch=0,
            state=WAITING,
            partitions=partitions,
            why="no live node may run it",
        )

    def _give(
        self, kind: str, name: str, node: str, reason: str, partitions: tuple[str, ...] = ()
    ) -> PlannedTask:
        self.epoch += 1
        self.why.append(f"{self.flow.name}/{name} goes to {node}: {reason}")
        return PlannedTask(
            kind=kind, node=node, epoch=self.epoch, state=ASSIGNED, partitions=partitions
        )


def _share(journals: list[str], tasks: int, plan: Plan) -> dict[str, tuple[str, ...]]:
    """Spread journals over tasks: each stays in the task it is in, new ones join the smallest."""
    shares: dict[str, list[str]] = {f"{COLLECT}.{number}": [] for number in range(tasks)}
    homes = {p: name for name, task in plan.tasks.items() for p in task.partitions}
    homeless: list[str] = []
    for journal in journals:
        shares.get(homes.get(journal, ""), homeless).append(journal)
    for journal in homeless:
        shares[min(shares, key=lambda name: (len(shares[name]), name))].append(journal)
    return {name: tuple(sorted(share)) for name, share in shares.items()}
