"""Which node runs which task of a flow: sticky, so that as little as possible moves.

A task changes hands in one of two ways. Its owner is gone: another takes it with a higher epoch
after the grace period, and fencing makes that safe. Its owner may not keep it, or has too much: the
task is marked ``draining``, the owner finishes its batch, acks and lets go, and only then it is
given away; past a deadline it is taken.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace

from flumeng.model import FlowView, NodeView, Snapshot
from flumeng.plan.seats import Load, Seats
from flumeng.spec import CollectPlace, Place
from zkschema.records import COLLECT, INGEST, Plan, PlannedTask

ASSIGNED = "assigned"
DRAINING = "draining"
WAITING = "waiting"


def place(flow: FlowView, snapshot: Snapshot, load: Load) -> tuple[Plan, list[str]]:
    """The flow's plan as it should be now, and the reason of each change.

    ``load`` is brought up to date with it.
    """
    if flow.place is None:
        return flow.plan, []
    draft = _Draft(flow, snapshot, load, flow.plan.epoch)
    tasks = {**draft.ingest_tasks(flow.place), **draft.collect_tasks(flow.place.collect)}
    draft.explain_removals(tasks)
    return replace(flow.plan, epoch=draft.epoch, tasks=tasks), draft.why


def may_collect(node: NodeView, place: CollectPlace) -> bool:
    """Whether a collect task may be given to the node now."""
    return node.live and node.eligible(COLLECT, place.labels)


@dataclass
class _Draft:
    """A flow's plan in the making. ``epoch`` is the highest one given so far."""

    flow: FlowView
    snapshot: Snapshot
    load: Load
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
        """Partitioned: the flow's journals over a fixed number of tasks; none while suspended.

        First every task that can stays where it is, then the others go to the least loaded nodes.
        """
        before = {n: task for n, task in self.flow.plan.tasks.items() if task.kind == COLLECT}
        for task in before.values():
            self.load.remove(task)
        if not self._collects():
            return {}
        homes = {p: name for name, task in before.items() for p in task.partitions}
        shares = _share(self._open_journals(), place.tasks, homes)
        tasks, homeless = {}, {}
        for name, partitions in shares.items():
            wanted = self._with_partitions(name, partitions, homes)
            reason = self._must_leave(name, wanted)
            if reason is None:
                tasks[name] = self._keep(name, wanted, place)
                self.load.add(tasks[name])
            else:
                homeless[name] = (wanted, reason)
        able = [node.name for node in self.snapshot.nodes.values() if may_collect(node, place)]
        seats = Seats(able, self.load)
        for name, (task, reason) in homeless.items():
            tasks[name] = self._hand_over(name, task, seats, reason)
            self.load.add(tasks[name])
        return {name: tasks[name] for name in shares}

    def explain_removals(self, tasks: dict[str, PlannedTask]) -> None:
        self.why += [
            f"{self.flow.name}/{name} ends: not wanted any more"
            for name in self.flow.plan.tasks
            if name not in tasks
        ]

    def _collects(self) -> bool:
        record = self.flow.record
        if record.state in ("running", "suspended"):
            return record.state == "running"
        busy = self._open_journals() or self.flow.name in self.snapshot.committing
        return bool(busy) and not record.discard

    def _open_journals(self) -> list[str]:
        return sorted(
            name
            for name in self.snapshot.journals_of(self.flow.name)
            if name not in self.snapshot.drained
        )

    def _with_partitions(
        self, name: str, partitions: tuple[str, ...], homes: dict[str, str]
    ) -> PlannedTask:
        """The task as it is, with these partitions.

        A task that gets a partition from another one needs a higher epoch than that one had.
        """
        task = self.flow.plan.tasks.get(name)
        if task is None:
            return PlannedTask(
                kind=COLLECT, node=None, epoch=0, state=WAITING, partitions=partitions
            )
        if partitions == task.partitions:
            return task
        self.why.append(f"{self.flow.name}/{name} now reads {len(partitions)} journals")
        if task.node and any(homes.get(p, name) != name for p in partitions):
            self.epoch += 1
            return replace(task, partitions=partitions, epoch=self.epoch)
        return replace(task, partitions=partitions)

    def _must_leave(self, name: str, task: PlannedTask) -> str | None:
        """Why the task is to be given to someone now; None when it is not."""
        if task.node is None:
            return "nobody runs it"
        owner = self.snapshot.nodes.get(task.node)
        if owner is None:
            return f"{task.node} is gone"
        if not owner.live:
            gone = owner.gone_seconds >= self.snapshot.grace_seconds
            return f"{task.node} is gone" if gone else None
        if task.state == DRAINING:
            key = f"{self.flow.name}/{name}"
            if owner.has_let_go(self.flow.name, name):
                return f"{owner.name} let it go"
            if self.snapshot.draining_seconds.get(key, 0) >= self.snapshot.drain_limit_seconds:
                return f"{owner.name} did not let it go in time"
        return None

    def _keep(self, name: str, task: PlannedTask, place: CollectPlace) -> PlannedTask:
        """It stays with its owner for now, draining when the owner may not keep it."""
        assert task.node is not None
        owner = self.snapshot.nodes[task.node]
        if not owner.live:
            return task
        if not owner.eligible(COLLECT, place.labels):
            if task.state != DRAINING:
                self.why.append(f"{self.flow.name}/{name} is to leave {owner.name}")
            return replace(task, state=DRAINING, target=None, why=f"{owner.name} may not keep it")
        target = self.snapshot.nodes.get(task.target or "")
        if task.state == DRAINING and not (target and may_collect(target, place)):
            self.why.append(f"{self.flow.name}/{name} stays with {owner.name} after all")
            return replace(task, state=ASSIGNED, target=None, why="")
        return task

    def _hand_over(self, name: str, task: PlannedTask, seats: Seats, reason: str) -> PlannedTask:
        """Give the task to the node that it was to go to, else to the least loaded one, or leave it
        as it is when there is none."""
        target = self.snapshot.nodes.get(task.target or "")
        assert self.flow.place is not None
        sent = target is not None and may_collect(target, self.flow.place.collect)
        node = task.target if sent else seats.least_loaded()
        if node is not None:
            return self._give(COLLECT, name, node, reason, task.partitions)
        if task.node is None and name not in self.flow.plan.tasks:
            self.why.append(f"{self.flow.name}/{name} waits: no live node may run it")
        return task if task.node else replace(task, why="no live node may run it")

    def _give(
        self, kind: str, name: str, node: str, reason: str, partitions: tuple[str, ...] = ()
    ) -> PlannedTask:
        self.epoch += 1
        self.why.append(f"{self.flow.name}/{name} goes to {node}: {reason}")
        return PlannedTask(
            kind=kind, node=node, epoch=self.epoch, state=ASSIGNED, partitions=partitions
        )


def _share(journals: list[str], tasks: int, homes: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Spread journals over tasks: each stays in the task it is in, new ones join the smallest."""
    shares: dict[str, list[str]] = {f"{COLLECT}.{number}": [] for number in range(tasks)}
    homeless: list[str] = []
    for journal in journals:
        shares.get(homes.get(journal, ""), homeless).append(journal)
    sizes = [(len(share), number, name) for number, (name, share) in enumerate(shares.items())]
    heapq.heapify(sizes)
    for journal in homeless:
        size, number, name = sizes[0]
        shares[name].append(journal)
        heapq.heapreplace(sizes, (size + 1, number, name))
    return {name: tuple(sorted(share)) for name, share in shares.items()}
