"""How long the planner takes for a large cluster, and how little it moves for one node.

One flow reads 100,000 journals with as many tasks, on 10,000 nodes. Only planning is timed; the
writes that the plan would make are counted. A second cluster has partitions of mixed weights.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from dataclasses import replace

from flumeng.config import CollectPlace, Place
from flumeng.control.master.daemon import collect_garbage_rarely
from flumeng.control.planner.actions import Action, Assign, Replan
from flumeng.control.planner.effects import applied
from flumeng.control.planner.planner import Planner
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from flumeng.platform.garbage_collection import no_garbage_collection
from zkschema.records import COLLECT, Flow, Journal, Node, NodeStatus, TaskStatus

NODES = 10_000
JOURNALS = 100_000
ROUNDS = 15
SEED = 3


def run() -> dict[str, object]:
    """Seconds of a full plan; median milliseconds when one node leaves or joins; writes, moves."""
    collect_garbage_rarely()
    seconds, settled, planner = _planned(_cluster({}))
    leaves, left = _one_leaves(planner, settled)
    joins, joined = _one_joins(planner, left)
    spread = _converged(planner, joined)
    loads = _loads(left)
    _, mixed, _ = _planned(_cluster(_mixed_weights()))
    return {
        "nodes": NODES,
        "partitions": JOURNALS,
        "full_plan_seconds": round(seconds, 3),
        "one_leaves_ms": leaves["milliseconds"],
        "one_joins_ms": joins["milliseconds"],
        "writes_one_leaves": leaves["writes"],
        "transactions_one_leaves": leaves["transactions"],
        "writes_one_joins": joins["writes"],
        "moves": leaves["moves"],
        "moves_least": leaves["moves_least"],
        "moves_joining": _moves(left, spread),
        "moves_joining_least": JOURNALS // NODES,
        "imbalance": max(loads.values()) - min(loads.values()),
        "imbalance_mixed_weights": round(_spread_of(mixed), 4),
    }


def _cluster(weights: dict[str, dict[str, float]]) -> Snapshot:
    names = [f"n{number:05d}" for number in range(NODES)]
    place = Place(collect=CollectPlace(tasks=JOURNALS))
    journal = Journal(flow="f", node="n", primary="n", term=1, in_sync=("n",))
    return Snapshot(
        flows={"f": FlowView("f", Flow(revision=1), Version(0), place, weights=weights)},
        nodes={name: NodeView(name, _collector(), live=True) for name in names},
        journals={f"j{number:06d}": journal for number in range(JOURNALS)},
        drained=frozenset(),
        mine=frozenset({"f"}),
    )


def _collector() -> Node:
    return Node(uuid="u", roles=(COLLECT,))


def _mixed_weights() -> dict[str, dict[str, float]]:
    chance = random.Random(SEED)
    return {
        f"j{number:06d}": {"slots": chance.choice((0.5, 1.0, 2.0, 4.0))}
        for number in range(JOURNALS)
    }


def _planned(empty: Snapshot) -> tuple[float, Snapshot, Planner]:
    """The empty cluster, planned; checked to be owned and at rest."""
    planner = Planner()
    milliseconds, actions = _timed(planner, empty)
    settled = _after(empty, actions)
    owned = sum(len(task.partitions) for task in settled.flows["f"].tasks.values() if task.node)
    assert owned == JOURNALS, f"{JOURNALS - owned} partitions have no owner"
    assert planner.plan(settled) == [], "planning again gives something"
    return milliseconds / 1000, settled, planner


def _one_leaves(planner: Planner, settled: Snapshot) -> tuple[dict[str, float], Snapshot]:
    """The median of several nodes that leave, one after the other."""
    times, writes, transactions, moves, least = [], 0, 0, 0, 0
    snapshot = settled
    for number in range(ROUNDS):
        name = f"n{number:05d}"
        gone = replace(snapshot.nodes[name], live=False, down=True)
        left = replace(snapshot, nodes={**snapshot.nodes, name: gone})
        elapsed, actions = _timed(planner, left)
        times.append(elapsed)
        after = _after(left, actions)
        writes, transactions = _writes(actions), len(actions)
        moves += _moves(left, after)
        least += sum(task.node == name for task in left.flows["f"].tasks.values())
        snapshot = after
    return {
        "milliseconds": round(statistics.median(times), 2),
        "writes": writes,
        "transactions": transactions,
        "moves": moves,
        "moves_least": least,
    }, snapshot


def _one_joins(planner: Planner, left: Snapshot) -> tuple[dict[str, float], Snapshot]:
    """The median of several looks at a node that has just joined; each has a planner's memory."""
    times = []
    newcomer = NodeView("new", _collector(), live=True)
    joined = replace(left, nodes={**left.nodes, "new": newcomer})
    for _ in range(ROUNDS):
        elapsed, actions = _timed(planner, joined)
        times.append(elapsed)
        assert planner.plan(left) is not None, "back to before"
    return {"milliseconds": round(statistics.median(times), 2), "writes": _writes(actions)}, joined


def _converged(planner: Planner, snapshot: Snapshot) -> Snapshot:
    """Plan, and let every node obey, until nothing is left to do."""
    snapshot = replace(snapshot, balance_moves=4)
    while actions := planner.plan(snapshot):
        snapshot = _after(snapshot, actions)
        told = {action.node for action in actions if isinstance(action, Assign)}
        nodes = dict(snapshot.nodes)
        for name in told:
            nodes[name] = _obedient(nodes[name])
        snapshot = replace(snapshot, nodes=nodes)
    loads = _loads(snapshot)
    assert max(loads.values()) - min(loads.values()) <= 1, "the newcomer has not got its share"
    return snapshot


def _obedient(node: NodeView) -> NodeView:
    assert isinstance(node.assignment_version, Version)
    tasks = {
        f"{task.flow}/{task.task}": TaskStatus(epoch=task.epoch, revision=1, state="running")
        for task in node.assignment.tasks
        if task.state == "running"
    }
    version = node.assignment_version.number
    return replace(node, status=NodeStatus(assignment_version=version, tasks=tasks))


def _timed(planner: Planner, snapshot: Snapshot) -> tuple[float, list[Action]]:
    started = time.perf_counter()
    with no_garbage_collection():
        actions = planner.plan(snapshot)
    return (time.perf_counter() - started) * 1000, actions


def _after(snapshot: Snapshot, actions: list[Action]) -> Snapshot:
    """All actions at once: a copy of the nodes for each assignment would take longer than all."""
    nodes = dict(snapshot.nodes)
    for action in actions:
        if isinstance(action, Assign):
            nodes[action.node] = replace(
                nodes[action.node],
                assignment=action.assignment,
                assignment_version=action.version_after,
            )
        else:
            snapshot = applied(snapshot, action)
    return replace(snapshot, nodes=nodes)


def _writes(actions: list[Action]) -> int:
    """Znodes written."""
    puts = 0
    for action in actions:
        assert isinstance(action, Assign | Replan)
        puts += sum(hasattr(write, "value") for write in action.writes())
    return puts


def _loads(snapshot: Snapshot) -> Counter[str]:
    """Journals read by each live node."""
    loads = Counter({name: 0 for name, node in snapshot.nodes.items() if node.live})
    for task in snapshot.flows["f"].tasks.values():
        if task.node is not None:
            loads[task.node] += len(task.partitions)
    return loads


def _spread_of(snapshot: Snapshot) -> float:
    """How much more than the least the fullest node has, as a share of the mean."""
    flow = snapshot.flows["f"]
    loads: Counter[str] = Counter(dict.fromkeys(snapshot.nodes, 0))
    for task in flow.tasks.values():
        assert task.node is not None
        loads[task.node] += flow.weight(task.partitions)[0][1]
    return (max(loads.values()) - min(loads.values())) / statistics.mean(loads.values())


def _moves(before: Snapshot, after: Snapshot) -> int:
    old = before.flows["f"].tasks
    return sum(old[name].node != task.node for name, task in after.flows["f"].tasks.items())
