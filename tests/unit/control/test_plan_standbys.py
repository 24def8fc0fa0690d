"""Placement of standbys of tasks, and the assignments of their nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from flumeng.config import CollectPlace, Place, Rollout
from flumeng.control.planner.actions import Assign
from flumeng.control.planner.planner import Planner, plan
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from tests.unit.control.planning import settle
from zkschema.records import Cluster, Flow, Maintenance, Node, PlannedTask


def cluster(zones: str, *, tasks: int = 1, replicas: int = 2) -> Snapshot:
    """A node ``n0``, ``n1``, ... in each of the zones, and a planned flow."""
    nodes = {
        f"n{number}": NodeView(
            f"n{number}", Node(uuid="u", roles=("collect",), zone=zone), live=True
        )
        for number, zone in enumerate(zones)
    }
    place = Place(collect=CollectPlace(tasks=tasks, replicas=replicas))
    flow = FlowView("f", Flow(revision=1), Version(0), place)
    return settle(Snapshot({"f": flow}, nodes, {}, frozenset(), frozenset({"f"})))


def task(snapshot: Snapshot, name: str = "collect.0") -> PlannedTask:
    return snapshot.flows["f"].tasks[name]


def told(snapshot: Snapshot) -> dict[str, list[tuple[str, str, int]]]:
    return {
        name: [(t.task, t.state, t.epoch) for t in node.assignment.tasks]
        for name, node in snapshot.nodes.items()
    }


def change(snapshot: Snapshot, name: str, **fields: object) -> Snapshot:
    """The snapshot with these fields of the node's record, ``live`` and ``down``."""
    node = snapshot.nodes[name]
    of_view = {key: fields.pop(key) for key in ("live", "down") if key in fields}
    node = replace(node, record=replace(node.record, **fields), **of_view)  # type: ignore[arg-type]
    return replace(snapshot, nodes={**snapshot.nodes, name: node})


def test_standby_is_assigned_without_an_epoch() -> None:
    assert told(cluster("ab")) == {
        "n0": [("collect.0", "running", 1)],
        "n1": [("collect.0", "standby", 0)],
    }


def test_flow_without_replicas_has_no_standbys() -> None:
    settled = cluster("ab", replicas=1)
    assert (task(settled).standbys, told(settled)["n1"]) == ((), [])


def test_a_standby_is_in_another_zone_when_there_is_one() -> None:
    assert task(cluster("aab")).standbys == ("n2",)
    assert task(cluster("aaa")).standbys in (("n1",), ("n2",))
    assert set(task(cluster("aabc", replicas=3)).standbys) == {"n2", "n3"}


def test_new_zone_gets_the_standby() -> None:
    settled = cluster("aa")
    assert task(settled).standbys == ("n1",)
    node = NodeView("n2", Node(uuid="u", roles=("collect",), zone="b"), live=True)
    settled = settle(replace(settled, nodes={**settled.nodes, "n2": node}))
    assert task(settled).standbys == ("n2",)


def test_fewer_standbys_are_planned_when_there_are_too_few_nodes() -> None:
    settled = cluster("ab", replicas=4)
    assert task(settled).standbys == ("n1",)
    assert plan(settled) == []
    assert task(cluster("a", replicas=2)).standbys == ()


def test_the_standby_takes_over_when_the_owner_is_lost() -> None:
    settled = cluster("aabb", tasks=8)
    before = {f"collect.{n}": task(settled, f"collect.{n}") for n in range(8)}
    lost = settle(change(settled, "n0", live=False, down=True))
    for name, was in before.items():
        if was.node == "n0":
            assert task(lost, name).node == was.standbys[0]
        now = task(lost, name)
        assert len(now.standbys) == 1
        assert not {now.node, "n0"}.intersection(now.standbys)


def test_the_standby_takes_over_when_the_owner_is_drained() -> None:
    settled = cluster("aab")
    assert task(settle(change(settled, "n0", desired="draining"))).node == "n2"


def test_a_standby_without_room_is_passed_over() -> None:
    settled = change(cluster("abb"), "n1", capacity={"slots": 0.5})
    settled = change(settled, "n2", capacity={"slots": 0.5})
    (standby,) = task(settled).standbys
    (other,) = {"n1", "n2"} - {standby}
    roomy = change(settled, other, capacity={"slots": 4.0})
    assert task(settle(change(roomy, "n0", live=False, down=True))).node == other


def test_planner_with_memory_chooses_again_when_a_rollout_changes_replicas() -> None:
    planner = Planner()
    settled = settle(cluster("abc", tasks=2, replicas=2), planner.plan)
    wanted = Place(collect=CollectPlace(tasks=2, replicas=3))
    rolled = replace(
        settled.flows["f"],
        record=Flow(revision=2),
        version=Version(1),
        place=wanted,
        rollout=Rollout(),
    )
    begun = settle(replace(settled, flows={"f": rolled}), planner.plan)
    assert begun.flows["f"].plan.revision == 1
    assert [len(task(begun, f"collect.{n}").standbys) for n in range(2)] == [2, 2]
    assert plan(begun) == [], "a planner that has just been made would choose the same"


def test_standbys_stay_until_their_node_is_given_up() -> None:
    settled = cluster("abc")
    (standby,) = task(settled).standbys
    (other,) = {"n1", "n2"} - {standby}
    missed = settle(change(settled, standby, live=False))
    assert task(missed).standbys == (standby,)
    assert task(settle(change(missed, standby, down=True))).standbys == (other,)
    drained = settle(change(settled, standby, desired="draining"))
    assert (task(drained).node, task(drained).standbys) == ("n0", (other,))
    back = settle(change(drained, standby, desired="active"))
    assert task(back).standbys == (other,)


def test_a_standby_counts_against_no_capacity() -> None:
    settled = cluster("ab", tasks=2, replicas=2)
    full = change(settled, "n0", capacity={"slots": 1.0})
    full = change(full, "n1", capacity={"slots": 1.0})
    assert plan(full) == []


def test_the_standbys_of_a_node_are_spread_over_the_others() -> None:
    settled = cluster("aaaaaa", tasks=60)
    tasks = settled.flows["f"].tasks.values()
    assert set(Counter(t.standbys[0] for t in tasks).values()) == {10}
    for node in settled.nodes:
        takers = Counter(t.standbys[0] for t in tasks if t.node == node)
        assert len(takers) >= 3
        assert max(takers.values()) <= 5


def test_no_standby_moves_in_maintenance_mode() -> None:
    mode = Maintenance(who="a", why="b", since=0.0)
    settled = replace(cluster("abc"), cluster=Cluster(maintenance=mode))
    (standby,) = task(settled).standbys
    lost = change(settled, standby, live=False, down=True)
    assert plan(lost) == []


def test_task_is_assigned_to_its_new_owner_after_its_old_one_released_it() -> None:
    """Two nodes exchange the roles of owner and standby, both ways."""
    settled = cluster("ab")
    for epoch, node, standby in ((2, "n1", "n0"), (3, "n0", "n1")):
        flow = settled.flows["f"]
        swapped = replace(task(settled), node=node, standbys=(standby,), epoch=epoch)
        plan_ = replace(flow.plan, epoch=epoch, tasks={"collect.0": swapped})
        flow = replace(flow, plan=plan_, plan_version=Version(10 * epoch))
        written = replace(settled, flows={"f": flow})
        assigned = [action for action in plan(written) if isinstance(action, Assign)]
        assert [(a.node, a.gives, a.assignment.tasks[0].state) for a in assigned] == [
            (standby, False, "standby"),
            (node, True, "running"),
        ]
        settled = settle(written)


def test_fewer_replicas_end_standbys() -> None:
    settled = cluster("abc", replicas=3)
    assert len(task(settled).standbys) == 2
    flow = replace(settled.flows["f"], place=Place(collect=CollectPlace(tasks=1)))
    after = settle(replace(settled, flows={"f": flow}))
    assert (task(after).standbys, told(after)["n1"], told(after)["n2"]) == ((), [], [])


def test_a_suspended_flow_has_no_standbys() -> None:
    settled = cluster("ab")
    flow = replace(settled.flows["f"], record=Flow(revision=1, state="suspended"))
    assert told(settle(replace(settled, flows={"f": flow}))) == {"n0": [], "n1": []}
