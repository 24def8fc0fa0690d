"""Helpers for tests of the planner: clusters in memory, and nodes that obey."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flumeng.config import CollectPlace, Place
from flumeng.control.planner.actions import Action
from flumeng.control.planner.effects import applied
from flumeng.control.planner.planner import Planner, plan
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from zkschema.records import COLLECT, Flow, Journal, Node, NodeStatus, Partition, TaskStatus

SLOT = (("slots", 1000),)


def node(
    name: str, zone: str = "", roles: tuple[str, ...] = (COLLECT,), **capacity: float
) -> NodeView:
    return NodeView(name, Node(uuid=name, roles=roles, zone=zone, capacity=capacity), live=True)


def flow(name: str = "f", **place: Any) -> FlowView:
    return FlowView(name, Flow(revision=1), Version(0), Place(collect=CollectPlace(**place)))


def cluster(views: list[FlowView], nodes: list[NodeView], **more: Any) -> Snapshot:
    return Snapshot(
        flows={view.name: view for view in views},
        nodes={view.name: view for view in nodes},
        journals=more.pop("journals", {}),
        drained=frozenset(),
        mine=frozenset(view.name for view in views),
        **more,
    )


def journals(count: int, of: str = "f") -> dict[str, Journal]:
    journal = Journal(flow=of, node="n", primary="n", term=1, in_sync=("n",))
    return {f"j{number:03d}": journal for number in range(count)}


def carried_out(snapshot: Snapshot, actions: list[Action] | None = None) -> Snapshot:
    for action in plan(snapshot) if actions is None else actions:
        snapshot = applied(snapshot, action)
    return snapshot


def obeyed(snapshot: Snapshot, failing: str = "") -> Snapshot:
    """Every live node runs its assignment; on the node ``failing`` all tasks fail."""
    nodes = {}
    for name, view in snapshot.nodes.items():
        version = view.assignment_version
        if view.live and isinstance(version, Version):
            tasks = {
                f"{task.flow}/{task.task}": TaskStatus(
                    epoch=task.epoch,
                    revision=task.revision,
                    state="failed" if name == failing else "running",
                    error="no such column" if name == failing else None,
                )
                for task in view.assignment.tasks
                if task.state == "running"
            }
            status = NodeStatus(assignment_version=version.number, tasks=tasks)
            nodes[name] = replace(view, status=status)
        else:
            nodes[name] = view
    return replace(snapshot, nodes=nodes)


def obey(node: NodeView) -> NodeView:
    """A live node runs or prepares what it was told, and has let go of what is to drain."""
    if not node.live or not isinstance(node.assignment_version, Version):
        return node
    tasks = {
        f"{task.flow}/{task.task}": TaskStatus(
            epoch=task.epoch, revision=task.revision, state=task.state
        )
        for task in node.assignment.tasks
        if task.state != "draining"
    }
    status = NodeStatus(assignment_version=node.assignment_version.number, tasks=tasks)
    return replace(node, status=status)


def settle(
    snapshot: Snapshot, plan: Callable[[Snapshot], list[Action]] = plan, *, obedient: bool = True
) -> Snapshot:
    """Plan, and let nodes obey, until nothing is left to do; also what they say at last is seen."""
    for _ in range(20):
        actions = plan(snapshot)
        snapshot = carried_out(snapshot, actions)
        if obedient:
            nodes = {name: obey(node) for name, node in snapshot.nodes.items()}
            snapshot = replace(snapshot, nodes=nodes)
        if not actions:
            return snapshot
    raise AssertionError("the plan does not come to rest")


def at_rest(snapshot: Snapshot, plan: Callable[[Snapshot], list[Action]] = plan) -> Snapshot:
    for _ in range(100):
        actions = plan(snapshot)
        if not actions:
            return snapshot
        snapshot = obeyed(carried_out(snapshot, actions))
    raise AssertionError("the plan does not come to rest")


def owners(snapshot: Snapshot, name: str = "f") -> Counter[str | None]:
    tasks = snapshot.flows[name].tasks.values()
    return Counter(task.node for task in tasks if task.kind == COLLECT)


def found(view: FlowView, *names: str, **ends: int) -> FlowView:
    """``view`` with these partitions; ``ends`` are the ends of the closed ones."""
    known = {name: Partition(end=ends.get(name.partition("@")[0])) for name in names}
    return replace(view, partitions=known)


def reads(snapshot: Snapshot, name: str = "f") -> list[tuple[str, ...]]:
    return [task.partitions for task in snapshot.flows[name].tasks.values()]


def seen_by(planner: Planner, snapshot: Snapshot) -> Snapshot:
    """The snapshot after the actions of ``planner``, which equal those of a new planner."""
    actions = planner.plan(snapshot)
    assert actions == plan(snapshot)
    return carried_out(snapshot, actions)
