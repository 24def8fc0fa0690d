"""What the planner does with weights, capacities, zones, throttles, rollouts and maintenance."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from flumeng.plan import Action, Assign, Drop, Forget, Maintain, Planner, Replan, Revert, plan
from flumeng.plan.applied import applied
from flumeng.plan.capacity_index import CapacityIndex
from flumeng.plan.steps import steps
from flumeng.spec import CollectPlace, IngestPlace, Place, Rollout, TaskRange
from flumeng.state.snapshot import FlowView, NodeView, Snapshot
from flumeng.state.task_map import BUCKETS, Tasks
from flumeng.store import Unreadable, Version
from zkschema import paths
from zkschema.records import (
    COLLECT,
    INGEST,
    Assignment,
    Cluster,
    Flow,
    Journal,
    Maintenance,
    Node,
    NodeStatus,
    Partition,
    Plan,
    PlannedTask,
    TaskStatus,
)

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
    """Every live node runs what it was told; the node ``failing`` fails with all it has."""
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


def at_rest(snapshot: Snapshot) -> Snapshot:
    for _ in range(100):
        actions = plan(snapshot)
        if not actions:
            return snapshot
        snapshot = obeyed(carried_out(snapshot, actions))
    raise AssertionError("the plan does not come to rest")


def owners(snapshot: Snapshot, name: str = "f") -> Counter[str | None]:
    tasks = snapshot.flows[name].tasks.values()
    return Counter(task.node for task in tasks if task.kind == COLLECT)


# -- partitions that a discovery task has found


def found(view: FlowView, *names: str, **ends: int) -> FlowView:
    """``view`` with these partitions; ``ends`` are of those that take no more."""
    known = {name: Partition(end=ends.get(name.partition("@")[0])) for name in names}
    return replace(view, partitions=known)


def reads(snapshot: Snapshot, name: str = "f") -> list[tuple[str, ...]]:
    return [task.partitions for task in snapshot.flows[name].tasks.values()]


def seen_by(planner: Planner, snapshot: Snapshot) -> Snapshot:
    """What ``planner`` makes of it, which is what one makes that has just begun."""
    actions = planner.plan(snapshot)
    assert actions == plan(snapshot)
    return carried_out(snapshot, actions)


def test_journals_and_what_was_discovered_are_shared_out_together() -> None:
    view = found(flow(tasks=2), "p0@broker", "p1@broker")
    settled = at_rest(cluster([view], [node("a"), node("b")], journals=journals(2)))
    assert reads(settled) == [("j000", "p0@broker"), ("j001", "p1@broker")]


def test_two_flows_read_partitions_of_the_same_name() -> None:
    views = [found(flow(name), "p0@broker", p0=3) for name in ("f", "g")]
    settled = at_rest(cluster(views, [node("a")]))
    assert reads(settled, "f") == reads(settled, "g") == [("p0@broker",)]
    one_is_done = at_rest(replace(settled, drained=frozenset({"f/p0@broker"})))
    assert (reads(one_is_done, "f"), reads(one_is_done, "g")) == ([()], [("p0@broker",)])


def test_a_partition_that_is_found_later_joins_and_moves_no_other() -> None:
    planner = Planner()
    view = found(flow(tasks=2), "p0@broker", "p1@broker", "p2@broker")
    settled = cluster([view], [node("a"), node("b")])
    for _ in range(3):
        settled = seen_by(planner, obeyed(settled))
    assert reads(settled) == [("p0@broker", "p2@broker"), ("p1@broker",)]
    names = [*settled.flows["f"].partitions, "p3@broker"]
    settled = replace(settled, flows={"f": found(settled.flows["f"], *names)})
    settled = seen_by(planner, settled)
    assert reads(settled) == [("p0@broker", "p2@broker"), ("p1@broker", "p3@broker")]


def test_one_that_takes_no_more_is_read_until_it_is_drained() -> None:
    planner = Planner()
    view = found(flow(tasks=1), "p0@broker", "p1@broker", p0=3)
    settled = cluster([view], [node("a")])
    for _ in range(3):
        settled = seen_by(planner, obeyed(settled))
    assert reads(settled) == [("p0@broker", "p1@broker")]
    settled = seen_by(planner, replace(settled, drained=frozenset({"f/p0@broker"})))
    assert reads(settled) == [("p1@broker",)]
    gone = replace(settled, flows={"f": found(settled.flows["f"], "p1@broker")})
    assert reads(seen_by(planner, replace(gone, drained=frozenset()))) == [("p1@broker",)]


def test_a_flow_that_ends_owes_nothing_of_what_others_keep() -> None:
    view = found(flow(tasks=1), "p0@broker")
    settled = at_rest(cluster([view], [node("a")], journals=journals(1)))
    stopped = replace(settled.flows["f"], record=Flow(revision=1, state="stopped"))
    ending = at_rest(replace(settled, flows={"f": stopped}))
    assert reads(ending) == [("j000", "p0@broker")], "its journal is read to its end"
    assert reads(at_rest(replace(ending, drained=frozenset({"j000"})))) == []


# -- weights and capacities


def test_a_node_with_twice_the_slots_gets_twice_the_tasks() -> None:
    settled = at_rest(cluster([flow(tasks=12)], [node("a", slots=8), node("b", slots=16)]))
    assert owners(settled) == {"a": 4, "b": 8}


def test_no_node_gets_more_than_it_declares_in_any_dimension() -> None:
    heavy = flow(tasks=6, weight={"slots": 1.0, "mb_per_second": 50.0})
    nodes = [node("a", slots=10, mb_per_second=100), node("b", slots=1, mb_per_second=1000)]
    settled = at_rest(cluster([heavy], nodes))
    assert owners(settled) == {"a": 2, "b": 1, None: 3}
    waiting = [task for task in settled.flows["f"].tasks.values() if task.node is None]
    assert {task.why for task in waiting} == {"no node has room for it"}
    more = replace(settled, nodes={**settled.nodes, "c": node("c")})
    assert owners(at_rest(more))[None] == 0, "the tasks that waited do not get the new room"


def test_the_heaviest_tasks_are_placed_first_and_the_load_comes_out_even() -> None:
    weights = {f"j{number:03d}": {"slots": float(1 + number % 4)} for number in range(40)}
    view = replace(flow(tasks=40), weights=weights)
    settled = at_rest(cluster([view], [node("a"), node("b"), node("c")], journals=journals(40)))
    loads: Counter[str] = Counter()
    for task in settled.flows["f"].tasks.values():
        loads[task.node or ""] += settled.flows["f"].weight(task.partitions)[0][1]
    assert max(loads.values()) - min(loads.values()) <= 1000


def test_tasks_of_one_flow_are_kept_apart() -> None:
    settled = at_rest(cluster([flow(tasks=3, per_node=1)], [node("a"), node("b")]))
    assert owners(settled) == {"a": 1, "b": 1, None: 1}


def test_tasks_are_spread_over_zones_before_nodes() -> None:
    nodes = [node("a1", "a"), node("a2", "a"), node("a3", "a"), node("b1", "b")]
    assert owners(at_rest(cluster([flow(tasks=4, spread="zone")], nodes)))["b1"] == 2
    assert owners(at_rest(cluster([flow(tasks=4)], nodes)))["b1"] == 1


def test_a_zone_that_comes_back_gets_its_share() -> None:
    settled = at_rest(cluster([flow(tasks=6, spread="zone")], [node("a1", "a"), node("a2", "a")]))
    more = replace(settled, nodes={**settled.nodes, "b1": node("b1", "b")})
    assert owners(at_rest(more)) == {"a1": 1, "a2": 2, "b1": 3} or owners(at_rest(more)) == {
        "a1": 2,
        "a2": 1,
        "b1": 3,
    }


def test_tasks_that_are_added_get_their_share_of_the_journals() -> None:
    settled = at_rest(cluster([flow(tasks=1)], [node("a"), node("b")], journals=journals(10)))
    more = replace(settled.flows["f"], place=Place(collect=CollectPlace(tasks=4)))
    after = at_rest(replace(settled, flows={"f": more}))
    tasks = after.flows["f"].tasks
    assert sorted(len(task.partitions) for task in tasks.values()) == [2, 2, 3, 3]
    stayed = set(tasks["collect.0"].partitions) & set(
        settled.flows["f"].tasks["collect.0"].partitions
    )
    assert len(stayed) == 3


# -- as many tasks as the events need


def scaled(proposed: int, least: int = 2, most: int = 8) -> FlowView:
    view = flow(tasks=TaskRange(min=least, max=most))
    names = (f"p{number:02d}@broker" for number in range(40))
    return replace(found(view, *names), proposed_tasks=proposed)


def collect_tasks(snapshot: Snapshot) -> dict[str, PlannedTask]:
    return {n: t for n, t in snapshot.flows["f"].tasks.items() if t.kind == COLLECT}


def test_the_proposed_number_counts_within_its_range() -> None:
    nodes = [node("a"), node("b")]
    counts = {
        proposed: len(collect_tasks(at_rest(cluster([scaled(proposed)], nodes))))
        for proposed in (0, 1, 5, 9)
    }
    assert counts == {0: 2, 1: 2, 5: 5, 9: 8}


def test_until_a_number_is_proposed_the_tasks_that_are_there_stay() -> None:
    settled = at_rest(cluster([replace(scaled(0), place=flow(tasks=5).place)], [node("a")]))
    ranged = replace(settled.flows["f"], place=scaled(0).place)
    assert len(collect_tasks(at_rest(replace(settled, flows={"f": ranged})))) == 5


def test_a_fifth_task_takes_only_what_it_needs_and_no_task_stops_for_it() -> None:
    """Druid's scaling stops every task."""
    planner = Planner()
    settled = cluster([scaled(4)], [node("a"), node("b")])
    for _ in range(4):
        settled = seen_by(planner, obeyed(settled))
    before = collect_tasks(settled)
    assert [len(task.partitions) for task in before.values()] == [10, 10, 10, 10]
    five = replace(settled.flows["f"], proposed_tasks=5)
    after = collect_tasks(seen_by(planner, obeyed(replace(settled, flows={"f": five}))))
    assert [len(task.partitions) for task in after.values()] == [8, 8, 8, 8, 8]
    for name, task in before.items():
        kept = after[name]
        assert set(kept.partitions) < set(task.partitions)
        assert (kept.node, kept.epoch, kept.state) == (task.node, task.epoch, "assigned")


def test_one_task_less_moves_only_what_it_read() -> None:
    settled = at_rest(cluster([scaled(5)], [node("a"), node("b")]))
    four = replace(settled.flows["f"], proposed_tasks=4)
    after = collect_tasks(at_rest(replace(settled, flows={"f": four})))
    assert all(
        set(collect_tasks(settled)[name].partitions) < set(task.partitions)
        for name, task in after.items()
    )
    assert sum(len(task.partitions) for task in after.values()) == 40


def test_in_maintenance_mode_the_number_stays() -> None:
    settled = at_rest(cluster([scaled(4)], [node("a")]))
    mode = Cluster(maintenance=Maintenance(who="m", why="w", since=0.0))
    six = replace(settled.flows["f"], proposed_tasks=6)
    asked = replace(settled, cluster=mode, flows={"f": six})
    assert len(collect_tasks(at_rest(asked))) == 4
    assert len(collect_tasks(at_rest(replace(asked, cluster=Cluster())))) == 6


# -- draining


def wanted(snapshot: Snapshot, name: str, desired: str) -> Snapshot:
    view = snapshot.nodes[name]
    changed = replace(view, record=replace(view.record, desired=desired))
    return replace(snapshot, nodes={**snapshot.nodes, name: changed})


def test_the_last_collector_goes_on_until_everything_is_read() -> None:
    settled = at_rest(cluster([flow()], [node("a")], journals=journals(2)))
    drained = at_rest(wanted(settled, "a", "draining"))
    (kept,) = drained.flows["f"].tasks.values()
    assert (kept.node, kept.state, kept.why) == ("a", "assigned", "no other node may run it")
    joined = at_rest(replace(drained, nodes={**drained.nodes, "b": node("b")}))
    assert owners(joined) == {"b": 1}, "the newcomer does not take it"
    read = at_rest(replace(drained, drained=frozenset(journals(2))))
    (empty,) = read.flows["f"].tasks.values()
    assert (empty.state, empty.partitions) == ("draining", ())


def test_a_task_that_was_let_go_for_nobody_goes_back_to_its_owner() -> None:
    settled = at_rest(cluster([flow()], [node("a"), node("b")], journals=journals(2)))
    (task,) = settled.flows["f"].tasks.values()
    assert task.node is not None
    other = "b" if task.node == "a" else "a"
    let_go = obeyed(carried_out(wanted(settled, task.node, "draining")))
    gone = replace(let_go.nodes[other], live=False, lost=True)
    alone = at_rest(replace(let_go, nodes={**let_go.nodes, other: gone}))
    (back,) = alone.flows["f"].tasks.values()
    assert (back.node, back.state, back.epoch > task.epoch) == (task.node, "assigned", True)


# -- throttles


def draining(snapshot: Snapshot) -> list[PlannedTask]:
    return [
        task
        for view in snapshot.flows.values()
        for task in view.tasks.values()
        if task.state == "draining"
    ]


def test_moves_are_throttled_by_cluster_node_and_flow() -> None:
    settled = at_rest(cluster([flow("f", tasks=8), flow("g", tasks=8)], [node("a"), node("b")]))
    grown = {name: node(name) for name in ("c", "d")}
    joined = replace(settled, nodes={**settled.nodes, **grown}, balance_moves=8)

    def begun(**throttles: int) -> list[PlannedTask]:
        return draining(carried_out(replace(joined, cluster=Cluster(throttles=throttles))))

    assert len(begun()) == 8
    assert len(begun(balance_per_node=1)) == 2
    assert len(begun(balance_per_flow=1)) == 2
    assert not draining(carried_out(replace(joined, balance_moves=0)))


def test_no_move_is_begun_while_a_task_has_no_live_owner() -> None:
    settled = at_rest(cluster([flow(tasks=8)], [node("a"), node("b")]))
    away = replace(settled.nodes["a"], live=False)
    joined = replace(settled, nodes={"a": away, "b": settled.nodes["b"], "c": node("c")})
    assert not draining(carried_out(joined))
    back = replace(joined, nodes={**joined.nodes, "a": replace(away, live=True)})
    assert len(draining(carried_out(back))) == 1


# -- rollouts


def rolling(*, failing: str = "", canary: int = 1, max_parallel: int = 2) -> Snapshot:
    """Revision 2 of a flow of six tasks was applied, and one step of its rollout taken."""
    settled = at_rest(cluster([flow(tasks=6)], [node("a"), node("b"), node("c")]))
    assert settled.flows["f"].plan.revision == 1
    applied_ = replace(
        settled.flows["f"],
        record=Flow(revision=2),
        version=Version(1),
        rollout=Rollout(canary=canary, max_parallel=max_parallel),
    )
    begun = replace(settled, flows={"f": applied_})
    return obeyed(carried_out(begun), failing)


def told(snapshot: Snapshot) -> Counter[int]:
    return Counter(t.revision for view in snapshot.nodes.values() for t in view.assignment.tasks)


def all_settled(snapshot: Snapshot) -> Snapshot:
    keys = (key for view in snapshot.nodes.values() if view.status for key in view.status.tasks)
    return replace(snapshot, settled=frozenset(keys))


def proven(snapshot: Snapshot) -> Snapshot:
    """What runs its flow's current revision now has done so for long enough."""
    keys = (
        key
        for view in snapshot.nodes.values()
        for key, said in (view.status.tasks.items() if view.status else ())
        if said.revision == snapshot.flows["f"].record.revision
    )
    return replace(snapshot, settled=frozenset(keys))


def test_a_revision_goes_to_the_canary_then_in_waves() -> None:
    state = rolling()
    assert told(state) == {1: 5, 2: 1}
    assert plan(state) == [], "the canary has not run it long enough"
    seen = []
    for _ in range(6):
        state = obeyed(carried_out(all_settled(state)))
        seen.append(told(state)[2])
    assert seen == [3, 5, 6, 6, 6, 6]
    assert state.flows["f"].plan.revision == 2


def test_a_canary_that_fails_takes_the_flow_back() -> None:
    state = rolling(failing="a")
    (back,) = (action for action in plan(state) if isinstance(action, Revert))
    assert back.record.revision == 1
    assert "f/collect.0 on a failed with revision 2: no such column" in back.record.went_back
    after = at_rest(carried_out(state, [back]))
    assert told(after) == {1: 6}
    assert after.flows["f"].record.revision == 1


def test_a_task_that_failed_before_the_rollout_does_not_end_it() -> None:
    state = rolling(failing="b")
    assert not [action for action in plan(state) if isinstance(action, Revert)]


def test_a_rollout_does_not_wait_for_nodes_that_are_away() -> None:
    settled = at_rest(
        cluster([flow()], [node("a", roles=(INGEST,)), node("b", roles=(INGEST,)), node("c")])
    )
    away = replace(settled.nodes["a"], live=False)
    rolled = replace(
        settled.flows["f"], record=Flow(revision=2), version=Version(1), rollout=Rollout()
    )
    state = replace(settled, flows={"f": rolled}, nodes={**settled.nodes, "a": away})
    for _ in range(4):
        state = obeyed(carried_out(all_settled(state)))
    assert state.flows["f"].plan.revision == 2
    assert [task.revision for task in state.nodes["a"].assignment.tasks] == [2]


def test_a_rollout_does_not_wait_for_nodes_of_which_nothing_can_be_read() -> None:
    sources = [node(name, roles=(INGEST,)) for name in "ab"]
    settled = at_rest(cluster([flow()], [*sources, node("c")]))
    rolled = replace(
        settled.flows["f"], record=Flow(revision=2), version=Version(1), rollout=Rollout()
    )
    for path in (paths.node("a"), paths.status("a")):
        unreadable = replace(
            settled.nodes["a"], unreadable=(Unreadable(path, "not JSON"),), status=None
        )
        nodes = {**settled.nodes, "a": unreadable}
        state = replace(settled, flows={"f": rolled}, nodes=nodes)
        for _ in range(6):
            after = obeyed(carried_out(proven(state)))
            state = replace(after, nodes={**after.nodes, "a": nodes["a"]})
        assert state.flows["f"].plan.revision == 2, f"it waits for {path}"


def test_a_task_that_changes_hands_in_a_rollout_keeps_its_revision() -> None:
    state = rolling()
    (canary,) = (
        t for view in state.nodes.values() for t in view.assignment.tasks if t.revision == 2
    )
    owner = state.flows["f"].tasks[canary.task].node
    assert owner is not None
    lost = replace(state.nodes[owner], live=False, lost=True)
    after = carried_out(replace(state, nodes={**state.nodes, owner: lost}))
    moved = after.flows["f"].tasks[canary.task]
    assert (moved.node != owner, moved.revision) == (True, 2)


def test_without_a_rollout_all_take_a_revision_at_once() -> None:
    settled = at_rest(cluster([flow(tasks=6)], [node("a"), node("b")]))
    view = replace(settled.flows["f"], record=Flow(revision=2), version=Version(1))
    assert told(carried_out(replace(settled, flows={"f": view}))) == {2: 6}


# -- a place that changes with the revision


def labelled(name: str, role: str, roles: tuple[str, ...] = (COLLECT,)) -> NodeView:
    return NodeView(name, Node(uuid=name, roles=roles, labels={"role": role}), live=True)


def relocating(place: Place, before: Place, nodes: list[NodeView], **limits: Any) -> Snapshot:
    """All at rest under the place ``before``; revision 2 wants another one."""
    first = FlowView("f", Flow(revision=1), Version(0), before)
    settled = at_rest(cluster([first], nodes))
    view = replace(
        settled.flows["f"],
        record=Flow(revision=2),
        version=Version(1),
        place=place,
        place_before=before,
        rollout=Rollout(canary=1, max_parallel=2, **limits),
    )
    return replace(settled, flows={"f": view})


def by_role(role: str, tasks: int = 6) -> Place:
    return Place(collect=CollectPlace(labels={"role": role}, tasks=tasks))


def test_a_changed_place_is_tried_by_the_canary_first() -> None:
    nodes = [labelled("a", "old"), labelled("b", "old"), labelled("c", "new")]
    state = relocating(by_role("new", 3), by_role("old"), nodes)
    state = at_rest(state)
    assert owners(state)["c"] == 1
    assert told(state) == {1: 5, 2: 1}
    seen = []
    for _ in range(5):
        state = at_rest(proven(state))
        seen.append((owners(state)["c"], len(state.flows["f"].tasks)))
    assert seen == [(3, 6), (5, 6), (6, 6), (3, 3), (3, 3)]
    assert state.flows["f"].plan.revision == 2


def test_no_journal_is_lost_or_doubled_when_a_rollout_ends_with_other_tasks() -> None:
    """The tasks of the old place are ended or begun in the plan in which the new place holds."""
    nodes = [labelled(f"{role[0]}{n}", role) for role in ("old", "new") for n in range(8)]
    for tasks, first, last, left in ((None, 128, 41, nodes), (1, 4998, 5004, nodes[8:])):
        old, new = (
            Place(collect=CollectPlace(labels={"role": role}, tasks=tasks))
            for role in ("old", "new")
        )
        state = relocating(new, old, nodes)
        state = at_rest(replace(state, journals=journals(first)))
        while any(task.revision != 2 for task in state.flows["f"].tasks.values()):
            state = at_rest(proven(state))
        changed = replace(
            state,
            journals=journals(last),
            nodes={view.name: state.nodes[view.name] for view in left},
        )
        assert state.flows["f"].plan.revision == 1
        ended = carried_out(proven(changed))
        assert ended.flows["f"].plan.revision == 2
        read = [name for t in ended.flows["f"].tasks.values() for name in t.partitions]
        assert sorted(read) == sorted(journals(last))


def test_a_place_that_no_node_has_is_never_proven_and_goes_back() -> None:
    nodes = [labelled("a", "old"), labelled("b", "old")]
    state = at_rest(relocating(by_role("nwe"), by_role("old"), nodes))
    for _ in range(3):
        state = at_rest(all_settled(state))
    assert owners(state) == {"a": 3, "b": 3}
    assert state.flows["f"].plan.revision == 1
    late = replace(state, stalled=frozenset({"f"}))
    (back,) = (action for action in plan(late) if isinstance(action, Revert))
    assert "revision 2 made no progress for 600 s: f/collect.0 on" in back.record.went_back
    after = at_rest(replace(carried_out(late, [back]), stalled=frozenset()))
    assert told(after) == {1: 6}


def test_sources_begin_at_new_nodes_in_turn_and_end_at_old_ones_in_the_end() -> None:
    def sources(role: str) -> Place:
        return Place(ingest=IngestPlace(labels={"role": role}))

    nodes = [labelled(f"{role[0]}{n}", role, (INGEST,)) for role in ("old", "new") for n in (1, 2)]
    nodes.append(node("c"))
    state = at_rest(relocating(sources("new"), sources("old"), nodes))
    seen = []
    for _ in range(4):
        tasks = state.flows["f"].tasks
        seen.append(sorted(t.node for t in tasks.values() if t.kind == INGEST and t.node))
        state = at_rest(proven(state))
    assert seen[:3] == [["n1", "o1", "o2"], ["n1", "n2", "o1", "o2"], ["n1", "n2"]]


def test_where_no_source_ran_before_the_first_to_begin_is_a_canary_too() -> None:
    def sources(role: str) -> Place:
        return Place(ingest=IngestPlace(labels={"role": role}))

    nodes = [labelled(f"n{n}", "new", (INGEST,)) for n in range(9)]
    begun = relocating(sources("new"), sources("none"), [*nodes, node("c")])
    state = at_rest(replace(begun, settled=frozenset({"f/collect.0"})))
    seen = []
    for _ in range(3):
        state = at_rest(proven(state))
        seen.append(sum(task.kind == INGEST for task in state.flows["f"].tasks.values()))
    assert seen == [3, 5, 7]


def test_a_rollout_that_is_paused_stands_still_and_one_promoted_by_hand_is_over() -> None:
    state = all_settled(rolling())
    view = state.flows["f"]

    def with_record(**fields: int) -> Snapshot:
        record = replace(view.record, **fields)  # type: ignore[arg-type]
        return replace(state, flows={"f": replace(view, record=record)})

    assert plan(with_record(rollout_paused=2)) == []
    assert plan(with_record(rollout_paused=1)), "it was another rollout that was paused"
    assert told(carried_out(with_record(rollout_promoted=2))) == {2: 6}


# -- nodes that are away


def test_since_when_a_node_is_away_is_written_once_and_taken_back() -> None:
    settled = at_rest(cluster([flow()], [node("a"), node("b")], leads=True, now=5.0))
    gone = replace(settled.nodes["b"], live=False, lost=True, unmarked=True)
    state = carried_out(replace(settled, nodes={**settled.nodes, "b": gone}))
    assert state.nodes["b"].record.away_since == 5.0
    assert plan(state) == []
    back = replace(state.nodes["b"], live=True, lost=False, unmarked=True)
    state = carried_out(replace(state, nodes={**state.nodes, "b": back}))
    assert state.nodes["b"].record.away_since == 0.0


def test_the_long_gone_do_not_count_as_missing() -> None:
    state = missing(9)
    gone = {
        name: view if view.live else replace(view, long_gone=True)
        for name, view in state.nodes.items()
    }
    assert [action for action in plan(state) if isinstance(action, Maintain)]
    after = carried_out(replace(state, nodes=gone))
    assert after.cluster.maintenance is None
    assert owners(after) == {"n9": 10}


def test_a_node_is_forgotten_when_it_is_long_away_and_nothing_is_left_on_it() -> None:
    both = (INGEST, COLLECT)
    nodes = [node(name, roles=both) for name in ("a", "b", "c")]
    held = {"j": Journal(flow="f", node="b", primary="b", term=1, in_sync=("b",))}
    settled = at_rest(cluster([flow()], nodes, leads=True, journals=held))
    away = {
        name: replace(settled.nodes[name], live=False, lost=True, expired=True) for name in "bc"
    }
    state = replace(settled, nodes={**settled.nodes, **away})
    kinds = [type(action) for action in plan(state)]
    assert Forget not in kinds[:-1], "it goes only when its tasks have gone"
    state = at_rest(state)
    assert set(state.nodes) == {"a", "b"}, "b still has a journal"
    assert set(state.flows["f"].tasks) == {"ingest.a", "collect.0"}
    assert set(at_rest(replace(state, drained=frozenset("j"), journals={})).nodes) == {"a"}


def test_a_node_is_not_forgotten_that_may_hold_what_it_has_not_told() -> None:
    both = (INGEST, COLLECT)
    settled = at_rest(cluster([flow()], [node("a"), node("b", roles=both)], leads=True))
    away = replace(settled.nodes["b"], live=False, lost=True, expired=True)
    assert away.status is not None
    held = {
        "its journals": replace(away, status=replace(away.status, journals_told=False)),
        "that it has begun": replace(away, status=None),
        "anything that can be read": replace(
            away, status=None, unreadable=(Unreadable(paths.status("b"), "not JSON"),)
        ),
        "what it was told": replace(
            away, unreadable=(Unreadable(paths.assignment("b"), "not JSON"),)
        ),
    }
    for what, view in held.items():
        kept = at_rest(replace(settled, nodes={**settled.nodes, "b": view}, flows={}))
        assert "b" in kept.nodes, f"it has not told {what}"
    gone = at_rest(replace(settled, nodes={**settled.nodes, "b": away}, flows={}, mine=frozenset()))
    assert "b" not in gone.nodes

    deleted = replace(settled.flows["f"], record=Flow(revision=1, state="deleted"))
    state = at_rest(replace(settled, nodes={**settled.nodes, "b": away}, flows={"f": deleted}))
    assert ("b" in state.nodes, "f" in state.flows) == (True, True), "its source ran at last"
    discarded = replace(state.flows["f"], record=replace(deleted.record, discard=True))
    state = at_rest(replace(state, flows={"f": discarded}))
    assert ("b" in state.nodes, "f" in state.flows) == (False, False)


def test_a_lost_rack_is_recovered_a_few_tasks_at_a_time() -> None:
    nodes = [node(name, zone="r") for name in "ab"] + [node(name) for name in "cd"]
    settled = at_rest(cluster([flow(tasks=20)], nodes))
    lost = {name: replace(settled.nodes[name], live=False, lost=True) for name in "ab"}
    throttled = Cluster(throttles={"recovery": 3})
    state = replace(settled, nodes={**settled.nodes, **lost}, cluster=throttled)
    left = []
    for _ in range(5):
        state = carried_out(state)
        assert plan(state) == [], "those that were given are still starting"
        left.append(owners(state)["a"] + owners(state)["b"])
        state = obeyed(state)
    assert left == [7, 4, 1, 0, 0]


def test_a_task_that_never_starts_holds_up_no_recovery() -> None:
    settled = at_rest(cluster([flow(tasks=8)], [node("a"), node("b")]))
    lost = {"a": replace(settled.nodes["a"], live=False, lost=True)}
    throttled = Cluster(throttles={"recovery": 2})
    state = carried_out(replace(settled, nodes={**settled.nodes, **lost}, cluster=throttled))
    for _ in range(2):
        stuck = frozenset(key for key, _ in state.starting())
        state = carried_out(replace(state, slow=stuck))
    assert owners(state) == {"b": 8} or owners(state)["a"] == 0


def test_nodes_that_come_and_go_leave_nothing_in_a_planner() -> None:
    planner = Planner()
    state = cluster([flow(spread="zone")], [node("stays", roles=(INGEST, COLLECT))])

    def settle(snapshot: Snapshot) -> Snapshot:
        for _ in range(20):
            actions = planner.plan(snapshot)
            if not actions:
                return snapshot
            snapshot = obeyed(carried_out(snapshot, actions))
        raise AssertionError("the plan does not come to rest")

    def held() -> dict[str, int]:
        index = planner._index
        parts = {
            **vars(index),
            **vars(index.capacity),
            **{key: vars(one) for key, one in index._flow_indexes.items()},
        }
        sizes = {key: len(part) for key, part in parts.items() if hasattr(part, "__len__")}
        return sizes | {"nodes of f": len(index.flow_index("f").nodes)}

    state = settle(state)
    before = held()
    for number in range(5):
        guest = node(f"x{number}", roles=(INGEST, COLLECT))
        state = settle(replace(state, nodes={**state.nodes, guest.name: guest}))
        kept = {name: view for name, view in state.nodes.items() if name != guest.name}
        state = settle(replace(state, nodes=kept))
    assert held() == before


# -- maintenance mode


def missing(count: int, of: int = 10, **more: Any) -> Snapshot:
    settled = at_rest(cluster([flow(tasks=of)], [node(f"n{i}") for i in range(of)]))
    views = {
        name: replace(view, live=number >= count, lost=number < count)
        for number, (name, view) in enumerate(settled.nodes.items())
    }
    return replace(settled, nodes=views, leads=True, **more)


def test_many_missing_nodes_begin_maintenance_and_nothing_moves() -> None:
    few, many = missing(5), missing(6)
    assert not [action for action in plan(few) if isinstance(action, Maintain)]
    (mode,) = plan(many)
    assert isinstance(mode, Maintain)
    assert mode.cluster.maintenance
    assert mode.cluster.maintenance.why == "6 of 10 active nodes are missing"
    assert plan(carried_out(many)) == []


def test_maintenance_ends_below_a_stricter_threshold_and_work_goes_on() -> None:
    planner = Planner()
    begun = carried_out(missing(6), planner.plan(missing(6)))

    def back(alive: int) -> Snapshot:
        views = {
            name: replace(view, live=number >= 10 - alive, lost=number < 10 - alive)
            for number, (name, view) in enumerate(begun.nodes.items())
        }
        return replace(begun, nodes=views)

    assert planner.plan(back(7)) == []
    first, *moves = planner.plan(back(8))
    assert isinstance(first, Maintain)
    assert first.cluster.maintenance is None
    assert any(isinstance(action, Replan) for action in moves), "nobody takes the lost nodes' tasks"


def test_what_an_operator_began_only_he_ends() -> None:
    mode = Cluster(maintenance=Maintenance(who="ann", why="switch", since=0.0))
    lost_one = missing(1, cluster=mode)
    assert plan(lost_one) == []
    moved = carried_out(replace(lost_one, cluster=Cluster()))
    assert "n0" not in owners(moved)


def test_only_one_master_decides_about_the_cluster() -> None:
    assert not [a for a in plan(replace(missing(6), leads=False)) if isinstance(a, Maintain)]


# -- the end of a flow


def test_a_deleted_flow_waits_for_a_node_that_may_hold_events_of_it() -> None:
    roles = (INGEST, COLLECT)
    settled = at_rest(cluster([flow()], [node("a", roles=roles), node("b", roles=roles)]))

    def deleted(*, discard: bool) -> Snapshot:
        record = Flow(revision=1, state="deleted", discard=discard)
        view = replace(settled.flows["f"], record=record, version=Version(1))
        away = replace(settled.nodes["a"], live=False, status=None)
        nodes = {"a": away, "b": settled.nodes["b"]}
        state = replace(settled, flows={"f": view}, nodes=nodes)
        for _ in range(5):
            state = obeyed(carried_out(state))
        return state

    waiting = deleted(discard=False)
    assert list(waiting.flows) == ["f"], "it was never heard of the end of its sources"
    back = replace(waiting.nodes["a"], live=True)
    state = obeyed(replace(waiting, nodes={**waiting.nodes, "a": back}))
    assert not carried_out(state).flows
    assert not deleted(discard=True).flows


# -- chokes


def test_chokes_reach_the_nodes_that_run_the_flow() -> None:
    limits = Cluster(chokes={"f": 1000.0, "f@b": 50.0, "other": 1.0})
    settled = at_rest(cluster([flow(tasks=2)], [node("a"), node("b"), node("c")], cluster=limits))
    chokes = {name: dict(view.assignment.chokes) for name, view in settled.nodes.items()}
    assert chokes == {"a": {"f": 1000.0}, "b": {"f": 50.0}, "c": {}}
    off = carried_out(replace(settled, cluster=Cluster()))
    assert {name: dict(view.assignment.chokes) for name, view in off.nodes.items()} == {
        "a": {},
        "b": {},
        "c": {},
    }


# -- handoffs


def test_a_handoff_reaches_the_collect_tasks_of_its_flow_and_changes_nothing_else() -> None:
    settled = at_rest(cluster([flow(tasks=2), flow("other")], [node("a"), node("b")]))
    asked = settled.flows["f"]
    view = replace(asked, record=replace(asked.record, handoff=7))
    told = carried_out(replace(settled, flows={**settled.flows, "f": view}))
    before = {(t.flow, t.task): t for n in settled.nodes.values() for t in n.assignment.tasks}
    for name, after in told.nodes.items():
        for one in after.assignment.tasks:
            handoff = 7 if (one.flow, one.kind) == ("f", COLLECT) else 0
            assert one == replace(before[one.flow, one.task], handoff=handoff), name
    assert {flow.plan_version for flow in told.flows.values()} == {
        flow.plan_version for flow in settled.flows.values()
    }


# -- large plans


def task(number: int, *partitions: str) -> PlannedTask:
    return PlannedTask(
        kind=COLLECT, node="a", epoch=number, state="assigned", partitions=partitions
    )


def test_a_large_change_is_written_in_steps_and_no_partition_is_in_two_tasks() -> None:
    before = Tasks.of({f"collect.{n}": task(n, f"j{n}") for n in range(2000)})
    after = Tasks.of({f"collect.{n}": task(n, f"j{1999 - n}") for n in range(2000)})
    found = steps(before, after, step_bytes=40_000)
    assert len(found) > 10
    assert found[-1] == after
    for state in found:
        read = [p for t in state.values() for p in t.partitions]
        assert len(read) == len(set(read))
    written = [
        sum(new is not old for old, new in zip(one.buckets, two.buckets, strict=True))
        for one, two in zip([before, *found], found, strict=False)
    ]
    assert max(written) < BUCKETS // 4


def test_a_plan_in_steps_is_one_chain_of_versions() -> None:
    empty = cluster([flow(tasks=20_000)], [node(f"n{i:03d}") for i in range(100)])
    parts = [action for action in plan(empty) if isinstance(action, Replan)]
    assert len(parts) > 1
    assert [part.plan.sharing for part in parts] == [True] * (len(parts) - 1) + [False]
    assert [part.version_after for part in parts[:-1]] == [part.expect for part in parts[1:]]
    interrupted = carried_out(empty, [parts[0]])
    assert at_rest(interrupted).flows["f"].tasks.keys() == parts[-1].plan.tasks.keys()


def test_every_assignment_derives_from_the_plan_as_it_is_then() -> None:
    actions = plan(cluster([flow(tasks=4)], [node("a"), node("b")]))
    assert [type(action) for action in actions] == [Replan, Assign, Assign]
    assert all(
        action.plans == (("f", Version(0)),) for action in actions if isinstance(action, Assign)
    )


def test_a_task_that_met_a_higher_epoch_gets_one_above_it() -> None:
    """The plan is older than the acks: someone has put back an old one."""
    settled = at_rest(cluster([flow(tasks=2)], [node("a"), node("b")]))
    owner = settled.flows["f"].tasks["collect.0"].node
    assert owner is not None
    view = settled.nodes[owner]
    assert view.status is not None
    said = {
        key: replace(status, state="failed", epoch_seen=30) if key == "f/collect.0" else status
        for key, status in view.status.tasks.items()
    }
    view = replace(view, status=replace(view.status, tasks=said))
    after = carried_out(replace(settled, nodes={**settled.nodes, owner: view}))
    assert after.flows["f"].tasks["collect.0"].epoch == 31
    assert after.flows["f"].tasks["collect.0"].node == owner
    assert after.flows["f"].tasks["collect.1"] == settled.flows["f"].tasks["collect.1"]
    assert plan(after) == []


def test_a_deleted_flow_waits_for_the_nodes_of_the_place_before_its_rollout() -> None:
    """One of them may hold a journal that it could not tell of before it went away."""
    away = replace(node("a", roles=(INGEST,)), live=False, assignment_version=Version(3))
    view = FlowView(
        "f",
        Flow(revision=2, state="deleted"),
        Version(0),
        Place(ingest=IngestPlace(labels={"role": "web"})),
        rollout=Rollout(),
        plan=Plan(revision=1),
        plan_version=Version(0),
        place_before=Place(),
    )
    assert not any(isinstance(action, Drop) for action in plan(cluster([view], [away])))
    moved = replace(view, place_before=view.place)
    assert any(isinstance(action, Drop) for action in plan(cluster([moved], [away])))


def test_a_node_is_told_the_settings_of_spark_that_hold_for_it() -> None:
    nodes = {name: NodeView(name, Node(uuid=name, roles=("collect",)), live=True) for name in "ab"}
    nodes["b"] = replace(nodes["b"], record=replace(nodes["b"].record, spark={"cores": "3"}))
    cluster = Cluster(spark={"master": "spark://m:7077", "cores": "8"})
    before = Snapshot({}, nodes, {}, frozenset(), frozenset(), cluster=cluster, leads=True)
    told = {a.node: a.assignment.spark for a in plan(before) if isinstance(a, Assign)}
    assert told == {
        "a": {"master": "spark://m:7077", "cores": "8"},
        "b": {"master": "spark://m:7077", "cores": "3"},
    }


def test_tasks_go_where_the_cores_of_a_spark_cluster_are_and_none_is_left_without_a_node() -> None:
    large, small = node("large"), node("small")
    told = {"master": "spark://m:7077", "cores": "6"}
    large = replace(large, assignment=Assignment(spark=told))
    small = replace(small, assignment=Assignment(spark={**told, "cores": "2"}))
    index = CapacityIndex()
    index.put_node("large", large)
    index.put_node("small", small)
    pool = index.pool({})
    placed = Counter[str]()
    for _ in range(40):
        name = index.least_full(pool, SLOT)
        assert name is not None
        index.add(name, SLOT)
        placed[name] += 1
    assert placed == {"large": 30, "small": 10}
    assert index.in_turn(pool, SLOT, 2) is None
    assert node("a").spark_cores == 0
    local = replace(large, assignment=Assignment(spark={"cores": "6"}))
    assert local.spark_cores == 0
