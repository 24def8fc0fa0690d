"""Dry runs: plans a changed snapshot in memory until no action is left, and writes nothing. Changes
that would happen anyway are left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from flumeng.config import parse_flow
from flumeng.config.flow_names import whole_of
from flumeng.control.commands.lookup import require_node
from flumeng.control.commands.revisions import next_revisions
from flumeng.control.commands.settings import refuse_in_maintenance
from flumeng.control.commands.tasks import moved, plannable_snapshot, restarted
from flumeng.control.planner.effects import applied
from flumeng.control.planner.planner import plan
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import ReadableStore, Version
from zkschema.records import Flow, Node, NodeStatus, PlannedTask, TaskStatus

ROUNDS = 100


@dataclass(frozen=True)
class Move:
    """A task (``flow/task``) that would change; ``before`` and ``after`` are nodes, or None."""

    task: str
    before: str | None
    after: str | None
    what: str


@dataclass(frozen=True)
class Preview:
    """Effects of a change. ``complete``: planning ended. ``left``: isolated parts to be lost."""

    moves: tuple[Move, ...]
    why: tuple[str, ...]
    complete: bool = True
    left: tuple[str, ...] = ()


def drain(store: ReadableStore, node: str) -> Preview:
    require_node(store, node)
    now = plannable_snapshot(store)
    view = now.nodes[node]
    draining = replace(view, record=replace(view.record, desired="draining"))
    return _compare(now, replace(now, nodes={**now.nodes, node: draining}))


def apply(
    store: ReadableStore,
    texts: Mapping[str, str],
    expect_revision: int | None = None,
    *,
    ended: Collection[str] = (),
    nodes: Mapping[str, Node] | None = None,
) -> Preview:
    """Preview ``apply_flows``; raises the same errors. ``ended`` flows are deleted and ``nodes``
    get new records in the same step."""
    now = plannable_snapshot(store)
    flows = {
        name: replace(view, record=replace(view.record, state="deleted"))
        if whole_of(name) in ended
        else view
        for name, view in now.flows.items()
    }
    changed = {name: replace(now.nodes[name], record=node) for name, node in (nodes or {}).items()}
    revisions = next_revisions(store, texts, expect_revision)
    for revision in revisions:
        name, spec = revision.flow, parse_flow(revision.effective)
        view = flows.get(name)
        if view is None or revision.current is None:
            record = Flow(revision=revision.number, state=revision.state)
            view = FlowView(name, record, Version(0), spec.place)
        elif revision.changed:
            record = replace(view.record, revision=revision.number)
            view = replace(view, record=record, place=spec.place, problem="", rollout=None)
        else:
            continue
        flows |= {
            part: replace(flows[part], record=replace(flows[part].record, state="deleted"))
            for part in revision.leaving
            if part in flows
        }
        discovers = bool(spec.partitioned or view.partitions)
        flows[name] = replace(view, pins=bool(spec.pinned), discovers=discovers)
    new = flows.keys() - now.flows.keys()
    wanted_nodes = {**now.nodes, **changed}
    preview = _compare(now, replace(now, flows=flows, nodes=wanted_nodes, mine=now.mine | new))
    return replace(preview, left=tuple(str(part) for r in revisions for part in r.applied.left))


def restart(store: ReadableStore, key: str) -> Preview:
    """Preview ``restart_task``; raises the same errors."""
    change = restarted(plannable_snapshot(store), key)
    node, epoch = change.after.node, change.after.epoch
    return Preview((Move(key, node, node, f"starts again under epoch {epoch}"),), ())


def move(store: ReadableStore, key: str, node: str) -> Preview:
    """Preview ``move_task``; raises the same errors."""
    require_node(store, node)
    now = plannable_snapshot(store)
    change = moved(now, key, node)
    refuse_in_maintenance(store)
    return _compare(now, change.applied(now)) if change else Preview((), ())


def _compare(now: Snapshot, changed: Snapshot) -> Preview:
    before, unchanged_why, _ = _settle(now)
    after, why, complete = _settle(changed)
    moves = tuple(_moves(_tasks(before), _tasks(after)))
    return Preview(moves, tuple(reason for reason in why if reason not in unchanged_why), complete)


Tasks = dict[str, tuple[PlannedTask, int]]
"""The planned task and its revision, by ``flow/task``."""


def _tasks(snapshot: Snapshot) -> Tasks:
    return {
        f"{flow.name}/{name}": (task, flow.revision_of(task))
        for flow in snapshot.flows.values()
        for name, task in flow.tasks.items()
    }


def _moves(before: Tasks, after: Tasks) -> Iterator[Move]:
    for key in sorted({*before, *after}):
        old, old_revision = before.get(key, (None, 0))
        new, new_revision = after.get(key, (None, 0))
        if new is None:
            what = "ends"
        elif old is None:
            what = "starts" if new.node else "waits: no live node may run it"
        elif old.node != new.node:
            what = "moves"
        elif old_revision != new_revision:
            what = f"takes revision {new_revision}"
        elif old.partitions != new.partitions:
            what = f"reads {len(new.partitions)} partitions instead of {len(old.partitions)}"
        elif old.state != new.state:
            stuck = new.state == "draining"
            what = "is released and waits: no other live node may run it" if stuck else new.state
        else:
            continue
        yield Move(key, old.node if old else None, new.node if new else None, what)


def _settle(snapshot: Snapshot) -> tuple[Snapshot, dict[str, None], bool]:
    """Alternate planning and simulated nodes until nothing is left to do, at most ``ROUNDS`` times.
    Returns the snapshot, the reasons, and whether planning ended."""
    why: dict[str, None] = {}
    for _ in range(ROUNDS):
        actions = plan(snapshot)
        if not actions:
            return snapshot, why, True
        for action in actions:
            snapshot = applied(snapshot, action)
            why |= dict.fromkeys(action.why)
        nodes = {name: _obey(node) for name, node in snapshot.nodes.items()}
        running = (key for node in nodes.values() if node.status for key in node.status.tasks)
        snapshot = replace(snapshot, nodes=nodes, settled=frozenset(running))
    return snapshot, why, not plan(snapshot)


def _obey(node: NodeView) -> NodeView:
    """Return the node as it is after it has carried out its assignment."""
    if not node.live or not isinstance(node.assignment_version, Version):
        return node
    tasks = {
        f"{task.flow}/{task.task}": TaskStatus(
            epoch=task.epoch, revision=task.revision, state="running"
        )
        for task in node.assignment.tasks
        if task.state not in ("draining", "standby")
    }
    return replace(
        node, status=NodeStatus(assignment_version=node.assignment_version.number, tasks=tasks)
    )
