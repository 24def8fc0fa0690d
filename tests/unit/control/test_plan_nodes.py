"""The planner's reaction to nodes that are down, and maintenance mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flumeng.control.planner.actions import Forget, Maintain, Replan
from flumeng.control.planner.planner import Planner, plan
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.zookeeper import Unreadable
from tests.unit.control.planning import at_rest, carried_out, cluster, flow, node, obeyed, owners
from zkschema import paths
from zkschema.records import COLLECT, INGEST, Cluster, Flow, Journal, Maintenance


def test_time_since_which_a_node_is_away_is_written_once_and_removed() -> None:
    settled = at_rest(cluster([flow()], [node("a"), node("b")], leads=True, now=5.0))
    gone = replace(settled.nodes["b"], live=False, down=True, mark_due=True)
    state = carried_out(replace(settled, nodes={**settled.nodes, "b": gone}))
    assert state.nodes["b"].record.down_since == 5.0
    assert plan(state) == []
    back = replace(state.nodes["b"], live=True, down=False, mark_due=True)
    state = carried_out(replace(state, nodes={**state.nodes, "b": back}))
    assert state.nodes["b"].record.down_since == 0.0


def test_long_absent_nodes_do_not_count_as_missing() -> None:
    state = missing(9)
    gone = {
        name: view if view.live else replace(view, gone=True) for name, view in state.nodes.items()
    }
    assert [action for action in plan(state) if isinstance(action, Maintain)]
    after = carried_out(replace(state, nodes=gone))
    assert after.cluster.maintenance is None
    assert owners(after) == {"n9": 10}


def test_node_is_forgotten_when_it_is_long_away_and_holds_nothing() -> None:
    both = (INGEST, COLLECT)
    nodes = [node(name, roles=both) for name in ("a", "b", "c")]
    held = {"j": Journal(flow="f", node="b", primary="b", term=1, in_sync=("b",))}
    settled = at_rest(cluster([flow()], nodes, leads=True, journals=held))
    away = {
        name: replace(settled.nodes[name], live=False, down=True, expired=True) for name in "bc"
    }
    state = replace(settled, nodes={**settled.nodes, **away})
    kinds = [type(action) for action in plan(state)]
    assert Forget not in kinds[:-1], "it goes only when its tasks have gone"
    state = at_rest(state)
    assert set(state.nodes) == {"a", "b"}, "b still has a journal"
    assert set(state.flows["f"].tasks) == {"ingest.a", "collect.0"}
    assert set(at_rest(replace(state, drained=frozenset("j"), journals={})).nodes) == {"a"}


def test_node_that_may_hold_unreported_journals_is_not_forgotten() -> None:
    both = (INGEST, COLLECT)
    settled = at_rest(cluster([flow()], [node("a"), node("b", roles=both)], leads=True))
    away = replace(settled.nodes["b"], live=False, down=True, expired=True)
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


def test_lost_rack_is_recovered_a_few_tasks_at_a_time() -> None:
    nodes = [node(name, zone="r") for name in "ab"] + [node(name) for name in "cd"]
    settled = at_rest(cluster([flow(tasks=20)], nodes))
    lost = {name: replace(settled.nodes[name], live=False, down=True) for name in "ab"}
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
    lost = {"a": replace(settled.nodes["a"], live=False, down=True)}
    throttled = Cluster(throttles={"recovery": 2})
    state = carried_out(replace(settled, nodes={**settled.nodes, **lost}, cluster=throttled))
    for _ in range(2):
        stuck = frozenset(key for key, _ in state.starting())
        state = carried_out(replace(state, slow=stuck))
    assert owners(state) == {"b": 8} or owners(state)["a"] == 0


def test_joining_and_leaving_nodes_leave_nothing_in_a_planner() -> None:
    planner = Planner()
    state = cluster([flow(spread="zone")], [node("stays", roles=(INGEST, COLLECT))])

    def held() -> dict[str, int]:
        index = planner._index
        parts = {
            **vars(index),
            **vars(index.capacity),
            **{key: vars(one) for key, one in index._flow_indexes.items()},
        }
        sizes = {key: len(part) for key, part in parts.items() if hasattr(part, "__len__")}
        return sizes | {"nodes of f": len(index.flow_index("f").nodes)}

    state = at_rest(state, planner.plan)
    before = held()
    for number in range(5):
        guest = node(f"x{number}", roles=(INGEST, COLLECT))
        state = at_rest(replace(state, nodes={**state.nodes, guest.name: guest}), planner.plan)
        kept = {name: view for name, view in state.nodes.items() if name != guest.name}
        state = at_rest(replace(state, nodes=kept), planner.plan)
    assert held() == before


# -- maintenance mode


def missing(count: int, of: int = 10, **more: Any) -> Snapshot:
    settled = at_rest(cluster([flow(tasks=of)], [node(f"n{i}") for i in range(of)]))
    views = {
        name: replace(view, live=number >= count, down=number < count)
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
            name: replace(view, live=number >= 10 - alive, down=number < 10 - alive)
            for number, (name, view) in enumerate(begun.nodes.items())
        }
        return replace(begun, nodes=views)

    assert planner.plan(back(7)) == []
    first, *moves = planner.plan(back(8))
    assert isinstance(first, Maintain)
    assert first.cluster.maintenance is None
    assert any(isinstance(action, Replan) for action in moves), "nobody takes the lost nodes' tasks"


def test_maintenance_begun_by_an_operator_is_ended_by_an_operator_only() -> None:
    mode = Cluster(maintenance=Maintenance(who="ann", why="switch", since=0.0))
    lost_one = missing(1, cluster=mode)
    assert plan(lost_one) == []
    moved = carried_out(replace(lost_one, cluster=Cluster()))
    assert "n0" not in owners(moved)


def test_only_one_master_decides_about_the_cluster() -> None:
    assert not [a for a in plan(replace(missing(6), leads=False)) if isinstance(a, Maintain)]
