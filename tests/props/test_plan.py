"""The planner's two laws, over random clusters: planning again after applying gives nothing, and
every prefix of the actions leaves a legal state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.plan import (
    Action,
    Assign,
    Drop,
    Forget,
    MarkAway,
    Planner,
    Replan,
    Revert,
    plan,
    together,
)
from flumeng.plan.applied import applied
from flumeng.spec import CollectPlace, IngestPlace, Place, Rollout, TaskRange
from flumeng.state.snapshot import UNDECIDED, FlowView, IntentView, NodeView, Snapshot
from flumeng.store import Version
from zkschema.records import (
    COLLECT,
    Cluster,
    Flow,
    Intent,
    Journal,
    Maintenance,
    MaintenanceLimits,
    Node,
    NodeStatus,
    Partition,
    Plan,
    PlannedTask,
    TaskStatus,
)

BOTH = ("ingest", "collect")
ROLES = st.sampled_from([BOTH, BOTH, BOTH, ("ingest",), ("collect",)])
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
            lost=not live and draw(st.booleans()),
            expired=not live and draw(st.integers(0, 3)) == 0,
            unmarked=draw(st.integers(0, 3)) == 0,
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
        other = replace(place, collect=replace(place.collect, labels=draw(FLOW_LABELS)))
        before = draw(st.sampled_from([None, other, replace(other, ingest=IngestPlace())]))
        views[name] = FlowView(
            name,
            record,
            Version(0),
            place,
            rollout=rollout,
            place_before=before,
            by_batch=draw(st.booleans()),
            pins=draw(st.sampled_from([True, True, False])),
            discovers=draw(st.booleans()),
        )
    return views


@st.composite
def discovered(draw: st.DrawFn, flow: FlowView) -> FlowView:
    """The flow with what a discovery task of it has found: most have none."""
    flow = replace(flow, proposed_tasks=draw(st.integers(0, 6)))
    if draw(st.integers(0, 2)):
        return replace(flow, partitions={}, weights={}, discovers=draw(st.booleans()))
    found = {
        f"p{number}@broker": Partition(
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
    """Of some flows, those of some tasks: open ones of the owner itself or of an earlier one."""
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
    """An empty plan, or one that an earlier and different cluster left behind."""
    fresh = Snapshot(
        flows=draw(flows()),
        nodes=draw(nodes()),
        journals={},
        drained=frozenset(),
        mine=frozenset(),
    )
    before = apply_all(replace(fresh, mine=frozenset(fresh.flows)))
    names = sorted(before.flows)
    journals = {
        f"j{number}": Journal(
            flow=draw(st.sampled_from(names)), node="n0", primary="n0", term=1, in_sync=("n0",)
        )
        for number in range(draw(st.integers(0, 6)) if names else 0)
    }
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
    """What the store would hold after the action's compare-and-set."""
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
    if isinstance(action, MarkAway | Revert):
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
    """No task is told to two nodes, no epoch goes back, and a new owner has a new epoch."""
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


def check_intents(before: Snapshot, after: Snapshot, name: str) -> None:
    """No partition that is to be read leaves a task whose batch is decided, or of which nobody can
    tell; and then no owner of before may decide any more."""
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


@given(snapshots())
@settings(max_examples=3 * settings().max_examples)
def test_planning_again_after_applying_gives_nothing(snapshot: Snapshot) -> None:
    settled = apply_all(snapshot)
    for _ in snapshot.cluster.throttles and settled.nodes:
        settled = apply_all(settled)  # a task that is moved while it starts makes room for another
    assert [action.why for action in plan(settled)] == []


@given(snapshots())
@settings(max_examples=3 * settings().max_examples)
def test_every_prefix_of_the_actions_is_legal(snapshot: Snapshot) -> None:
    state = snapshot
    for action in plan(snapshot):
        state = apply_one(state, action)
        check_legal(snapshot, state)


@st.composite
def ending_rollouts(draw: st.DrawFn) -> Snapshot:
    """All tasks of a flow have proven a revision with another place, when its journals and the
    nodes change."""

    def some_journals() -> dict[str, Journal]:
        journal = Journal(flow="f", node="n", primary="n", term=1, in_sync=())
        return {f"j{n}": journal for n in range(draw(st.sampled_from([0, 5, 40, 100])))}

    number = st.sampled_from([None, None, None, 3, RANGE])
    old, new = (
        Place(collect=CollectPlace(labels=draw(FLOW_LABELS), tasks=draw(number))) for _ in range(2)
    )
    view = FlowView("f", Flow(revision=1), Version(0), old)
    views = {
        name: NodeView(name, Node(uuid=name, roles=BOTH, labels=draw(NODE_LABELS)), live=True)
        for name in (f"n{number}" for number in range(6))
    }
    fresh = Snapshot({"f": view}, views, some_journals(), frozenset(), frozenset({"f"}))
    before = apply_all(fresh)
    view = before.flows["f"]
    tasks = {name: replace(task, revision=2) for name, task in view.tasks.items()}
    view = replace(
        view,
        record=Flow(revision=2),
        place=new,
        place_before=old,
        rollout=Rollout(),
        plan=replace(view.plan, tasks=tasks),
    )
    return replace(
        before,
        flows={"f": view},
        nodes={name: one for name, one in before.nodes.items() if draw(st.integers(0, 4))},
        journals=some_journals(),
        settled=frozenset(f"f/{name}" for name in tasks),
    )


@given(ending_rollouts())
@settings(max_examples=3 * settings().max_examples)
def test_the_end_of_a_rollout_is_legal_and_all_of_it(snapshot: Snapshot) -> None:
    state = snapshot
    for action in plan(snapshot):
        state = apply_one(state, action)
        check_legal(snapshot, state)
    flow = state.flows["f"]
    read = {name for task in flow.tasks.values() for name in task.partitions}
    assert flow.plan.revision == 1 or read == state.journals.keys()


@given(snapshots(), st.randoms(use_true_random=False))
@settings(max_examples=3 * settings().max_examples)
def test_of_what_is_carried_out_together_any_part_is_legal(
    snapshot: Snapshot, random: Random
) -> None:
    state = snapshot
    for group in together(plan(snapshot)):
        done = [action for action in group if random.random() < 0.7]
        partly = state
        for action in random.sample(done, len(done)):
            partly = apply_one(partly, action)
            check_legal(snapshot, partly)
        for action in group:
            state = apply_one(state, action)


@given(snapshots())
@settings(max_examples=3 * settings().max_examples)
def test_every_open_partition_is_read_where_that_is_possible(snapshot: Snapshot) -> None:
    settled = apply_all(snapshot)
    for flow in settled.flows.values():
        ends = flow.record.state in ("stopped", "deleted")
        if flow.name not in settled.mine or flow.record.state == "suspended":
            continue
        if ends and (flow.record.discard or not settled.owes(flow.name)):
            continue
        if flow.by_batch and flow.name not in settled.intents and not flow.tasks:
            continue
        read = {name for task in flow.plan.tasks.values() for name in task.partitions}
        assert read >= set(settled.open_of(flow.name))


@given(snapshots())
@settings(max_examples=2 * settings().max_examples)
def test_a_flow_of_another_master_is_left_alone(snapshot: Snapshot) -> None:
    settled = apply_all(snapshot)
    for name in set(snapshot.flows) - snapshot.mine:
        assert settled.flows[name] == snapshot.flows[name]


@given(snapshots())
@settings(max_examples=3 * settings().max_examples)
def test_every_task_has_as_many_standbys_as_there_are_nodes_for_them(snapshot: Snapshot) -> None:
    """Of flows that are under way; in another zone as long as one has a node for it."""
    settled = apply_all(replace(snapshot, flows=without_rollouts(snapshot)))
    for flow in (settled.flows[name] for name in settled.mine & settled.flows.keys()):
        assert flow.place is not None
        place = flow.place.collect
        for task in flow.tasks.values():
            may = {
                name: node.record.zone
                for name, node in settled.nodes.items()
                if node.live and node.eligible(COLLECT, place.labels) and name != task.node
            }
            kept = {name for name in task.standbys if not settled.nodes[name].live}
            assert all(settled.nodes[name].lost is False for name in kept)
            wanted = place.replicas - 1 if task.kind == COLLECT and task.node else 0
            assert len(task.standbys) >= min(wanted, len(may))
            assert len(task.standbys) <= wanted
            assert may.keys() | kept >= set(task.standbys)
            owner = settled.nodes.get(task.node or "")
            zone = owner.record.zone if owner else ""
            apart = {name for name, other in may.items() if other != zone}
            near = [name for name in task.standbys if settled.nodes[name].record.zone == zone]
            assert not near or apart <= set(task.standbys)


def without_rollouts(snapshot: Snapshot) -> dict[str, FlowView]:
    return {name: replace(flow, rollout=None) for name, flow in snapshot.flows.items()}


def one_task(owner_live: bool, lost: bool = False, desired: str = "active") -> Snapshot:
    """A flow whose one collect task is with ``a`` while ``b`` could take it."""
    settled = apply_all(
        Snapshot(
            flows={"f": FlowView("f", Flow(revision=1), Version(0), Place())},
            nodes={
                name: NodeView(name, Node(uuid=name, roles=("collect",)), name == "a")
                for name in ("a", "b")
            },
            journals={},
            drained=frozenset(),
            mine=frozenset({"f"}),
        )
    )
    a, b = settled.nodes["a"], settled.nodes["b"]
    a = replace(a, live=owner_live, lost=lost, record=replace(a.record, desired=desired))
    return replace(settled, nodes={"a": a, "b": replace(b, live=True)})


def owner(snapshot: Snapshot) -> tuple[str | None, int]:
    task = snapshot.flows["f"].plan.tasks[f"{COLLECT}.0"]
    return task.node, task.epoch


def test_a_task_moves_only_when_its_owner_is_gone_for_the_grace_period() -> None:
    assert owner(apply_all(one_task(owner_live=True))) == ("a", 1)
    assert owner(apply_all(one_task(owner_live=False))) == ("a", 1)
    assert owner(apply_all(one_task(owner_live=False, lost=True))) == ("b", 2)


def test_a_draining_owner_keeps_the_task_until_it_has_let_go() -> None:
    marked = apply_all(one_task(owner_live=True, desired="draining"))
    assert owner(marked) == ("a", 1)
    assert marked.nodes["a"].assignment.tasks[0].state == "draining"
    version = marked.nodes["a"].assignment_version
    assert isinstance(version, Version)

    def said(tasks: dict[str, TaskStatus], of_version: int) -> Snapshot:
        status = NodeStatus(assignment_version=of_version, tasks=tasks)
        return replace(
            marked, nodes={**marked.nodes, "a": replace(marked.nodes["a"], status=status)}
        )

    running = {"f/collect.0": TaskStatus(epoch=1, revision=1, state="running")}
    assert owner(apply_all(said(running, version.number))) == ("a", 1)
    assert owner(apply_all(said({}, version.number - 1))) == ("a", 1), "it has not seen the mark"
    assert owner(apply_all(said({}, version.number))) == ("b", 3)

    late = replace(said(running, version.number), overdue=frozenset({"f/collect.0"}))
    assert owner(apply_all(late)) == ("b", 3), "past the deadline it is taken anyway"


def test_what_its_owner_let_go_and_nobody_else_may_run_goes_back_and_is_at_rest() -> None:
    reads = Journal(flow="f", node="a", primary="a", term=1, in_sync=("a",))
    settled = replace(one_task(owner_live=True), journals={"j": reads})
    settled = apply_all(settled)
    a, b = settled.nodes["a"], settled.nodes["b"]
    a = replace(a, record=replace(a.record, desired="draining"))
    let_go = nodes_obey(apply_all(replace(settled, nodes={"a": a, "b": b})))
    alone = replace(let_go, nodes={**let_go.nodes, "b": replace(b, live=False)})
    after = apply_all(alone)
    assert owner(after)[0] == "a"
    assert plan(after) == []


def nodes_obey(snapshot: Snapshot) -> Snapshot:
    """Every live node has applied its assignment and let go of what drains."""
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
    """The state in which nothing is left to do, and how many tasks changed hands."""
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


def loads(snapshot: Snapshot) -> dict[str, int]:
    counts = dict.fromkeys(snapshot.nodes, 0)
    for flow in snapshot.flows.values():
        for task in flow.plan.tasks.values():
            if task.kind == COLLECT and task.node:
                counts[task.node] += 1
    return counts


def collectors(count: int, live: int) -> Snapshot:
    place = Place(collect=CollectPlace(tasks=12))
    return Snapshot(
        flows={"f": FlowView("f", Flow(revision=1), Version(0), place)},
        nodes={
            f"n{number}": NodeView(
                f"n{number}", Node(uuid="u", roles=("collect",)), live=number < live
            )
            for number in range(count)
        },
        journals={},
        drained=frozenset(),
        mine=frozenset({"f"}),
    )


def test_a_journal_that_changes_tasks_is_read_under_a_higher_epoch() -> None:
    """The acks refuse a lower epoch: the new reader could never claim them."""
    snapshot = collectors(2, live=2)
    journals = {
        f"j{number:02d}": Journal(flow="f", node="n0", primary="n0", term=1, in_sync=("n0",))
        for number in range(24)
    }
    before, _ = converge(replace(snapshot, journals=journals))
    fewer = replace(before.flows["f"], place=Place(collect=CollectPlace(tasks=3)))
    after = apply_all(replace(before, flows={"f": fewer}))
    check_legal(before, after)
    assert sum(len(task.partitions) for task in after.flows["f"].plan.tasks.values()) == 24


def test_nodes_that_join_get_their_share_with_the_least_movement() -> None:
    settled, _ = converge(collectors(4, live=2))
    assert loads(settled) == {"n0": 6, "n1": 6, "n2": 0, "n3": 0}
    joined = {name: replace(node, live=True) for name, node in settled.nodes.items()}
    settled, moves = converge(replace(settled, nodes=joined))
    assert loads(settled) == {"n0": 3, "n1": 3, "n2": 3, "n3": 3}
    assert moves == 6


def test_a_node_that_leaves_moves_only_its_own_tasks() -> None:
    settled, _ = converge(collectors(4, live=4))
    left = {**settled.nodes, "n3": replace(settled.nodes["n3"], live=False, lost=True)}
    settled, moves = converge(replace(settled, nodes=left))
    assert loads(settled) == {"n0": 4, "n1": 4, "n2": 4, "n3": 0}
    assert moves == 3


def test_balance_moves_are_throttled_and_wait_until_everything_is_owned() -> None:
    settled, _ = converge(collectors(4, live=2))
    joined = replace(
        settled, nodes={name: replace(node, live=True) for name, node in settled.nodes.items()}
    )

    def draining(snapshot: Snapshot) -> int:
        tasks = apply_all(snapshot).flows["f"].plan.tasks.values()
        return sum(task.state == "draining" for task in tasks)

    assert draining(joined) == 1
    assert draining(replace(joined, balance_moves=4)) == 4
    orphan = Flow(revision=1)
    nowhere = Place(collect=CollectPlace(labels={"role": "none"}))
    flows = {**joined.flows, "g": FlowView("g", orphan, Version(0), nowhere)}
    unowned = replace(joined, flows=flows, mine=frozenset({"f", "g"}))
    assert draining(unowned) == 0


@given(snapshots())
def test_every_cluster_comes_to_rest(snapshot: Snapshot) -> None:
    everything = replace(snapshot, mine=frozenset(snapshot.flows), drained=frozenset())
    settled, _ = converge(everything)
    assert plan(settled) == []


def test_a_suspended_flow_goes_on_receiving_and_a_stopped_one_goes_on_collecting() -> None:
    settled = apply_all(one_task(owner_live=True))
    both = Node(uuid="a", roles=("ingest", "collect"))
    journal = Journal(flow="f", node="a", primary="a", term=1, in_sync=("a",))
    settled = apply_all(
        replace(
            settled,
            nodes={"a": replace(settled.nodes["a"], record=both)},
            journals={"j": journal},
        )
    )

    def names(state: str) -> list[str]:
        flow = settled.flows["f"]
        changed = replace(flow, record=replace(flow.record, state=state))
        after = apply_all(replace(settled, flows={"f": changed}))
        return [task.task for task in after.nodes["a"].assignment.tasks]

    assert names("running") == ["collect.0", "ingest.a"]
    assert names("suspended") == ["ingest.a"]
    assert names("stopped") == ["collect.0"]


def test_an_unreadable_revision_changes_nothing() -> None:
    settled = apply_all(one_task(owner_live=True))
    broken = replace(settled.flows["f"], place=None, problem="line 1: nonsense")
    assert plan(replace(settled, flows={"f": broken})) == []


def test_what_is_to_end_ends_although_its_revision_cannot_be_read() -> None:
    """Nobody can correct a flow that is being deleted."""
    settled = apply_all(one_task(owner_live=True))
    both = replace(settled.nodes["a"], record=Node(uuid="a", roles=("ingest", "collect")))
    journal = Journal(flow="f", node="a", primary="a", term=1, in_sync=("a",))
    settled = apply_all(replace(settled, nodes={"a": both}, journals={"j": journal}))

    def ended(state: str, *, discard: bool = False) -> Snapshot:
        flow = settled.flows["f"]
        record = replace(flow.record, state=state, discard=discard)
        broken = replace(flow, record=record, place=None, problem="line 1: nonsense")
        return apply_all(replace(settled, flows={"f": broken}))

    assert list(ended("suspended").flows["f"].tasks) == ["ingest.a"]
    assert list(ended("stopped").flows["f"].tasks) == ["collect.0"]
    drained = replace(ended("deleted"), drained=frozenset({"j"}))
    assert converge(drained)[0].flows == {}
    away = NodeView("b", both.record, live=False, assignment_version=Version(0))
    waits = replace(drained, nodes={**drained.nodes, "b": away})
    assert converge(waits)[0].flows, "b may hold a journal that it could not tell of"
    assert apply_all(ended("deleted", discard=True)).flows == {}


def test_a_deleted_flow_goes_only_when_its_journals_are_drained_and_nothing_runs() -> None:
    settled = apply_all(one_task(owner_live=True))
    flow = settled.flows["f"]
    journal = Journal(flow="f", node="a", primary="a", term=1, in_sync=("a",))
    deleted = replace(
        settled,
        flows={"f": replace(flow, record=replace(flow.record, state="deleted"))},
        journals={"j": journal},
    )
    waiting = apply_all(deleted)
    assert waiting.flows["f"].plan.tasks[f"{COLLECT}.0"].partitions == ("j",)
    acked = replace(waiting, drained=frozenset({"j"}))
    committing = apply_all(replace(acked, committing=frozenset({"f"})))
    assert committing.flows["f"].plan.tasks, "a decided commit has nobody left to finish it"
    drained = apply_all(acked)
    assert drained.flows == {} or drained.flows["f"].plan.tasks == {}
    assert apply_all(drained).flows == {}


def test_an_empty_plan_is_written_once() -> None:
    flow = FlowView("f", Flow(revision=1), Version(0), Place(), plan=Plan())
    snapshot = Snapshot({"f": flow}, {}, {}, frozenset(), frozenset({"f"}))
    assert plan(apply_all(snapshot)) == []


# -- batches that are decided and not acked


@st.composite
def deciding(draw: st.DrawFn) -> list[Snapshot]:
    """A flow whose tasks decide batches, while the number of its tasks, its state, its journals,
    what was discovered and the nodes change."""
    journal = Journal(flow="f", node="n0", primary="n0", term=1, in_sync=())
    number = st.sampled_from([None, None, 1, 2, 3, 5, RANGE])

    def place() -> Place:
        return Place(collect=CollectPlace(tasks=draw(number)))

    def some_journals() -> dict[str, Journal]:
        return {f"j{n}": journal for n in range(draw(st.sampled_from([1, 3, 9, 90])))}

    views = {
        name: NodeView(name, Node(uuid=name, roles=BOTH), live=True)
        for name in (f"n{n}" for n in range(draw(st.integers(1, 6))))
    }
    flow = FlowView("f", Flow(revision=1), Version(0), place(), by_batch=True)
    fresh = Snapshot({"f": flow}, views, some_journals(), frozenset(), frozenset({"f"}))
    seen = [nodes_obey(apply_all(fresh))]
    for _ in range(draw(st.integers(1, 4))):
        now = seen[-1]
        kinds = ["place", "place", "state", "journals", "node", "ends", "ends", "none"]
        what = draw(st.sampled_from(kinds))
        if "f" in now.flows and what in ("place", "state"):
            view = now.flows["f"]
            states = ["running", "suspended", "stopped", "deleted"]
            state = draw(st.sampled_from(states)) if what == "state" else view.record.state
            proposed = draw(st.integers(0, 6))
            view = replace(view, record=replace(view.record, state=state), proposed_tasks=proposed)
            now = replace(now, flows={"f": replace(view, place=place())})
        if what == "journals":
            now = replace(now, journals=some_journals())
        if what == "ends" and now.flows:
            found = {
                f"p{n}@broker": Partition(end=draw(st.sampled_from([None, 7]))) for n in range(5)
            }
            ending = {f"f/{name}" for name, one in found.items() if one.end is not None}
            drained = frozenset(name for name in ending if draw(st.booleans()))
            flow = replace(now.flows["f"], partitions=found, discovers=True)
            now = replace(now, flows={"f": flow}, drained=drained)
        if what == "node":
            name = draw(st.sampled_from(sorted(now.nodes)))
            live = draw(st.booleans())
            wanted = replace(now.nodes[name].record, desired=draw(DESIRED))
            later = replace(now.nodes[name], live=live, lost=not live, record=wanted)
            now = replace(now, nodes={**now.nodes, name: later})
        late = [f"f/{name}" for name in now.flows["f"].draining] if now.flows else []
        overdue = frozenset(name for name in late if draw(st.integers(0, 3)) == 0)
        now = replace(now, overdue=overdue, intents=draw(intents(now.flows)))
        seen.append(now)
        if draw(st.booleans()):
            seen.append(nodes_obey(apply_all(now)))
    return seen


DESIRED = st.sampled_from(["active", "active", "draining"])


@given(deciding())
@settings(max_examples=5 * settings().max_examples)
def test_no_journal_leaves_a_task_whose_batch_is_decided(seen: list[Snapshot]) -> None:
    for snapshot in seen:
        state = snapshot
        for action in plan(snapshot):
            state = apply_one(state, action)
            check_legal(snapshot, state)
        timely = replace(state, overdue=frozenset())  # who drains now has just begun to
        assert [action.why for action in plan(timely)] == []


@given(deciding())
@settings(max_examples=5 * settings().max_examples)
def test_a_planner_that_remembers_holds_the_same_tasks(seen: list[Snapshot]) -> None:
    planner = Planner()
    for snapshot in seen:
        anew = Planner()
        assert planner.plan(snapshot) == anew.plan(snapshot)
        assert planner.held == anew.held


# -- planning from the differences


@st.composite
def histories(draw: st.DrawFn) -> list[Snapshot]:
    """What one master sees in a row: changes of every kind, and its own and others' writes."""
    seen = [draw(snapshots())]
    for _ in range(draw(st.integers(1, 6))):
        seen.append(draw(changed(seen[-1])))
    return seen


@st.composite
def changed(draw: st.DrawFn, before: Snapshot) -> Snapshot:
    """The snapshot after one more thing has happened."""
    what = draw(
        st.sampled_from(
            [
                *("obey", "write", "write some", "node", "node", "flow", "journals", "mine"),
                *("cluster", "intents", "intents", "discovery", "discovery"),
            ]
        )
    )
    if what == "intents":
        return replace(before, intents=draw(intents(before.flows)))
    if what == "obey":
        obeyed = nodes_obey(before)
        running = [k for n in obeyed.nodes.values() if n.status for k in n.status.tasks]
        return replace(obeyed, settled=frozenset(k for k in running if draw(st.booleans())))
    if what in ("write", "write some"):
        actions = plan(before)
        number = len(actions) if what == "write" else draw(st.integers(0, len(actions)))
        for action in actions[:number]:
            before = apply_one(before, action)
        return before
    if what == "node":
        later = draw(nodes())
        name = draw(st.sampled_from(sorted(later)))
        old = before.nodes.get(name)
        new = later[name]
        if old is not None:
            new = replace(
                new,
                assignment=old.assignment,
                assignment_version=old.assignment_version,
                status=old.status,
            )
        return replace(before, nodes={**before.nodes, name: new})
    if what == "flow" and before.flows:
        name = draw(st.sampled_from(sorted(before.flows)))
        new_flow = next(iter(draw(flows()).values()))
        flow = replace(
            before.flows[name],
            record=new_flow.record,
            place=new_flow.place,
            place_before=new_flow.place_before,
            rollout=new_flow.rollout,
            by_batch=new_flow.by_batch,
            pins=new_flow.pins,
            discovers=new_flow.discovers or bool(before.flows[name].partitions),
        )
        return replace(before, flows={**before.flows, name: flow})
    if what == "journals":
        fresh = draw(snapshots())
        known = {n: j for n, j in fresh.journals.items() if j.flow in before.flows}
        others = {name for name in before.drained if "/" in name}
        return replace(before, journals=known, drained=fresh.drained & known.keys() | others)
    if what == "discovery" and before.flows:
        name = draw(st.sampled_from(sorted(before.flows)))
        flow = draw(discovered(before.flows[name]))
        gone = {f"{name}/{p}" for p in before.flows[name].ending}
        drained = {f"{name}/{p}" for p in flow.ending if draw(st.booleans())}
        flows_now = {**before.flows, name: flow}
        return replace(before, flows=flows_now, drained=before.drained - gone | drained)
    if what == "mine":
        mine = [name for name in before.flows if draw(st.booleans())]
        return replace(before, mine=frozenset(mine))
    if what == "cluster":
        maintenance = draw(st.sampled_from([None, Maintenance(who="a", why="b", since=0.0)]))
        chokes = draw(st.sampled_from([{}, {"f0": 1000.0}, {"f0@n1": 5.0}]))
        throttles = draw(st.sampled_from([{}, {"recovery": 0}, {"recovery": 2}]))
        cluster = replace(
            before.cluster, maintenance=maintenance, chokes=chokes, throttles=throttles
        )
        return replace(before, cluster=cluster, balance_moves=draw(st.integers(0, 3)))
    return before


@given(histories())
@settings(max_examples=4 * settings().max_examples)
def test_a_planner_that_remembers_decides_as_one_that_does_not(seen: list[Snapshot]) -> None:
    planner = Planner()
    for snapshot in seen:
        anew = Planner()
        assert planner.plan(snapshot) == anew.plan(snapshot)
        assert planner.held == anew.held
