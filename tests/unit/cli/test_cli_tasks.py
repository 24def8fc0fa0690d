"""Tasks are restarted and moved by command: on a fake store, with masters and obedient nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flumeng.control.commands.flows import apply_flow, set_flow_state
from flumeng.control.commands.nodes import set_node_desired
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.tasks import move_task, restart_task
from flumeng.control.master.daemon import Master
from flumeng.control.snapshot.task_map import read_plan
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform.errors import ConflictError
from tests.testkit.cluster import come_live, new_cluster
from tests.testkit.command_line import Shell
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.store import FakeStore
from tests.unit.control.obedient_nodes import obey, settle
from zkschema import paths, records

FLOW = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:5514"}}]
place: {collect: {tasks: 2, labels: {role: spark}}}
sinks: [noop]
"""
SIGN = ("ann", "", 0.0)
NODES = ("n1", "n2", "n3", "n4")


@pytest.fixture
def store() -> FakeStore:
    """Flow web at rest: n1 and n2 collect; n3 is free for it too, n4 lacks its label."""
    store = new_cluster()
    for name in NODES:
        labels = {} if name == "n4" else {"role": "spark"}
        node = records.Node(uuid=name, roles=("ingest", "collect"), labels=labels)
        store.write(paths.node(name), node, ABSENT)
        come_live(store, name)
    apply_flow(Operator(store, *SIGN), FLOW)
    settle(store)
    assert [owner(store, "collect.0"), owner(store, "collect.1")] == ["n1", "n2"]
    return store


def planned(store: FakeStore, name: str) -> records.PlannedTask:
    plan = read_plan(store, "web")
    assert plan is not None
    return plan.value.tasks[name]


def owner(store: FakeStore, name: str) -> str | None:
    return planned(store, name).node


def change_node(store: FakeStore, name: str, **fields: object) -> None:
    found = store.read(paths.node(name))
    assert found is not None
    store.write(paths.node(name), replace(found.value, **fields), ANY)  # type: ignore[arg-type]


def commands(store: FakeStore) -> list[tuple[str, str]]:
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    return [(entry.value.command, entry.value.reason) for entry in entries if entry][1:]


# -- restart


def test_a_restarted_task_stays_on_its_node_under_a_higher_epoch(
    shell: Shell, store: FakeStore
) -> None:
    before = planned(store, "collect.0")
    done = shell.run("task", "restart", "web/collect.0", "--reason", "stuck")
    after = planned(store, "collect.0")
    assert (done.exit_code, done.stdout) == (
        0,
        f"task web/collect.0 starts again on n1 under epoch {after.epoch} "
        "(follow with `flumeng task wait web/collect.0 --active`)\n",
    )
    assert after.epoch > max(before.epoch, planned(store, "collect.1").epoch)
    assert (after.node, after.partitions) == (before.node, before.partitions)
    assert after.why == "restarted by an operator: stuck"
    assert commands(store) == [("task restart web/collect.0", "stuck")]
    assert shell.run("task", "wait", "web/collect.0", "--active", "--timeout", 1).exit_code == 1
    settle(store)
    assert planned(store, "collect.0") == after
    assert shell.run("task", "wait", "web/collect.0", "--active").exit_code == 0


def test_a_source_is_restarted_too(shell: Shell, store: FakeStore) -> None:
    before = planned(store, "ingest.n1")
    assert shell.json("task", "restart", "web/ingest.n1")["node"] == "n1"
    settle(store)
    assert planned(store, "ingest.n1").epoch > before.epoch


def test_dry_run_of_a_restart_changes_nothing(shell: Shell, store: FakeStore) -> None:
    before = store.dump()
    shown = shell.run("task", "restart", "web/collect.0", "--dry-run")
    epoch = max(planned(store, name).epoch for name in ("collect.0", "collect.1", "ingest.n4")) + 1
    assert f"web/collect.0\tn1\tn1\tstarts again under epoch {epoch}\n" in shown.stdout
    assert store.dump() == before


def test_impossible_restart_is_refused(shell: Shell, store: FakeStore) -> None:
    unknown = shell.run("task", "restart", "web/collect.9")
    assert (unknown.exit_code, 'did you mean "web/collect' in unknown.stderr) == (2, True)
    store.remove(paths.live_node("n1"), ANY)
    away = shell.run("task", "restart", "web/collect.0")
    assert (away.exit_code, "n1 is not live" in away.stderr) == (3, True)
    come_live(store, "n1")
    shell.run("task", "move", "web/collect.0", "n3")
    drains = shell.run("task", "restart", "web/collect.0")
    assert (drains.exit_code, "drains" in drains.stderr) == (3, True)


def test_restart_loses_to_an_earlier_change_of_a_master(store: FakeStore) -> None:
    def plan_again(_writes: object) -> None:
        plan = store.read(paths.plan("web"))
        assert plan is not None
        store.write(paths.plan("web"), plan.value, plan.version)

    meddled = ScriptedStore(store.tree, before_commit=plan_again)
    before = planned(store, "collect.0")
    with pytest.raises(ConflictError, match="/flows/web/plan was changed"):
        restart_task(Operator(meddled, *SIGN), "web/collect.0")
    assert planned(store, "collect.0") == before


# -- move


def test_a_moved_task_is_handed_over_by_its_owner_and_then_runs_there(
    shell: Shell, store: FakeStore
) -> None:
    done = shell.run("task", "move", "web/collect.1", "n3", "--reason", "hot host")
    assert (done.exit_code, done.stdout) == (
        0,
        "task web/collect.1 moves from n2 to n3 "
        "(follow with `flumeng task wait web/collect.1 --active`)\n",
    )
    marked = planned(store, "collect.1")
    assert (marked.node, marked.state, marked.target) == ("n2", "draining", "n3")
    assert marked.why == "moved by an operator: hot host"
    assert commands(store) == [("task move web/collect.1 n3", "hot host")]
    again = shell.run("task", "move", "web/collect.1", "n3")
    assert (again.exit_code, again.stdout) == (
        0, "task web/collect.1 is on n3, or on its way there, already\n",
    )  # fmt: skip
    assert len(commands(store)) == 1
    settle(store)
    after = planned(store, "collect.1")
    assert (after.node, after.state, after.target) == ("n3", "assigned", None)
    assert after.epoch > marked.epoch
    assert shell.run("task", "wait", "--active").exit_code == 0


def test_task_sent_elsewhere_meanwhile_gets_no_more_time_to_be_released(
    shell: Shell, store: FakeStore
) -> None:
    shell.run("task", "move", "web/collect.1", "n3")
    mark = planned(store, "collect.1").mark
    assert shell.run("task", "move", "web/collect.1", "n1").exit_code == 0
    assert (planned(store, "collect.1").target, planned(store, "collect.1").mark) == ("n1", mark)


def test_moved_task_stays_on_its_target_also_when_others_have_less_work(
    shell: Shell, store: FakeStore
) -> None:
    apply_flow(Operator(store, *SIGN), FLOW.replace("flow: web", "flow: other"))
    settle(store)
    shell.run("task", "move", "web/collect.0", "n2")
    settled = shell.json("task", "list")
    assert planned(store, "collect.0").target == "n2"
    for _ in range(3):
        obey(store, "n1")
        Master(FakeStore(store.tree), "m").tick()
    assert owner(store, "collect.0") == "n2", settled


def test_dry_run_of_a_move_shows_the_result_and_changes_nothing(
    shell: Shell, store: FakeStore
) -> None:
    before = store.dump()
    shown = shell.run("task", "move", "web/collect.1", "n3", "--dry-run").stdout
    assert "web/collect.1\tn2\tn3\tmoves\n" in shown
    assert "web/collect.0" not in shown
    nothing = shell.run("task", "move", "web/collect.1", "n2", "--dry-run")
    assert nothing.stdout == "nothing would move\n"
    assert store.dump() == before


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("n4", "it lacks (`flumeng node label n4 role=spark`)"),
        ("roleless", "it lacks the role collect"),
        ("draining", "it is draining (`flumeng node undrain draining`)"),
        ("dead", "it is not live"),
        ("n44", 'there is no node "n44"; did you mean "n4"?'),
    ],
)
def test_a_node_that_may_not_run_a_task_is_refused_with_the_reason(
    shell: Shell, store: FakeStore, node: str, said: str
) -> None:
    good = records.Node(uuid="u", roles=("collect",), labels={"role": "spark"})
    bad = {
        "roleless": replace(good, roles=("ingest",)),
        "draining": replace(good, desired="draining"),
        "dead": good,
    }
    if node in bad:
        store.write(paths.node(node), bad[node], ABSENT)
        if node != "dead":
            come_live(store, node)
    before = store.dump()
    for words in ((), ("--dry-run",)):
        refused = shell.run("task", "move", "web/collect.0", node, *words)
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr
    assert store.dump() == before


def test_node_without_room_is_refused(shell: Shell, store: FakeStore) -> None:
    """Each of the flow's tasks weighs one slot here."""
    change_node(store, "n2", capacity={"slots": 1.0})
    full = shell.run("task", "move", "web/collect.0", "n2")
    assert full.exit_code == 2
    assert "its capacity (slots=1) is used up (`flumeng node capacity n2 ...`)" in full.stderr
    change_node(store, "n2", capacity={"slots": 2.0})
    assert shell.run("task", "move", "web/collect.0", "n2").exit_code == 0


def test_move_respects_the_per_node_limit_of_a_flow(shell: Shell, store: FakeStore) -> None:
    apart = FLOW.replace("tasks: 2,", "tasks: 2, per_node: 1,")
    apply_flow(Operator(store, *SIGN), apart)
    settle(store)
    refused = shell.run("task", "move", "web/collect.0", "n2")
    assert (refused.exit_code, "it has 1 tasks of the flow, which allows 1" in refused.stderr) == (
        2, True,
    )  # fmt: skip
    assert shell.run("task", "move", "web/collect.0", "n3").exit_code == 0


def test_a_source_is_not_moved(shell: Shell, store: FakeStore) -> None:
    refused = shell.run("task", "move", "web/ingest.n1", "n2")
    assert (refused.exit_code, "pinned" in refused.stderr) == (2, True)
    assert owner(store, "ingest.n1") == "n1"


def test_task_that_its_node_must_release_is_left_to_the_masters(
    shell: Shell, store: FakeStore
) -> None:
    set_node_desired(Operator(store, *SIGN), "n1", "draining")
    Master(FakeStore(store.tree), "m").tick()
    refused = shell.run("task", "move", "web/collect.0", "n3")
    assert (refused.exit_code, "is being moved from n1 already" in refused.stderr) == (3, True)


def test_move_conflicts_with_a_concurrent_change_of_the_flow(store: FakeStore) -> None:
    late = ScriptedStore(
        store.tree,
        before_commit=lambda _: set_flow_state(Operator(store, *SIGN), "web", "suspended"),
    )
    with pytest.raises(ConflictError, match="/flows/web was changed"):
        move_task(Operator(late, *SIGN), "web/collect.0", "n3")
    assert planned(store, "collect.0").state == "assigned"


# -- how tasks have ended


def test_ended_tasks_are_listed_also_after_a_change_of_masters(
    store: FakeStore, shell: Shell
) -> None:
    """Each ``settle`` is another master; the one before has no memory that would be missed."""
    restart_task(Operator(store, "ann", "it hung", 60.0), "web/collect.0")
    settle(store)
    move_task(Operator(store, *SIGN), "web/collect.1", "n3")
    settle(store)
    set_flow_state(Operator(store, *SIGN), "web", "suspended")
    settle(store)
    rows = shell.json("task", "list", "--ended", "web")
    assert [(r["task"], r["node"], r["epoch"], r["how"], r["why"]) for r in rows] == [
        ("collect.0", "n1", 5, "stopped", "restarted by an operator: it hung"),
        ("collect.1", "n2", 6, "stopped", "moved by an operator"),
        ("collect.0", "n1", 7, "stopped", "the flow is suspended"),
        ("collect.1", "n3", 9, "stopped", "the flow is suspended"),
    ]
    assert rows[0]["time"] == 60.0
    assert shell.json("task", "list", "--ended") == rows
    lines = shell.run("task", "list", "--ended").stdout.splitlines()
    assert lines[0] == "TIME\tTASK\tNODE\tEPOCH\tENDED\tWHY"
    assert lines[1].endswith("\tweb/collect.0\tn1\t5\tstopped\trestarted by an operator: it hung")
    shown = shell.run("flow", "show", "web").stdout
    assert "tasks that ended last (4 of 4 kept: `flumeng task list --ended web`)\n" in shown


def test_tasks_of_one_flow_are_listed(store: FakeStore, shell: Shell) -> None:
    apply_flow(Operator(store, *SIGN), FLOW.replace("web", "log").replace("5514", "5515"))
    settle(store)
    assert {row["flow"] for row in shell.json("task", "list")} == {"web", "log"}
    assert {row["flow"] for row in shell.json("task", "list", "log")} == {"log"}
    assert shell.run("task", "list", "lgo").exit_code == 2
