"""Moves that only make the load more even. They are never urgent: none is begun while a task is
unowned, and only a few at a time are under way.

A task is marked ``draining`` towards its new node; what follows is an ordinary handoff.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from flumeng.model import FlowView, Snapshot
from flumeng.plan.placement import ASSIGNED, DRAINING, WAITING, may_collect
from flumeng.plan.seats import Load, weight
from flumeng.spec import CollectPlace
from zkschema.records import COLLECT, PlannedTask


def allowance(snapshot: Snapshot, flows: Iterable[FlowView]) -> int:
    """How many balance moves may begin now."""
    under_way = 0
    for flow in flows:
        for task in flow.plan.tasks.values():
            if task.kind != COLLECT:
                continue
            owner = snapshot.nodes.get(task.node or "")
            if task.state == WAITING or owner is None or not owner.live:
                return 0
            under_way += task.state == DRAINING
    return max(0, snapshot.balance_moves - under_way)


def move(
    flow: FlowView, snapshot: Snapshot, load: Load, most: int
) -> tuple[Mapping[str, PlannedTask], list[str]]:
    """Up to ``most`` tasks of the flow that are to change nodes, marked, with the reasons.

    A move is worth it when the fuller node stays at least as full as the other becomes.
    """
    if flow.place is None or most == 0:
        return {}, []
    place: CollectPlace = flow.place.collect
    able = [node.name for node in snapshot.nodes.values() if may_collect(node, place)]
    moved: dict[str, PlannedTask] = {}
    why = []
    while able and len(moved) < most:
        target = min(able, key=lambda node: (load.of(node), node))
        found = _heaviest_worth_moving(flow, moved, load, target)
        if found is None:
            break
        name, task = found
        load.remove(task)
        moved[name] = replace(
            task, state=DRAINING, target=target, why=f"{task.node} has more to do than {target}"
        )
        load.add(moved[name])
        why.append(f"{flow.name}/{name} is to go from {task.node} to {target}: more even")
    return moved, why


def _heaviest_worth_moving(
    flow: FlowView, moved: Mapping[str, PlannedTask], load: Load, target: str
) -> tuple[str, PlannedTask] | None:
    worth = [
        (load.of(task.node), weight(task), name)
        for name, task in flow.plan.tasks.items()
        if task.kind == COLLECT
        and task.state == ASSIGNED
        and name not in moved
        and task.node is not None
        and load.of(target) + weight(task) < load.of(task.node)
    ]
    if not worth:
        return None
    name = max(worth)[2]
    return name, flow.plan.tasks[name]
