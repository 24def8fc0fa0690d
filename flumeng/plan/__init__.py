"""The planner: ``plan(snapshot) -> actions``, pure.

No I/O, clock, randomness or logging. Two laws hold and are tested as properties: planning again
after the actions were applied gives nothing, and every prefix of the actions leaves a legal state.
Plans come before assignments, and an assignment that takes a task away comes before one that gives
it, so no two nodes are ever told to run the same task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from flumeng.model import FlowView, NodeView, Snapshot
from flumeng.plan.actions import Action, Assign, Drop, Replan
from flumeng.plan.placement import DRAINING, place
from flumeng.store import Version
from zkschema.records import COLLECT, AssignedTask

__all__ = ["Action", "Assign", "Drop", "Replan", "plan"]


def plan(snapshot: Snapshot) -> list[Action]:
    """What to do now so that every flow in ``snapshot.mine`` runs as it should."""
    drops = [drop for flow in _mine(snapshot) if (drop := _drop(flow, snapshot))]
    replans = _replans(snapshot)
    after = _after(snapshot, replans)
    assigns = [assign for node in snapshot.nodes.values() if (assign := _assign(node, after))]
    return [*replans, *sorted(assigns, key=lambda assign: _gives(assign, snapshot)), *drops]


def _gives(action: Assign, snapshot: Snapshot) -> bool:
    """Whether the node gets a task that it did not have."""
    before = {(task.flow, task.task) for task in snapshot.nodes[action.node].assignment.tasks}
    return any((task.flow, task.task) not in before for task in action.assignment.tasks)


def _mine(snapshot: Snapshot) -> list[FlowView]:
    return [flow for name, flow in snapshot.flows.items() if name in snapshot.mine]


def _drop(flow: FlowView, snapshot: Snapshot) -> Drop | None:
    if flow.record.state != "deleted" or flow.plan.tasks:
        return None
    waiting = [
        name
        for name, journal in snapshot.journals.items()
        if journal.flow == flow.name and name not in snapshot.drained
    ]
    busy = any(
        key.startswith(f"{flow.name}/")
        for node in snapshot.nodes.values()
        if node.live and node.status
        for key in node.status.tasks
    )
    if busy or (waiting and not flow.record.discard):
        return None
    return Drop(flow.name, (f"{flow.name} was deleted and is drained",))


def _replans(snapshot: Snapshot) -> list[Replan]:
    load = Counter(
        task.node
        for flow in snapshot.flows.values()
        for task in flow.plan.tasks.values()
        if task.kind == COLLECT and task.node
    )
    actions = []
    for flow in _mine(snapshot):
        wanted, why = place(flow, snapshot, load)
        if wanted != flow.plan or not isinstance(flow.plan_version, Version):
            reasons = tuple(why) or (f"{flow.name}: the plan is brought up to date",)
            actions.append(Replan(flow.name, flow.version, wanted, flow.plan_version, reasons))
            load.update(
                task.node
                for name, task in wanted.tasks.items()
                if task.kind == COLLECT and task.node and flow.plan.tasks.get(name) != task
            )
    return actions


def _after(snapshot: Snapshot, replans: list[Replan]) -> Snapshot:
    """The snapshot as it is when the plans are written; a set raises a version by one."""
    flows = dict(snapshot.flows)
    for action in replans:
        before = action.expect.number if isinstance(action.expect, Version) else -1
        flows[action.flow] = replace(
            flows[action.flow], plan=action.plan, plan_version=Version(before + 1)
        )
    return replace(snapshot, flows=flows)


def _assign(node: NodeView, snapshot: Snapshot) -> Assign | None:
    """Bring the node's assignment in line with the plans; None when it is."""
    current = {(task.flow, task.task): task for task in node.assignment.tasks}
    wanted = {
        (flow.name, name): AssignedTask(
            flow=flow.name,
            task=name,
            kind=task.kind,
            epoch=task.epoch,
            revision=flow.record.revision,
            state=DRAINING if task.state == DRAINING else "running",
            partitions=task.partitions,
        )
        for flow in _mine(snapshot)
        for name, task in flow.plan.tasks.items()
        if task.node == node.name
    }
    others = {
        key: task
        for key, task in current.items()
        if task.flow in snapshot.flows and task.flow not in snapshot.mine
    }
    tasks = {**others, **wanted}
    changed = sorted(key for key in {*current, *tasks} if current.get(key) != tasks.get(key))
    if not changed and isinstance(node.assignment_version, Version):
        return None
    return Assign(
        node.name,
        replace(node.assignment, tasks=tuple(tasks[key] for key in sorted(tasks))),
        node.assignment_version,
        _basis({flow for flow, _ in changed}, snapshot.flows),
        tuple(_difference(current.get(key), tasks.get(key)) for key in changed),
    )


def _basis(names: set[str], flows: Mapping[str, FlowView]) -> tuple[tuple[str, Version], ...]:
    versions = ((name, flows[name].plan_version) for name in sorted(names) if name in flows)
    return tuple((name, found) for name, found in versions if isinstance(found, Version))


def _difference(before: AssignedTask | None, after: AssignedTask | None) -> str:
    if before is None:
        assert after is not None
        return f"{after.flow}/{after.task} starts under epoch {after.epoch}"
    if after is None:
        return f"{before.flow}/{before.task} ends"
    return f"{after.flow}/{after.task} changes"
