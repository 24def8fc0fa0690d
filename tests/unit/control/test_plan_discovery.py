"""Where discovery tasks run, and when they change hands."""

from __future__ import annotations

from dataclasses import replace

from flumeng.config import CollectPlace, IngestPlace, Place, Rollout
from flumeng.control.planner.actions import Replan
from flumeng.control.planner.effects import applied
from flumeng.control.planner.planner import Planner
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from zkschema.records import (
    DISCOVER,
    Cluster,
    Flow,
    Maintenance,
    Node,
    NodeStatus,
    Partition,
    PlannedTask,
    TaskStatus,
)

TASK = "discover.0"


def node(name: str, *, live: bool = True, desired: str = "active", **labels: str) -> NodeView:
    record = Node(uuid=name, roles=("ingest", "collect"), desired=desired, labels=labels)
    return NodeView(name, record, live, down=not live)


def flow(name: str = "f", **fields: object) -> FlowView:
    view = FlowView(name, Flow(revision=1), Version(0), Place(), pins=False, discovers=True)
    return replace(view, **fields)  # type: ignore[arg-type]


def world(flows: list[FlowView], nodes: list[NodeView]) -> Snapshot:
    return Snapshot(
        flows={view.name: view for view in flows},
        nodes={view.name: view for view in nodes},
        journals={},
        drained=frozenset(),
        mine=frozenset(view.name for view in flows),
    )


def settled(snapshot: Snapshot) -> Snapshot:
    for _ in range(10):
        actions = Planner().plan(snapshot)
        if not actions:
            return snapshot
        for action in actions:
            snapshot = applied(snapshot, action)
    raise AssertionError("the plan does not come to rest")


def task(snapshot: Snapshot, name: str = "f") -> PlannedTask | None:
    return snapshot.flows[name].tasks.find(TASK)


def owner(snapshot: Snapshot, name: str = "f") -> str | None:
    found = task(snapshot, name)
    return found.node if found else None


def with_flow(snapshot: Snapshot, **fields: object) -> Snapshot:
    view = replace(snapshot.flows["f"], **fields)  # type: ignore[arg-type]
    return replace(snapshot, flows={**snapshot.flows, "f": view})


def with_node(snapshot: Snapshot, name: str, **fields: object) -> Snapshot:
    view = replace(snapshot.nodes[name], **fields)  # type: ignore[arg-type]
    return replace(snapshot, nodes={**snapshot.nodes, name: view})


def with_state(snapshot: Snapshot, state: str) -> Snapshot:
    return with_flow(snapshot, record=replace(snapshot.flows["f"].record, state=state))


def test_a_flow_whose_sources_are_all_found_has_no_ingest_tasks() -> None:
    now = settled(world([flow()], [node("a"), node("b")]))
    assert sorted(now.flows["f"].tasks) == ["collect.0", TASK]
    found = task(now)
    assert found is not None
    assert (found.kind, found.partitions, found.state) == (DISCOVER, (), "assigned")
    told = [t for n in now.nodes.values() for t in n.assignment.tasks if t.task == TASK]
    assert [(t.kind, t.epoch) for t in told] == [(DISCOVER, found.epoch)]


def test_flow_with_local_and_discovered_sources_has_both_kinds_of_task() -> None:
    now = settled(world([flow(pins=True)], [node("a")]))
    assert sorted(now.flows["f"].tasks) == ["collect.0", TASK, "ingest.a"]


def test_the_tasks_of_many_flows_are_spread() -> None:
    flows = [flow(f"f{number}") for number in range(60)]
    now = settled(world(flows, [node("a"), node("b"), node("c")]))
    held = [owner(now, view.name) for view in flows]
    assert min(map(held.count, "abc")) >= 10


def test_discovery_task_stays_when_nodes_join_and_moves_when_its_own_is_lost() -> None:
    before = settled(world([flow()], [node("a"), node("b")]))
    more = settled(replace(before, nodes={**before.nodes, "c": node("c"), "d": node("d")}))
    assert task(more) == task(before)
    had = owner(before) or ""
    after = settled(with_node(before, had, live=False, down=True))
    assert owner(after) not in (None, had)
    old, new = task(before), task(after)
    assert old is not None
    assert new is not None
    assert new.epoch > before.flows["f"].plan.epoch >= old.epoch


def test_drain_moves_the_discovery_task_without_a_handoff() -> None:
    before = settled(world([flow()], [node("a"), node("b")]))
    had = owner(before) or ""
    drained = replace(before.nodes[had].record, desired="draining")
    replans = [
        action
        for action in Planner().plan(with_node(before, had, record=drained))
        if isinstance(action, Replan)
    ]
    (moved,) = {action.plan.tasks[TASK].node for action in replans}
    assert moved not in (None, had)


def test_only_node_keeps_the_discovery_task_while_it_drains() -> None:
    before = settled(world([flow()], [node("a")]))
    drained = replace(before.nodes["a"].record, desired="draining")
    after = settled(with_node(before, "a", record=drained))
    assert owner(after) == "a"
    back = settled(with_node(after, "a", record=before.nodes["a"].record))
    assert task(back) == task(before)


def test_discovery_task_follows_the_labels_of_the_collect_place() -> None:
    place = Place(collect=CollectPlace(labels={"role": "spark"}))
    nodes = [node("a"), node("b", role="spark"), node("c", role="web")]
    now = settled(world([flow(place=place)], nodes))
    assert owner(now) == "b"
    nobody = settled(world([flow(place=place)], [node("a")]))
    found = task(nobody)
    assert found is not None
    assert (found.node, found.state) == (None, "waiting")
    joined = replace(nobody, nodes={**nobody.nodes, "b": node("b", role="spark")})
    assert owner(settled(joined)) == "b"


def test_nothing_moves_in_maintenance_mode() -> None:
    before = settled(world([flow()], [node("a"), node("b")]))
    had = owner(before) or ""
    cluster = Cluster(maintenance=Maintenance(who="a", why="b", since=0.0))
    away = with_node(replace(before, cluster=cluster), had, live=False, down=True)
    assert task(settled(away)) == task(before)


def test_discovery_runs_while_the_flow_is_suspended_and_ends_with_a_stop() -> None:
    before = settled(world([flow()], [node("a")]))
    assert task(settled(with_state(before, "suspended"))) == task(before)
    for state in ("stopped", "deleted"):
        ended = settled(with_state(before, state))
        assert "f" not in ended.flows or task(ended) is None
    broken = with_flow(with_state(before, "stopped"), place=None, problem="nonsense")
    assert task(settled(broken)) is None


def test_stopped_flow_keeps_discovery_while_partitions_may_come() -> None:
    """No other process knows how far the partitions reach, which a reset has to know."""
    found = {"t.0.abc@kafka": Partition(), "t.1.abc@kafka": Partition(end=7)}
    before = settled(world([flow(partitions=found)], [node("a"), node("b")]))
    stopped = settled(with_state(before, "stopped"))
    assert (list(stopped.flows["f"].tasks), task(stopped)) == ([TASK], task(before))
    had = owner(stopped) or ""
    lost = settled(with_node(stopped, had, live=False, down=True))
    assert owner(lost) not in (None, had)
    came = settled(with_flow(stopped, partitions={**found, "t.2.abc@kafka": Partition()}))
    assert list(came.flows["f"].tasks) == [TASK]
    done = {name: Partition(end=7) for name in found}
    assert task(settled(with_flow(stopped, partitions=done))) is None, "as a backfill that is done"
    again = settled(with_state(stopped, "running"))
    assert sorted(again.flows["f"].tasks) == ["collect.0", TASK]
    assert task(again) == task(before)
    gone = settled(with_state(stopped, "deleted"))
    assert "f" not in gone.flows or task(gone) is None


def test_discovery_stays_until_its_partitions_are_gone() -> None:
    """Partitions that left the spec have to be removed from the record."""
    found = {"t.0.abc@kafka": Partition(end=7)}
    now = settled(world([flow(pins=True, partitions=found)], [node("a")]))
    assert owner(now) == "a"
    assert task(settled(with_flow(now, partitions={}, discovers=False))) is None


def test_operator_moves_the_discovery_task_at_once() -> None:
    before = settled(world([flow()], [node("a"), node("b"), node("c")]))
    had, found = owner(before), task(before)
    assert found is not None
    target = next(name for name in "abc" if name != had)
    asked = replace(found, state="draining", target=target, why="moved by an operator")
    tasks = {**before.flows["f"].tasks, TASK: asked}
    plan = replace(before.flows["f"].plan, tasks=tasks)
    after = task(settled(with_flow(before, plan=plan)))
    assert after is not None
    assert (after.node, after.state, after.target) == (target, "assigned", None)
    assert after.epoch > before.flows["f"].plan.epoch


def test_discovery_task_that_meets_a_higher_epoch_gets_one_above() -> None:
    """The tree was brought back from an export, and the plan is older than the record."""
    before = settled(world([flow()], [node("a")]))
    found = task(before)
    assert found is not None
    said = TaskStatus(epoch=found.epoch, revision=1, state="stopped", epoch_seen=50)
    status = NodeStatus(assignment_version=0, tasks={f"f/{TASK}": said})
    after = task(settled(with_node(before, "a", status=status)))
    assert after is not None
    assert after.epoch > 50


def test_rollout_begins_no_sources_in_a_flow_without_ingest_tasks() -> None:
    """Ingest tasks that a wave begins, and that are not wanted, would come and go for ever."""
    web = Place(ingest=IngestPlace(labels={"role": "web"}))
    before = settled(world([flow(place=web)], [node("a", role="web")]))
    rolled = with_flow(
        before, record=Flow(revision=2), place=Place(), rollout=Rollout(canary=1, max_parallel=1)
    )
    assert sorted(settled(rolled).flows["f"].tasks) == ["collect.0", TASK]
