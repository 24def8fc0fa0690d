"""How long the planner takes for a large cluster, and how little it moves for one node.

One flow of 20,000 collect tasks over 10,000 nodes reads 100,000 journals. Only planning is timed;
the writes that the plan would make are counted.
"""

from __future__ import annotations

import time
from dataclasses import replace

from flumeng.model import FlowView, NodeView, Snapshot
from flumeng.plan import Action, Assign, Replan, plan
from flumeng.spec import CollectPlace, Place
from flumeng.store import Version
from zkschema.records import COLLECT, Flow, Journal, Node

NODES = 10_000
TASKS = 20_000
JOURNALS = 100_000


def run() -> dict[str, object]:
    """Seconds of a full plan, milliseconds when one node leaves or joins, and the moves made."""
    empty = _cluster()
    seconds, actions = _timed(empty)
    settled = _applied(empty, actions)
    leaving = replace(settled.nodes["n0"], live=False, gone_seconds=1.0)
    left = replace(settled, nodes={**settled.nodes, "n0": leaving})
    left_seconds, left_actions = _timed(left)
    after = _applied(left, left_actions)
    newcomer = NodeView("new", _collector(), live=True)
    joined = replace(after, nodes={**after.nodes, "new": newcomer})
    joined_seconds, joined_actions = _timed(joined)
    loads = _loads(after)
    return {
        "nodes": NODES,
        "tasks": TASKS,
        "partitions": JOURNALS,
        "full_plan_seconds": round(seconds, 3),
        "one_leaves_ms": round(left_seconds * 1000, 1),
        "one_joins_ms": round(joined_seconds * 1000, 1),
        "writes_one_leaves": len(left_actions),
        "writes_one_joins": len(joined_actions),
        "moves": _moves(settled, after),
        "moves_least": sum(t.node == "n0" for t in settled.flows["f"].plan.tasks.values()),
        "imbalance": max(loads.values()) - min(loads.values()),
    }


def _cluster() -> Snapshot:
    nodes = {f"n{i}": NodeView(f"n{i}", _collector(), live=True) for i in range(NODES)}
    place = Place(collect=CollectPlace(tasks=TASKS))
    journal = Journal(flow="f", node="n0", primary="n0", term=1, in_sync=("n0",))
    return Snapshot(
        flows={"f": FlowView("f", Flow(revision=1), Version(0), place)},
        nodes=nodes,
        journals={f"j{i}": journal for i in range(JOURNALS)},
        drained=frozenset(),
        mine=frozenset({"f"}),
    )


def _collector() -> Node:
    return Node(uuid="u", roles=(COLLECT,))


def _timed(snapshot: Snapshot) -> tuple[float, list[Action]]:
    started = time.perf_counter()
    actions = plan(snapshot)
    return time.perf_counter() - started, actions


def _applied(snapshot: Snapshot, actions: list[Action]) -> Snapshot:
    flows, nodes = dict(snapshot.flows), dict(snapshot.nodes)
    for action in actions:
        if isinstance(action, Replan):
            flow = flows[action.flow]
            flows[action.flow] = replace(flow, plan=action.plan, plan_version=Version(0))
        elif isinstance(action, Assign):
            nodes[action.node] = replace(
                nodes[action.node], assignment=action.assignment, assignment_version=Version(0)
            )
    return replace(snapshot, flows=flows, nodes=nodes)


def _loads(snapshot: Snapshot) -> dict[str, int]:
    """Journals read by each live node."""
    loads = {name: 0 for name, node in snapshot.nodes.items() if node.live}
    for task in snapshot.flows["f"].plan.tasks.values():
        if task.node in loads:
            loads[task.node] += len(task.partitions)
    return loads


def _moves(before: Snapshot, after: Snapshot) -> int:
    old = before.flows["f"].plan.tasks
    return sum(old[n].node != task.node for n, task in after.flows["f"].plan.tasks.items())
