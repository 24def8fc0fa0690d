"""Masters over one tree: they converge, they do not fight, and they forget."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from flumeng.control.commands.flows import apply_flow, delete_flow, set_flow_state
from flumeng.control.commands.nodes import set_node_desired
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import set_setting
from flumeng.control.master.daemon import Master
from flumeng.control.snapshot.assignment_pages import read_assignment
from flumeng.control.snapshot.reader import master_of
from flumeng.control.snapshot.task_map import BUCKETS, read_plan
from flumeng.control.zookeeper import ABSENT, ANY, Put, Store, Write
from flumeng.control.zookeeper.transaction import singly
from flumeng.events.journal_names import new_id
from flumeng.platform.errors import UnavailableError
from flumeng.platform.metrics import table as metrics
from tests.testkit.cluster import add_journal, add_node, new_cluster, settle
from tests.testkit.scripted_store import (
    ScriptedStore,
    concerns,
    fail_from,
    nothing,
    once,
    puts,
    removes,
)
from tests.testkit.store import FakeStore, FakeTree
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths, records

FLOW = """
flow: {name}
sources: [{{syslog: {{listen: "127.0.0.1:5514"}}}}]
sinks: [{{console: {{}}}}]
"""


@pytest.fixture
def cluster() -> FakeTree:
    return new_cluster().tree


def apply(store: Store, name: str) -> None:
    apply_flow(Operator(store, "a", "", 0.0), FLOW.format(name=name))


def apply_text(store: Store, name: str, more: str) -> None:
    text = f"{FLOW.format(name=name)}{more}\n"
    apply_flow(Operator(store, "a", "", 0.0), text)


def assignment(store: Store, node: str) -> tuple[records.AssignedTask, ...]:
    found = read_assignment(store, node)
    return found.value.tasks if found else ()


def tasks(store: Store, node: str) -> set[str]:
    return {f"{task.flow}/{task.task}" for task in assignment(store, node)}


def test_masters_together_give_every_task_once(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    for name in ("n1", "n2"):
        add_node(store, name)
    for name in ("a", "b", "c", "d"):
        apply(store, name)
    settle(*[Master(FakeStore(cluster), f"m{number}") for number in range(3)])
    assert tasks(store, "n1") | tasks(store, "n2") == {
        f"{flow}/{task}" for flow in "abcd" for task in ("ingest.n1", "ingest.n2", "collect.0")
    }
    assert not tasks(store, "n1") & tasks(store, "n2")


def test_a_master_that_died_leaves_its_flows_to_the_others(cluster: FakeTree) -> None:
    store, doomed_store = FakeStore(cluster), FakeStore(cluster)
    doomed, other = Master(doomed_store, "m1"), Master(FakeStore(cluster), "m2")
    settle(doomed, other)
    add_node(store, "n1")
    names = [f"f{number}" for number in range(8)]
    for name in names:
        apply(store, name)
    others = [name for name in names if master_of(name, ["m1", "m2"]) == "m1"]
    assert others, "the test needs a flow of the doomed master"
    doomed_store.expire()
    settle(other)
    assert {key.split("/")[0] for key in tasks(store, "n1")} == set(names)


def test_lost_race_is_retried(cluster: FakeTree) -> None:
    """Another master writes the plan between this master's read and its write."""
    store = FakeStore(cluster)
    flow = next(name for name in "abcdefgh" if master_of(name, ["m1", "m2"]) == "m2")
    add_node(store, "n1")
    apply(store, flow)

    other = Master(FakeStore(cluster), "m2")
    racing = ScriptedStore(cluster, before_commit=once(other.tick, concerns(paths.plan(flow))))
    master = Master(racing, "m1")
    assert master.tick() == f"retrying after a conflict: znode /flows/{flow}/plan exists already"
    settle(master, other)
    assert tasks(store, "n1") == {f"{flow}/ingest.n1", f"{flow}/collect.0"}


def test_plan_of_a_flow_that_has_changed_since_is_not_written(cluster: FakeTree) -> None:
    """Its new revision or state may allow less than the one that was planned."""
    store = FakeStore(cluster)
    add_node(store, "n1")
    apply(store, "a")
    suspend = once(
        lambda: set_flow_state(Operator(store, "a", "", 0.0), "a", "suspended"),
        puts(paths.plan("a")),
    )
    master = Master(ScriptedStore(cluster, before_commit=suspend), "m1")
    assert master.tick() == "retrying after a conflict: znode /flows/a was changed by someone else"
    assert read_plan(store, "a") is None
    settle(master)
    assert tasks(store, "n1") == {"a/ingest.n1"}


def left_by_its_master(cluster: FakeTree) -> tuple[FakeStore, str, str, records.Assignment]:
    """A flow's task, planned by a master whose session has ended: a store, the node that runs the
    task, with its assignment, and another node."""
    store, first_store = FakeStore(cluster), FakeStore(cluster)
    for name in ("n1", "n2"):
        add_node(store, name)
    apply(store, "a")
    settle(Master(first_store, "m1"))
    first_store.expire()
    owner, other = sorted(("n1", "n2"), key=lambda name: "a/collect.0" not in tasks(store, name))
    assignment = store.read(paths.assignment(owner))
    assert assignment is not None
    return store, owner, other, assignment.value


def test_task_is_assigned_only_after_its_owner_of_another_master_lost_it(cluster: FakeTree) -> None:
    """The other master had written the plan; it assigns the owner while this one moves the task
    on."""
    store, owner, other, assignment = left_by_its_master(cluster)
    others = tuple(task for task in assignment.tasks if task.task != "collect.0")
    store.write(paths.assignment(owner), records.Assignment(tasks=others), ANY)
    store.remove(paths.live_node(owner), ANY)

    overtaken = ScriptedStore(
        cluster,
        before_commit=once(
            lambda: store.write(paths.assignment(owner), assignment, ANY), concerns(paths.plan("a"))
        ),
    )
    master = Master(overtaken, "m2")
    master.tick()
    assert "a/collect.0" in tasks(store, owner)
    assert "a/collect.0" not in tasks(store, other)
    settle(master)
    assert "a/collect.0" not in tasks(store, owner)
    assert "a/collect.0" in tasks(store, other)


def test_task_is_not_assigned_in_a_tick_in_which_its_owner_cannot_lose_it(
    cluster: FakeTree,
) -> None:
    """The owner's assignment is written by another master when this one takes the task away."""
    store, owner, other, assignment = left_by_its_master(cluster)
    store.remove(paths.live_node(owner), ANY)

    overtaken = ScriptedStore(
        cluster,
        before_commit=once(
            lambda: store.write(paths.assignment(owner), assignment, ANY),
            puts(paths.assignment(owner)),
        ),
    )
    master = Master(overtaken, "m2")
    assert "retrying after a conflict" in master.tick()
    plan = read_plan(store, "a")
    assert plan is not None
    assert plan.value.tasks["collect.0"].node == other, "the plan has moved it on already"
    assert "a/collect.0" in tasks(store, owner)
    assert "a/collect.0" not in tasks(store, other)
    settle(master)
    assert "a/collect.0" not in tasks(store, owner)
    assert "a/collect.0" in tasks(store, other)


def test_a_deleted_flow_leaves_nothing_behind(cluster: FakeTree) -> None:
    store, master = FakeStore(cluster), Master(FakeStore(cluster), "m1")
    add_node(store, "n1")
    apply(store, "a")
    settle(master)
    status = records.NodeStatus(
        assignment_version=0,
        tasks={"a/ingest.n1": records.TaskStatus(epoch=1, revision=1, state="running")},
    )
    store.write(paths.status("n1"), status, ABSENT)
    delete_flow(Operator(store, "a", "", 0.0), "a")
    settle(master)
    assert store.children(paths.flows()) == ["a"], "its source still runs"
    store.write(paths.status("n1"), records.NodeStatus(assignment_version=1), ANY)
    settle(master)
    below = ("/flows/", "/acks/", "/commits/")
    assert [path for path in store.dump() if path.startswith(below)] == []


def drained_flow(cluster: FakeTree) -> Store:
    """A deleted flow whose only journal is acked to its end, and a node that runs none of its
    tasks."""
    store = FakeStore(cluster)
    add_node(store, "n1")
    apply(store, "a")
    first_store = FakeStore(cluster)
    settle(Master(first_store, "m1"))
    first_store.close()
    add_journal(store, "a.n1.0", closed=True, end=7)
    store.write(paths.ack("a", "main", "a.n1.0"), records.Ack(epoch=1, offset=7), ABSENT)
    delete_flow(Operator(store, "a", "", 0.0), "a")
    ending_store = FakeStore(cluster)
    settle(Master(ending_store, "m1"))
    ending_store.close()
    assignment = store.read(paths.assignment("n1"))
    assert assignment is not None
    status = records.NodeStatus(assignment_version=assignment.version.number)
    store.write(paths.status("n1"), status, ABSENT)
    return store


@pytest.mark.parametrize("writes", range(8))
def test_another_master_completes_a_removal(cluster: FakeTree, writes: int) -> None:
    """Also when the acks that say that all is collected are gone already."""
    store = drained_flow(cluster)
    doomed_store = ScriptedStore(cluster)
    doomed = Master(doomed_store, "m0")
    doomed_store.before_commit = fail_from(writes + 1, UnavailableError("cut off"))
    for _ in range(3):
        doomed.tick()
    doomed_store.expire()
    settle(Master(FakeStore(cluster), "m2"))
    assert store.children(paths.flows()) == []
    assert [path for path in store.dump() if path.startswith("/acks/")] == []


def test_a_master_that_was_frozen_leaves_the_next_flow_of_that_name_alone(
    cluster: FakeTree,
) -> None:
    store = drained_flow(cluster)

    other = master_of("a", ["m0", "m2"]) or ""
    frozen: list[str] = []

    def freeze() -> None:
        """It wakes up when the flow that it was about to remove is gone and there is another."""
        settle(Master(FakeStore(cluster), other))
        store.remove(paths.journal("a.n1.0"), ANY)
        apply(store, "a")
        frozen.append("a")

    frozen_store = ScriptedStore(cluster, before_commit=once(freeze, removes))
    master = Master(frozen_store, "m2" if other == "m0" else "m0")
    for _ in range(3):
        master.tick()
    assert frozen
    found = store.read(paths.flow("a"))
    assert found is not None
    assert found.value.state == "running"
    assert store.exists(paths.revision("a", "1"))


def test_write_without_an_answer_is_looked_at_again_soon(cluster: FakeTree) -> None:
    """Nothing wakes the master then: there is no change to hear of, and no reconnect."""
    store = FakeStore(cluster)
    add_node(store, "n1")
    apply(store, "web")
    tried = threading.Event()

    def lose(writes: Sequence[Write]) -> None:
        """Connected all the time, but for a while no plan that is written is answered."""
        if writes[0].path != paths.live_master("m1"):
            tried.set()
            raise UnavailableError("time is up")

    unanswering = ScriptedStore(cluster, before_commit=lose)
    master = Master(unanswering, "m1")
    running = threading.Thread(target=master.run, daemon=True)
    running.start()
    assert tried.wait(PATIENCE_SECONDS)
    unanswering.before_commit = nothing
    wait_for(lambda: tasks(store, "n1"))
    master.stop()
    running.join(PATIENCE_SECONDS)
    assert not running.is_alive()


def test_master_without_a_schema_reports_the_command_to_use() -> None:
    assert "flumeng schema init" in Master(FakeStore(), "m1").tick()


@pytest.mark.slow
def test_a_plan_too_large_for_one_znode_is_written_read_and_followed(cluster: FakeTree) -> None:
    store, master = FakeStore(cluster), Master(FakeStore(cluster), "m1")
    for number in range(3):
        add_node(store, f"n{number}")
    text = FLOW.format(name="big") + "place: {collect: {tasks: 2000}}\n"
    apply_flow(Operator(store, "a", "", 0.0), text)
    settle(master)
    found = read_plan(store, "big")
    assert found is not None
    assert len(found.value.tasks) == 2003
    assert found.value.buckets == len(store.children(paths.plan("big"))) == BUCKETS
    assert len(tasks(store, "n0")) in (668, 667)
    store.remove(paths.live_node("n0"), ANY)
    settle(master, Master(FakeStore(cluster), "m2"))
    assert len(tasks(store, "n1")) in (1001, 1000)
    assert Master(FakeStore(cluster), "m3").tick() == "nothing to do"


def add_journals(store: Store, flow: str, node: str, count: int) -> None:
    """Add journals with names as large as real ones: each has a random part that does not
    compress."""
    journal = records.Journal(flow=flow, node=node, primary=node, term=1, in_sync=(node,))
    names = [new_id(flow, f"{node}-{number:05d}", 0) for number in range(count)]
    made = [Put(paths.journal(name), journal, ABSENT) for name in names]
    for part in singly(store.scale, made):
        store.commit(part)


@pytest.mark.slow
def test_task_with_thousands_of_journals_beside_many_tasks_is_planned(cluster: FakeTree) -> None:
    """More than 512 tasks lie in buckets, and one of them has nearly all there is to write."""
    store, master = FakeStore(cluster), Master(FakeStore(cluster), "m1")
    for number in range(603):
        add_node(store, f"n{number}")
    apply_text(store, "web", "place: {collect: {tasks: 1}}")
    add_journals(store, "web", "n1", 6500)
    settle(master)
    found = read_plan(store, "web")
    assert found is not None
    collect = [task for task in found.value.tasks.values() if task.kind == "collect"]
    assert sum(len(task.partitions) for task in collect) == 6500
    assert sum(map(len, (assignment(store, f"n{number}") for number in range(603)))) == 603 + len(
        collect
    )


@pytest.mark.long
def test_node_with_very_many_journals_gets_all_of_them_assigned(cluster: FakeTree) -> None:
    """One collector for many flows of many hosts: its assignment does not fit into one znode."""
    store, master = FakeStore(cluster), Master(FakeStore(cluster), "m1")
    add_node(store, "n1")
    for number in range(5):
        apply_text(store, f"f{number}", "place: {collect: {tasks: 2}}")
        add_journals(store, f"f{number}", "n1", 6000)
    settle(master)
    told = assignment(store, "n1")
    assert sum(len(task.partitions) for task in told) == 5 * 6000
    store.write(paths.node("n2"), records.Node(uuid="n2", roles=("collect",)), ABSENT)
    set_node_desired(Operator(store, "a", "", 0.0), "n1", "draining")
    settle(master, Master(FakeStore(cluster), "m2"))
    assert {task.state for task in assignment(store, "n1")} == {"running"}, "nobody else may run it"
    set_flow_state(Operator(store, "a", "", 0.0), "f0", "stopped")
    delete_flow(Operator(store, "a", "", 0.0), "f1", discard=True)
    settle(master, Master(FakeStore(cluster), "m2"))
    assert {task.flow for task in assignment(store, "n1")} == {f"f{n}" for n in range(5)} - {"f1"}


def test_moves_are_counted_by_their_kinds(cluster: FakeTree) -> None:
    store, doomed = FakeStore(cluster), FakeStore(cluster)
    add_node(store, "n1")
    add_node(doomed, "n2")
    for name in "abcd":
        apply(store, name)
    set_setting(Operator(store, "a", "", 0.0), "grace_seconds", "0")
    master = Master(FakeStore(cluster), "m1")
    settle(master)
    collected = len({key for key in tasks(store, "n2") if key.endswith("/collect.0")})
    assert counted(master, metrics.MOVES) == {"placed": 12, "recovery": 0, "handoff": 0}
    assert collected
    doomed.expire()
    settle(master)
    assert counted(master, metrics.MOVES)["recovery"] == collected
    assert counted(master, metrics.FLOWS) == {"": 4}
    assert counted(master, metrics.NODES_MISSING) == {"": 1}


def counted(master: Master, wanted: metrics.Metric) -> dict[str, object]:
    return {
        "".join(labels): value
        for metric, value, labels in master.measures.readings()
        if metric is wanted
    }


def test_plan_deleted_by_hand_comes_back_above_all_epochs(cluster: FakeTree) -> None:
    """The acks refuse a lower one: a task under it could never claim them."""
    store = FakeStore(cluster)
    for name in ("n1", "n2"):
        add_node(store, name)
    apply(store, "web")
    add_journals(store, "web", "n1", 1)
    (journal,) = store.children(paths.journals())
    master = Master(FakeStore(cluster), "m1")
    settle(master)
    store.write(paths.ack("web", "main", journal), records.Ack(epoch=40, offset=7), ABSENT)
    store.remove(paths.plan("web"), ANY)
    settle(master)
    found = read_plan(store, "web")
    assert found is not None
    assert min(task.epoch for task in found.value.tasks.values()) > 40
    told = [task for node in ("n1", "n2") for task in assignment(store, node)]
    assert {task.epoch for task in told} == {t.epoch for t in found.value.tasks.values()}
    store.remove(paths.plan("web"), ANY)
    store.remove(paths.ack("web", "main", journal), ANY)
    settle(Master(FakeStore(cluster), "m2"))
    again = read_plan(store, "web")
    assert again is not None
    assert min(task.epoch for task in again.value.tasks.values()) > found.value.epoch


def decide(store: Store, name: str, task: str, journal: str, *, epoch: int) -> None:
    """Decide a batch as the task's owner does."""
    found = store.read(paths.intent(name, task))
    number = found.value.number + 1 if found else 1
    ranges = {journal: (0, 5)}
    intent = records.Intent(
        epoch=epoch, series="s", number=number, revision=1, splits=1, ranges=ranges
    )
    store.write(paths.intent(name, task), intent, found.version if found else ABSENT)


def end(store: Store, name: str, task: str) -> None:
    found = store.read(paths.intent(name, task))
    assert found
    store.write(paths.intent(name, task), replace(found.value, ranges={}), found.version)


def two_tasks_become_one(store: Store) -> tuple[str, int]:
    """Let the masters merge two tasks; returns a journal of the second one, and its epoch."""
    add_node(store, "n1")
    apply_text(store, "web", "place: {collect: {tasks: 2}}")
    for number in range(4):
        add_journal(store, f"web.n1.0.aaaaaaa{number}", in_sync=())
    settle(Master(store, "m0"))
    plan = read_plan(store, "web")
    assert plan
    apply_text(store, "web", "place: {collect: {tasks: 1}}")
    return plan.value.tasks["collect.1"].partitions[0], plan.value.tasks["collect.1"].epoch


def test_journals_stay_with_a_task_until_its_decided_batch_is_finished(cluster: FakeTree) -> None:
    """No sink of the flow has such batches any more: the decided one counts."""
    store = FakeStore(cluster)
    journal, epoch = two_tasks_become_one(store)
    decide(store, "web", "collect.1", journal, epoch=epoch)
    master = Master(store, "m")
    master.tick()
    said = master.tick()
    assert "journals stay with task web/collect.1 until its batches are finished" in said
    plan = read_plan(store, "web")
    assert plan
    kept = plan.value.tasks["collect.1"]
    assert (kept.state, len(kept.partitions)) == ("draining", 2)
    end(store, "web", "collect.1")
    settle(master)
    plan = read_plan(store, "web")
    assert plan
    assert [len(task.partitions) for key, task in plan.value.tasks.items() if "coll" in key] == [4]
    fence = store.read(paths.intent("web", "collect.1"))
    assert fence
    assert fence.value.epoch > epoch


def test_a_batch_that_is_decided_while_a_master_writes_keeps_its_journals(
    cluster: FakeTree,
) -> None:
    store = FakeStore(cluster)
    journal, epoch = two_tasks_become_one(store)
    decide(store, "web", "collect.1", journal, epoch=epoch)
    end(store, "web", "collect.1")

    raced: list[str] = []

    def race() -> None:
        decide(store, "web", "collect.1", journal, epoch=epoch)
        raced.append(journal)

    racing = ScriptedStore(cluster, before_commit=once(race, concerns(paths.intent)))
    master = Master(racing, "m")
    for _ in range(4):
        master.tick()
    assert raced
    plan = read_plan(store, "web")
    assert plan
    assert journal in plan.value.tasks["collect.1"].partitions
