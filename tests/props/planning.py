"""Helpers for tests of the laws of the planner: random clusters, legal plans, nodes that obey."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st

from flumeng.config import CollectPlace, IngestPlace, Place, Rollout, TaskRange
from flumeng.config.replicas import Replicas
from flumeng.control.planner.actions import (
    Action,
    Assign,
    Drop,
    Forget,
    MarkDown,
    Replan,
    Replicate,
    Revert,
)
from flumeng.control.planner.effects import applied
from flumeng.control.planner.planner import plan
from flumeng.control.planner.replicas import is_down
from flumeng.control.snapshot.snapshot import UNDECIDED, FlowView, IntentView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from flumeng.journal.replication.membership import node_of
from zkschema.records import (
    COLLECT,
    Cluster,
    Flow,
    Intent,
    Journal,
    MaintenanceLimits,
    Node,
    NodeStatus,
    Partition,
    PlannedTask,
    TaskStatus,
)

BOTH = ("ingest", "collect")
ALL = (*BOTH, "replica")
ROLES = st.sampled_from([ALL, ALL, BOTH, BOTH, ("ingest",), ("collect",), ("replica",)])
NODE_LABELS = st.sampled_from([{"role": "web"}, {"role": "web"}, {"role": "spark"}])
RANGE = TaskRange(min=2, max=4)
TASKS = st.sampled_from([None, None, 1, 2, 3, 4, RANGE, RANGE])
FLOW_LABELS = st.sampled_from([{}, {}, {"role": "web"}, {"role": "spark"}])


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, NodeView]:
    views = {}
    for number in range(draw(st.integers(1, 5))):
        name = f"n{number}"
        record = Node(
            uuid=name,
            roles=draw(ROLES),
            labels=draw(NODE_LABELS),
            zone=draw(st.sampled_from(["a", "b"])),
            capacity=draw(st.sampled_from([{}, {}, {"slots": 2.0}, {"slots": 9.0, "mb": 2.0}])),
            desired=draw(st.sampled_from(["active"] * 4 + ["draining"])),
        )
        live = draw(st.sampled_from([True, True, False]))
        views[name] = NodeView(
            name,
            record,
            live,
            down=not live and draw(st.booleans()),
            expired=not live and draw(st.integers(0, 3)) == 0,
            mark_due=draw(st.integers(0, 3)) == 0,
        )
    return views


@st.composite
def flows(draw: st.DrawFn) -> dict[str, FlowView]:
    views = {}
    for number in range(draw(st.integers(1, 3))):
        name = f"f{number}"
        place = Place(
            ingest=IngestPlace(labels=draw(FLOW_LABELS)),
            collect=CollectPlace(
                labels=draw(FLOW_LABELS),
                tasks=draw(TASKS),
                weight=draw(
                    st.sampled_from([{"slots": 1.0}, {"slots": 0.5, "mb": 1.0}, {"slots": 20.0}])
                ),
                per_node=draw(st.sampled_from([0, 0, 1, 2])),
                spread=draw(st.sampled_from(["load", "zone"])),
                replicas=draw(st.sampled_from([1, 1, 2, 3])),
            ),
        )
        record = Flow(
            revision=draw(st.integers(1, 3)),
            state=draw(st.sampled_from(["running"] * 4 + ["suspended", "stopped", "deleted"])),
            discard=draw(st.booleans()),
        )
        rollout = draw(st.sampled_from([None, Rollout(), Rollout(canary=2, max_parallel=2)]))
        views[name] = FlowView(
            name,
            record,
            Version(0),
            place,
            rollout=rollout,
            by_batch=draw(st.booleans()),
            pins=draw(st.sampled_from([True, True, False])),
            discovers=draw(st.booleans()),
            replicas=draw(st.sampled_from([None, Replicas(), Replicas(3, 2, "host")])),
        )
    return views


@st.composite
def replicated(draw: st.DrawFn, flow: str, known: list[str]) -> Journal:
    """A journal that some nodes have replicas of, one of which may be gone."""
    nodes = draw(st.lists(st.sampled_from([*known, "gone"]), min_size=1, max_size=4, unique=True))
    others = draw(st.lists(st.sampled_from(nodes), unique=True))
    return Journal(
        flow=flow,
        node="n0",
        primary=nodes[0],
        term=draw(st.integers(1, 3)),
        in_sync=tuple(f"{name}/x" for name in dict.fromkeys([nodes[0], *others])),
        closed=draw(st.integers(0, 4)) == 0,
        gone=draw(st.integers(0, 6)) == 0,
        replicas=tuple(nodes),
        lineage="l",
        leaving=tuple(name for name in nodes[1:] if not draw(st.integers(0, 4))),
    )


@st.composite
def discovered(draw: st.DrawFn, flow: FlowView) -> FlowView:
    """The flow with the results of a discovery task: most flows have none."""
    flow = replace(flow, proposed_tasks=draw(st.integers(0, 6)))
    if draw(st.integers(0, 2)):
        return replace(flow, partitions={}, weights={}, discovers=draw(st.booleans()))
    name = draw(st.sampled_from(["p{}@broker", "lane.{}.q@objects"]))
    found = {
        name.format(number): Partition(
            weight=draw(st.sampled_from([{}, {}, {"slots": 3.0}])),
            end=draw(st.sampled_from([None, None, 7])),
        )
        for number in range(draw(st.integers(0, 6)))
    }
    weights = {name: one.weight for name, one in found.items() if one.weight}
    discovers = bool(found) or draw(st.booleans())
    return replace(flow, partitions=found, weights=weights, discovers=discovers)


@st.composite
def intents(draw: st.DrawFn, views: Mapping[str, FlowView]) -> dict[str, dict[str, IntentView]]:
    """Intents of some tasks of some flows: open ones of the owner itself or of an earlier one."""
    return {
        name: {
            task: draw(intent(planned))
            for task, planned in flow.tasks.items()
            if planned.kind == COLLECT and draw(st.booleans())
        }
        for name, flow in views.items()
        if flow.by_batch and draw(st.integers(0, 3))
    }


@st.composite
def intent(draw: st.DrawFn, task: PlannedTask) -> IntentView:
    ranges = {name: (0, 5) for name in task.partitions if draw(st.booleans())}
    epoch = max(0, task.epoch - draw(st.integers(0, 1)))
    record = Intent(epoch=epoch, series="s", number=1, revision=1, splits=1, ranges=ranges)
    unreadable = draw(st.integers(0, 9)) == 0
    return IntentView(None if unreadable else record, Version(draw(st.integers(0, 9))))


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Snapshots with an empty plan, or one of an earlier and different cluster."""
    fresh = Snapshot(
        flows=draw(flows()), nodes=draw(nodes()), journals={}, drained=frozenset(), mine=frozenset()
    )
    before = apply_all(replace(fresh, mine=frozenset(fresh.flows)))
    names = sorted(before.flows)
    journals = {
        f"j{number}": Journal(
            flow=draw(st.sampled_from(names)), node="n0", primary="n0", term=1, in_sync=("n0",)
        )
        for number in range(draw(st.integers(0, 6)) if names else 0)
    }
    for number in range(draw(st.integers(0, 4)) if names else 0):
        of = draw(st.sampled_from(names))
        journals[f"r{number}"] = draw(replicated(of, sorted(before.nodes)))
    known = {name: draw(discovered(flow)) for name, flow in before.flows.items()}
    ending = [f"{name}/{p}" for name, flow in known.items() for p in flow.ending]
    views = dict(before.nodes)
    for name, later in draw(nodes()).items():
        if name in views:
            views[name] = replace(
                later,
                assignment=views[name].assignment,
                assignment_version=views[name].assignment_version,
            )
        else:
            views[name] = later
    mine = [name for name in names if draw(st.integers(0, 3))]
    return replace(
        before,
        flows=known,
        nodes=views,
        journals=journals,
        journal_versions={name: Version(3) for name, one in journals.items() if one.lineage},
        intents=draw(intents(known)),
        drained=frozenset(name for name in [*journals, *ending] if draw(st.booleans())),
        mine=frozenset(mine),
        leads=draw(st.booleans()),
        cluster=Cluster(
            maintenance_limits=MaintenanceLimits(nodes=100),
            throttles=draw(st.sampled_from([{}, {}, {"recovery": 1}])),
        ),
    )


def apply_one(snapshot: Snapshot, action: Action) -> Snapshot:
    """The snapshot after the action's compare-and-set."""
    if isinstance(action, Drop):
        kept = {name: flow for name, flow in snapshot.flows.items() if name != action.flow}
        return replace(snapshot, flows=kept, mine=snapshot.mine - {action.flow})
    if isinstance(action, Assign):
        node = snapshot.nodes[action.node]
        assert action.expect == node.assignment_version
        for flow, version in action.plans:
            assert snapshot.flows[flow].plan_version == version
        after = replace(
            node, assignment=action.assignment, assignment_version=next_version(action.expect)
        )
        return replace(snapshot, nodes={**snapshot.nodes, action.node: after})
    if isinstance(action, Forget):
        held = [
            t for f in snapshot.flows.values() for t in f.tasks.values() if t.node == action.node
        ]
        assert not held, "a node with tasks is forgotten"
        owned = [j for j in snapshot.journals.values() if j.primary == action.node]
        assert not owned, "a node with journals is forgotten"
        assert not snapshot.nodes[action.node].live
        return applied(snapshot, action)
    if isinstance(action, Replicate):
        assert action.expect == snapshot.journal_versions[action.journal]
        assert action.why, "an action without a reason"
        return applied(snapshot, action)
    if isinstance(action, MarkDown | Revert):
        return applied(snapshot, action)
    assert isinstance(action, Replan)
    view = snapshot.flows[action.flow]
    assert (action.expect, action.flow_version) == (view.plan_version, view.version)
    assert action.before == view.tasks
    assert action.why, "an action without a reason"
    for fence in action.fences:
        seen = snapshot.intents[action.flow].get(fence.task, UNDECIDED)
        assert fence.seen == seen, "a fence is put up on what is not there"
    return applied(snapshot, action)


def next_version(expect: object) -> Version:
    return Version(expect.number + 1 if isinstance(expect, Version) else 0)


def apply_all(snapshot: Snapshot) -> Snapshot:
    for action in plan(snapshot):
        snapshot = apply_one(snapshot, action)
    return snapshot


def check_legal(before: Snapshot, after: Snapshot) -> None:
    """No two nodes are assigned one task, no epoch decreases, a new owner has a new epoch, and each
    journal is led by a replica that was in sync."""
    check_journals(before, after)
    told = [
        (task.flow, task.task)
        for node in after.nodes.values()
        for task in node.assignment.tasks
        if task.state != "standby"
    ]
    assert len(told) == len(set(told)), "two nodes are told to run the same task"
    for name, flow in after.flows.items():
        old, new = before.flows[name].plan, flow.plan
        assert new.epoch >= old.epoch
        for task_name, task in new.tasks.items():
            assert task.epoch <= new.epoch
            assert len({task.node, *task.standbys}) == 1 + len(task.standbys)
            was = old.tasks.get(task_name)
            if was is not None and was.node is not None and task.node != was.node:
                assert task.epoch > old.epoch, "a task changed hands under an old epoch"
        check_intents(before, after, name)
        read = [p for task in new.tasks.values() for p in task.partitions]
        assert len(read) == len(set(read)), "two tasks read one partition"
        readers = {
            p: (task.node, task_name)
            for task_name, task in old.tasks.items()
            for p in task.partitions
        }
        epochs = {p: task.epoch for task in old.tasks.values() for p in task.partitions}
        for task_name, task in new.tasks.items():
            for p in task.partitions if task.node else ():
                same = readers.get(p, (task.node, task_name)) == (task.node, task_name)
                assert task.epoch >= epochs.get(p, 0) + (0 if same else 1), (
                    "an old epoch for a partition"
                )


def check_journals(before: Snapshot, after: Snapshot) -> None:
    """A plan makes no replica in sync; only a lost primary stops leading, in a new term, and the
    primary always holds a replica."""
    for name, old in before.journals.items():
        new = after.journals[name]
        if new == old:
            continue
        assert name in before.journal_versions
        assert old.flow in before.mine
        assert new.primary in new.replicas
        assert set(new.leaving) <= set(new.replicas)
        assert (new.lineage, new.node, new.closed) == (old.lineage, old.node, old.closed)
        if new.primary == old.primary:
            assert (new.term, new.in_sync) == (old.term, old.in_sync)
            continue
        assert is_down(before.nodes.get(old.primary))
        assert before.nodes[new.primary].live
        assert new.term == old.term + 1
        left = [replica for replica in old.in_sync if node_of(replica) != old.primary]
        assert list(new.in_sync) == left
        assert new.primary in map(node_of, left)


def check_intents(before: Snapshot, after: Snapshot, name: str) -> None:
    """No partition that is read leaves a task whose batch is decided or unknown; after a handover
    no earlier owner can decide any more."""
    flow = before.flows[name]
    if not flow.by_batch or (flow.record.state == "deleted" and flow.record.discard):
        return
    for task_name, task in flow.tasks.items():
        now = after.flows[name].tasks.find(task_name)
        left = {
            partition
            for partition in set(task.partitions) - set(now.partitions if now else ())
            if before.is_open(name, partition) or partition in flow.partitions
        }
        if task.kind != COLLECT or (now is not None and not left):
            continue
        assert name in before.intents, "nobody knows whether a batch is decided"
        seen = before.intents[name].get(task_name, UNDECIDED)
        assert not seen.open, f"{left} leaves a task whose batch is decided"
        if left:
            fence = after.intents[name][task_name].record
            assert fence is not None
            assert fence.epoch > task.epoch, "an owner of before may decide"
            assert fence.epoch <= (now.epoch if now and now.node else after.flows[name].plan.epoch)


def nodes_obey(snapshot: Snapshot) -> Snapshot:
    """Every live node has applied its assignment and released its draining tasks."""
    obedient = {}
    for name, node in snapshot.nodes.items():
        version = node.assignment_version
        if node.live and isinstance(version, Version):
            tasks = {
                f"{task.flow}/{task.task}": TaskStatus(
                    epoch=task.epoch, revision=task.revision, state="running"
                )
                for task in node.assignment.tasks
                if task.state == "running"
            }
            status = NodeStatus(assignment_version=version.number, tasks=tasks)
            node = replace(node, status=status)  # noqa: PLW2901  the node as it is now
        obedient[name] = node
    return replace(snapshot, nodes=obedient)


def converge(snapshot: Snapshot) -> tuple[Snapshot, int]:
    """The state without further actions, and the number of tasks that changed hands."""
    moves = 0
    for _ in range(200):
        before = snapshot
        snapshot = nodes_obey(apply_all(snapshot))
        if snapshot == before:
            return snapshot, moves
        for name, flow in snapshot.flows.items():
            old = before.flows[name].plan.tasks
            moves += sum(
                old[key].node not in (None, task.node)
                for key, task in flow.plan.tasks.items()
                if key in old
            )
    raise AssertionError("the plan does not come to rest")
