"""The reasons for which a task moves: one example each."""

from __future__ import annotations

from dataclasses import replace

from flumeng.config import CollectPlace, Place
from flumeng.control.planner.planner import plan
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from tests.props.planning import apply_all, check_legal, converge, nodes_obey
from zkschema.records import COLLECT, Flow, Journal, Node, NodeStatus, Plan, TaskStatus


def one_task(owner_live: bool, down: bool = False, desired: str = "active") -> Snapshot:
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
    a = replace(a, live=owner_live, down=down, record=replace(a.record, desired=desired))
    return replace(settled, nodes={"a": a, "b": replace(b, live=True)})


def owner(snapshot: Snapshot) -> tuple[str | None, int]:
    task = snapshot.flows["f"].plan.tasks[f"{COLLECT}.0"]
    return task.node, task.epoch


def test_a_task_moves_only_when_its_owner_is_gone_for_the_grace_period() -> None:
    assert owner(apply_all(one_task(owner_live=True))) == ("a", 1)
    assert owner(apply_all(one_task(owner_live=False))) == ("a", 1)
    assert owner(apply_all(one_task(owner_live=False, down=True))) == ("b", 2)


def test_draining_owner_keeps_the_task_until_it_has_released_it() -> None:
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


def test_released_task_without_another_runner_returns_to_its_owner() -> None:
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
    left = {**settled.nodes, "n3": replace(settled.nodes["n3"], live=False, down=True)}
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
    assert draining(unowned) == 1, "no node has the label, so waiting for one helps no task"
    missed = {**joined.nodes, "n0": replace(joined.nodes["n0"], live=False)}
    assert draining(replace(joined, nodes=missed)) == 0, "within the grace period"


def test_suspended_flow_still_receives_and_stopped_flow_still_collects() -> None:
    settled = apply_all(one_task(owner_live=True))
    both = Node(uuid="a", roles=("ingest", "collect"))
    journal = Journal(flow="f", node="a", primary="a", term=1, in_sync=("a",))
    settled = apply_all(
        replace(
            settled, nodes={"a": replace(settled.nodes["a"], record=both)}, journals={"j": journal}
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


def test_ending_flow_ends_although_its_revision_is_unreadable() -> None:
    """Such a flow cannot be corrected any more."""
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


def test_deleted_flow_is_removed_once_its_journals_are_drained_and_idle() -> None:
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
