"""How the planner shares partitions out and places tasks: weights, zones, draining, throttles."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from flumeng.config import CollectPlace, Place, TaskRange
from flumeng.control.planner.planner import Planner, plan
from flumeng.control.snapshot.partitions import OBJECTS, POLLS
from flumeng.control.snapshot.queues import lane_partition
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from tests.unit.control.planning import (
    SLOT,
    at_rest,
    carried_out,
    cluster,
    flow,
    found,
    journals,
    node,
    obeyed,
    owners,
    reads,
    seen_by,
)
from zkschema.records import COLLECT, Cluster, Flow, Maintenance, PlannedTask


def test_journals_and_discovered_partitions_are_shared_out_together() -> None:
    view = found(flow(tasks=2), "p0@broker", "p1@broker")
    settled = at_rest(cluster([view], [node("a"), node("b")], journals=journals(2)))
    assert reads(settled) == [("j000", "p0@broker"), ("j001", "p1@broker")]


def test_two_flows_may_read_partitions_of_the_same_name() -> None:
    views = [found(flow(name), "p0@broker", p0=3) for name in ("f", "g")]
    settled = at_rest(cluster(views, [node("a")]))
    assert reads(settled, "f") == reads(settled, "g") == [("p0@broker",)]
    one_is_done = at_rest(replace(settled, drained=frozenset({"f/p0@broker"})))
    assert (reads(one_is_done, "f"), reads(one_is_done, "g")) == ([()], [("p0@broker",)])


def test_partition_found_later_joins_and_moves_no_other() -> None:
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


def test_ended_partition_is_read_until_it_is_drained() -> None:
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


def test_ending_flow_does_not_wait_for_discovered_partitions() -> None:
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


def test_new_zone_gets_its_share() -> None:
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


# -- as many tasks as partitions and nodes ask for


def lanes(count: int, input_: str = OBJECTS) -> FlowView:
    names = (lane_partition(str(number), "q", input_) for number in range(count))
    return found(flow(), *names)


def test_lanes_are_shared_out_over_hosts_without_a_configured_number() -> None:
    """A task has two at least, and is no other than before until there are twice as many hosts."""
    shares = {}
    settled = cluster([found(flow())], [])
    planner = Planner()
    for hosts in range(1, 10):
        more = {**settled.nodes, f"n{hosts}": node(f"n{hosts}")}
        settled = replace(settled, nodes=more, flows={"f": with_lanes(settled.flows["f"])})
        for _ in range(4):
            settled = seen_by(planner, obeyed(settled))
        assert plan(settled) == [], "nothing moves where nothing has changed"
        assert max(owners(settled).values()) == 1
        shares[hosts] = sorted(map(len, reads(settled)))
    few, many = {2: [4, 4], 3: [4, 4]}, {hosts: [2, 2, 2, 2] for hosts in range(4, 10)}
    assert shares == {1: [8]} | few | many
    gone = {name: replace(one, live=name == "n1", down=True) for name, one in settled.nodes.items()}
    left = at_rest(replace(settled, nodes=gone | {"n1": settled.nodes["n1"]}))
    assert sorted(map(len, reads(left))) == [2] * 4, "hosts that go make it no smaller"
    assert owners(left) == {"n1": 4}


def with_lanes(view: FlowView) -> FlowView:
    return replace(view, partitions=lanes(8).partitions)


def test_small_inputs_stay_together_in_one_task() -> None:
    nodes = [node(name) for name in "abcd"]
    polls, lane = lanes(1, POLLS), lanes(1)
    topic = found(flow(), *(f"t.{number}@kafka" for number in range(8)))
    for view in (polls, lane, topic):
        assert len(reads(at_rest(cluster([view], nodes)))) == 1


def test_lane_weighs_as_much_as_one_partition() -> None:
    """A node that has declared its slots has room for as many as before."""
    settled = at_rest(cluster([lanes(8)], [node("a", slots=4.0), node("b", slots=4.0)]))
    assert owners(settled) == {"a": 1, "b": 1}
    assert settled.flows["f"].weight(("lane.0.q@objects",)) == SLOT


# -- as many tasks as the events need


def scaled(proposed: int, least: int = 2, most: int = 8) -> FlowView:
    view = flow(tasks=TaskRange(min=least, max=most))
    names = (f"p{number:02d}@broker" for number in range(40))
    return replace(found(view, *names), proposed_tasks=proposed)


def collect_tasks(snapshot: Snapshot) -> dict[str, PlannedTask]:
    return {n: t for n, t in snapshot.flows["f"].tasks.items() if t.kind == COLLECT}


def test_proposed_number_of_tasks_is_limited_to_its_range() -> None:
    nodes = [node("a"), node("b")]
    counts = {
        proposed: len(collect_tasks(at_rest(cluster([scaled(proposed)], nodes))))
        for proposed in (0, 1, 5, 9)
    }
    assert counts == {0: 2, 1: 2, 5: 5, 9: 8}


def test_present_tasks_stay_until_a_number_is_proposed() -> None:
    settled = at_rest(cluster([replace(scaled(0), place=flow(tasks=5).place)], [node("a")]))
    ranged = replace(settled.flows["f"], place=scaled(0).place)
    assert len(collect_tasks(at_rest(replace(settled, flows={"f": ranged})))) == 5


def test_additional_task_takes_only_its_share_and_no_task_stops_for_it() -> None:
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


def test_one_task_less_moves_only_its_own_partitions() -> None:
    settled = at_rest(cluster([scaled(5)], [node("a"), node("b")]))
    four = replace(settled.flows["f"], proposed_tasks=4)
    after = collect_tasks(at_rest(replace(settled, flows={"f": four})))
    assert all(
        set(collect_tasks(settled)[name].partitions) < set(task.partitions)
        for name, task in after.items()
    )
    assert sum(len(task.partitions) for task in after.values()) == 40


def test_number_of_tasks_stays_in_maintenance_mode() -> None:
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


def test_last_collector_continues_until_everything_is_read() -> None:
    settled = at_rest(cluster([flow()], [node("a")], journals=journals(2)))
    drained = at_rest(wanted(settled, "a", "draining"))
    (kept,) = drained.flows["f"].tasks.values()
    assert (kept.node, kept.state, kept.why) == ("a", "assigned", "no other node may run it")
    joined = at_rest(replace(drained, nodes={**drained.nodes, "b": node("b")}))
    assert owners(joined) == {"b": 1}, "the newcomer does not take it"
    read = at_rest(replace(drained, drained=frozenset(journals(2))))
    (empty,) = read.flows["f"].tasks.values()
    assert (empty.state, empty.partitions) == ("draining", ())


def test_released_task_without_another_node_returns_to_its_owner() -> None:
    settled = at_rest(cluster([flow()], [node("a"), node("b")], journals=journals(2)))
    (task,) = settled.flows["f"].tasks.values()
    assert task.node is not None
    other = "b" if task.node == "a" else "a"
    let_go = obeyed(carried_out(wanted(settled, task.node, "draining")))
    gone = replace(let_go.nodes[other], live=False, down=True)
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


def moves_beside(waiting: FlowView) -> int:
    """The moves that begin when two nodes have joined, while a task of ``waiting`` has no owner."""
    settled = at_rest(cluster([flow(tasks=8), waiting], [node("a"), node("b")]))
    grown = {**settled.nodes, "c": node("c"), "d": node("d")}
    joined = obeyed(carried_out(replace(settled, nodes=grown)))
    return len(draining(carried_out(replace(joined, balance_moves=8))))


@pytest.mark.parametrize(
    "waiting",
    [flow("g", tasks=1, labels={"role": "none"}), flow("g", tasks=5, per_node=1)],
    ids=["no such label", "more tasks than places"],
)
def test_task_that_no_node_can_run_does_not_stop_balancing(waiting: FlowView) -> None:
    assert moves_beside(waiting) >= 3


def test_task_too_heavy_for_every_node_does_not_stop_balancing() -> None:
    def spread_over(*flows: FlowView) -> int:
        settled = at_rest(cluster([*flows], [node("a", slots=20.0)]))
        joined = replace(settled, nodes={**settled.nodes, "b": node("b", slots=20.0)})
        return len(draining(carried_out(joined)))

    heavy = flow("g", tasks=1, weight={"slots": 100.0})
    assert spread_over(flow(tasks=8), heavy) == spread_over(flow(tasks=8)) == 1


def test_unowned_task_holds_up_only_the_pool_that_could_run_it() -> None:
    def labelled(name: str, kind: str) -> NodeView:
        view = node(name)
        return replace(view, record=replace(view.record, labels={"kind": kind}))

    nodes = [labelled("a1", "a"), labelled("b1", "b"), labelled("b2", "b")]
    flows = [flow("f", tasks=8, labels={"kind": "a"}), flow("g", tasks=4, labels={"kind": "b"})]
    settled = at_rest(cluster(flows, nodes))
    joined = {"a2": labelled("a2", "a"), "b3": labelled("b3", "b")}
    grown = {**settled.nodes, **joined, "b1": replace(settled.nodes["b1"], live=False)}
    begun = draining(carried_out(replace(settled, nodes=grown, balance_moves=8)))
    assert {task.node for task in begun} == {"a1"}


def test_no_move_is_begun_while_a_task_has_no_live_owner() -> None:
    settled = at_rest(cluster([flow(tasks=8)], [node("a"), node("b")]))
    away = replace(settled.nodes["a"], live=False)
    joined = replace(settled, nodes={"a": away, "b": settled.nodes["b"], "c": node("c")})
    assert not draining(carried_out(joined))
    back = replace(joined, nodes={**joined.nodes, "a": replace(away, live=True)})
    assert len(draining(carried_out(back))) == 1
