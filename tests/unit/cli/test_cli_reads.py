"""Output of the reading commands on a cluster: on a fake store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flumeng.control.queries import details, fan_out, overview
from flumeng.control.queries.acks import Positions, positions
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform.errors import CorruptError, UserError
from tests.testkit.cluster import add_journal
from tests.testkit.command_line import NOON, Reached, Shell
from tests.testkit.scripted_store import ScriptedStore, concerns, once
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths, records
from zkschema.table import ZPath

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"


@pytest.fixture
def write_flow(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str = FLOW, name: str = "web.yaml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


SCALED = """flow: web
sources: [kafka: {brokers: ["k:9092"], topics: [orders]}]
place: {collect: {tasks: {min: 2, max: 8}}}
sinks: [noop]
"""


def live(address: str = "") -> records.LiveNode:
    return records.LiveNode(
        uuid="u", incarnation="i", addresses=(address,), pid=1, version="0.1.0", since=NOON
    )


def run_cluster(store: FakeStore) -> None:
    """Flow web runs on n1, which is live; n2 is gone with a journal of its own."""
    tasks = {
        "ingest-n1": records.PlannedTask(kind="ingest", node="n1", epoch=1, state="assigned"),
        "collect-0": records.PlannedTask(
            kind="collect", node="n1", epoch=3, state="assigned", partitions=("web.n1.0.aa",)
        ),
    }
    status = records.NodeStatus(
        assignment_version=0,
        tasks={
            f"web/{name}": records.TaskStatus(epoch=task.epoch, revision=1, state="running")
            for name, task in tasks.items()
        },
    )
    store.write(paths.plan("web"), records.Plan(tasks=tasks), ABSENT)
    for name in ("n1", "n2"):
        node = records.Node(uuid=name, roles=("ingest", "collect"), labels={"role": name})
        store.write(paths.node(name), node, ABSENT)
        add_journal(store, f"web.{name}.0.aa")
    store.write(paths.assignment("n1"), records.Assignment(), ABSENT)
    store.write(paths.status("n1"), status, ABSENT)
    store.write(paths.live_node("n1"), live("n1:7000"), ABSENT)
    ack = records.Ack(epoch=3, offset=40)
    store.write(paths.ack("web", "main", "web.n1.0.aa"), ack, ABSENT)
    master = records.LiveMaster(host="h", pid=1, version="0.1.0", since=NOON)
    store.write(paths.live_master("m1"), master, ABSENT)


@pytest.fixture
def cluster(shell: Shell, store: FakeStore, write_flow: Callable[..., Path]) -> Shell:
    shell.run("flow", "apply", write_flow())
    run_cluster(store)
    shell.positions["n1:7000"] = {"web.n1.0.aa": Reached(floor=10, safe=100)}
    return shell


def test_flow_list_shows_state_revision_and_labels(cluster: Shell) -> None:
    assert cluster.run("flow", "list").stdout == (
        "FLOW\tSTATE\tREVISION\tDELIVERY\tSOURCES\tSINKS\tRUNNING\tLABELS\tBACKFILL OF\t"
        "PART OF\tHEALTH\n"
        "web\trunning\t1\tat-least-once\ttail\tnoop\t2/2\t-\t-\t-\trunning\n"
    )
    (row,) = cluster.json("flow", "list")
    assert (row["flow"], row["revision"], row["sources"]) == ("web", 1, ["tail"])
    assert [task["state"] for task in row["tasks"]] == ["running", "running"]


def test_flow_show_shows_the_text_plan_and_acks(cluster: Shell) -> None:
    shown = cluster.run("flow", "show", "web").stdout
    assert (
        "flow web is running\nhealth: running\nrevision 1 by ann@ops, 2023-11-14 22:13:20 UTC\n"
        in shown
    )
    assert FLOW in shown
    assert "collect-0\tcollect\tn1\t-\t3\t1\trunning\tweb.n1.0.aa\t-\n" in shown
    assert cluster.json("flow", "show", "web")["text"] == FLOW


def test_flow_show_links_the_spark_jobs_of_its_collectors_while_they_are_live(
    cluster: Shell, store: FakeStore
) -> None:
    found = store.read(paths.status("n1"))
    assert found is not None
    said = replace(found.value, spark_ui="http://127.0.0.1:4040")
    store.write(paths.status("n1"), said, found.version)
    assert (
        "Spark jobs on node n1: http://127.0.0.1:4040\n"
        in cluster.run("flow", "show", "web").stdout
    )
    assert "spark ui   http://127.0.0.1:4040\n" in cluster.run("node", "show", "n1").stdout
    live_node = store.read(paths.live_node("n1"))
    assert live_node is not None
    store.remove(paths.live_node("n1"), live_node.version)
    assert cluster.json("flow", "show", "web")["spark_uis"] == {}
    assert cluster.json("node", "show", "n1")["node"]["spark_ui"] == ""


def test_node_list_shows_live_nodes_and_their_roles(cluster: Shell) -> None:
    lines = cluster.run("node", "list").stdout.splitlines()
    assert lines[1] == "n1\tyes\tactive\tingest,collect\trole=n1\t-\t0\t0\t2/2"
    assert lines[2] == "n2\tno\tactive\tingest,collect\trole=n2\t-\t-\t-\t-"


def test_ack_list_shows_the_lag_where_it_is_known(cluster: Shell) -> None:
    assert cluster.run("ack", "list").stdout == (
        "FLOW\tPARTITION\tEPOCH\tOFFSET\tEND\tLAG\n"
        "web\tweb.n1.0.aa\t3\t40\t100\t60\n"
        "web\tweb.n2.0.aa\t-\t-\t-\t-\n"
    )


def test_reads_continue_when_no_node_answers(cluster: Shell) -> None:
    cluster.positions.clear()
    acks = cluster.json("ack", "list")
    assert [(row["offset"], row["lag"]) for row in acks] == [(40, None), (None, None)]
    journals = cluster.run("journal", "list")
    assert journals.exit_code == 0
    assert journals.stdout.splitlines()[1:] == [
        "web.n1.0.aa\tn1\t-\t-\t-\t-\t-\t-\topen",
        "web.n2.0.aa\tn2\t-\t-\t-\t-\t-\t-\topen",
    ]


def test_journal_list_shows_positions_and_lags(cluster: Shell) -> None:
    assert cluster.run("journal", "list").stdout.splitlines()[1] == (
        "web.n1.0.aa\tn1\tdisk\t10\t100\t90\t60 s\t0.0 MiB\topen"
    )
    listed = cluster.json("journal", "list")[0]
    assert listed == cluster.json("journal", "show", "web.n1.0.aa")
    assert (listed["bytes"], listed["events"], listed["oldest_unacked_seconds"]) == (9000, 90, 60.0)
    assert (listed["lost"], listed["waits_at"], listed["end"]) == (0, None, None)


def test_a_journal_that_is_not_there_is_named_with_the_nearest(cluster: Shell) -> None:
    shown = cluster.run("journal", "show", "web.n1.0.ab")
    assert shown.exit_code == 2
    assert 'did you mean "web.n1.0.aa"?' in shown.stderr


def test_a_closed_journal_has_an_end_even_when_its_node_is_gone(
    cluster: Shell, store: FakeStore
) -> None:
    journal = store.read(paths.journal("web.n2.0.aa"))
    assert journal is not None
    closed = replace(journal.value, closed=True, end=7)
    store.write(paths.journal("web.n2.0.aa"), closed, ANY)
    assert cluster.json("ack", "list")[1]["lag"] == 7


# -- status


def test_status_of_a_healthy_cluster_is_ok_with_a_row_for_each_flow(
    cluster: Shell, store: FakeStore
) -> None:
    store.write(paths.live_node("n2"), live(), ABSENT)
    result = cluster.run("status")
    assert (result.exit_code, result.stdout) == (
        0,
        "ok: 1 master live, 2 of 2 nodes live\n"
        "FLOW\tSTATE\tREVISION\tRUNNING\tLAG\tROLLOUT\tHEALTH\n"
        "web\trunning\t1\t2/2\t60+?, 60 s\t-\trunning\n",
    )


def test_status_lists_problems_and_their_advice(cluster: Shell, store: FakeStore) -> None:
    store.remove(paths.live_master("m1"), ANY)
    cluster.positions.clear()
    result = cluster.run("status")
    assert result.exit_code == 1
    assert "- no master is live" in result.stdout
    assert "- node n2 is not live\n  start `flumeng node run` on its host" in result.stdout
    assert (
        "- node n1 has not answered at n1:7000 within 2.5 s when asked for its journals"
        in result.stdout
    )
    assert cluster.json("status")["health"] == "degraded"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "failed", "error": "no space"}, "task web/collect-0 is failed: no space"),
        ({"epoch": 2}, "task web/collect-0 is starting: node n1 has not started it yet"),
        ({"revision": 0}, "task web/collect-0 is starting: runs revision 0 instead of 1"),
    ],
)
def test_status_lists_each_task_that_does_not_run(
    cluster: Shell, store: FakeStore, change: dict[str, Any], said: str
) -> None:
    status = store.read(paths.status("n1"))
    assert status is not None
    tasks = dict(status.value.tasks)
    tasks["web/collect-0"] = replace(tasks["web/collect-0"], **change)
    store.write(paths.status("n1"), replace(status.value, tasks=tasks), ANY)
    assert said in [cause["what"] for cause in cluster.json("status")["causes"]]


def vanishing(store: FakeStore, path: ZPath[Any]) -> FakeStore:
    """The znode is gone once it was read."""

    def remove() -> None:
        store.tree.znodes.pop(str(path), None)

    return ScriptedStore(store.tree, after_read=once(remove, concerns(path)))


@pytest.mark.usefixtures("cluster")
def test_flow_or_node_removed_during_a_look_is_not_there(store: FakeStore) -> None:
    """As while a command waits for it, and somebody else removes it."""
    with pytest.raises(UserError, match='there is no flow "web"'):
        overview.flow(vanishing(store, paths.flow("web")), "web")
    with pytest.raises(UserError, match='there is no node "n1"'):
        details.node(vanishing(store, paths.node("n1")), Positions(), "n1")


@pytest.mark.usefixtures("cluster")
def test_worker_with_malformed_answers_counts_as_silent_and_is_no_error(store: FakeStore) -> None:
    def ask(address: str) -> dict[str, Reached]:
        raise CorruptError(f"{address} answers with gibberish")

    found = positions(store, ask)
    assert (found.by_node, found.silent) == ({}, ("n1",))


def test_running_task_shows_its_blocked_journal(cluster: Shell, store: FakeStore) -> None:
    said = "journal web.n1.0.aa stops at seq 70: cut; run on node n1: `flumeng journal verify`"
    status = store.read(paths.status("n1"))
    assert status is not None
    tasks = dict(status.value.tasks)
    tasks["web/collect-0"] = replace(tasks["web/collect-0"], error=said)
    store.write(paths.status("n1"), replace(status.value, tasks=tasks), ANY)
    assert (
        f"task web/collect-0 (collect) is running: {said}"
        in cluster.run("task", "show", "web/collect-0").stdout
    )
    shown = cluster.json("status")
    (cause,) = [cause for cause in shown["causes"] if "collect-0" in cause["what"]]
    assert said in cause["what"]
    assert "docs/how-to/damaged-journal.md" in cause["advice"]
    assert (shown["health"], shown["flows"][0]["running"]) == ("degraded", 2)
    assert cluster.run("task", "wait", "web/collect-0", "--active").exit_code == 0


def test_status_lists_tasks_that_no_node_can_run(cluster: Shell, store: FakeStore) -> None:
    plan = store.read(paths.plan("web"))
    assert plan is not None
    waiting = records.PlannedTask(
        kind="collect", node=None, epoch=4, state="waiting", why="no node has the labels"
    )
    away = records.PlannedTask(kind="ingest", node="n2", epoch=1, state="assigned")
    tasks = {"collect-0": waiting, "ingest-n2": away}
    store.write(paths.plan("web"), replace(plan.value, tasks=tasks), ANY)
    said = {cause["what"]: cause["about"] for cause in cluster.json("status")["causes"]}
    assert said["task web/collect-0 is waiting: no node has the labels"] == "task web/collect-0"
    assert said["task web/ingest-n2 is down: node n2 is not live"] == "task web/ingest-n2"
    assert said["node n2 is not live"] == "node n2 is not live"


def test_unreadable_revision_of_another_version_is_shown(cluster: Shell, store: FakeStore) -> None:
    revision = store.read(paths.revision("web", "1"))
    assert revision is not None
    newer = replace(revision.value, text=FLOW.replace("noop", "pigeons"))
    store.write(paths.revision("web", "1"), newer, ANY)
    assert cluster.run("flow", "list").exit_code == 0
    (cause, *_) = [c["what"] for c in cluster.json("status")["causes"] if "flow web" in c["what"]]
    assert cause.startswith("flow web: revision 1 cannot be read: line 3: sinks[0]: unknown sink")


# -- schema


def test_schema_show_needs_no_cluster(shell: Shell) -> None:
    shown = shell.run("schema", "show", zk=None)
    assert shown.exit_code == 0
    assert "\n/flows/{flow}/plan\tPlan\tpersistent\tmasters\t" in shown.stdout
    table = shell.json("schema", "show")
    assert table["version"] == 1
    rows = {row["znode"]: row for row in table["znodes"]}
    assert rows["/flows"]["record"] is None


def test_schema_init_makes_a_cluster_once() -> None:
    shell = Shell(FakeTree())
    assert "schema version 1" in shell.run("schema", "init").stdout
    assert shell.run("schema", "init").stdout == "nothing to do: the cluster exists\n"
    verified = shell.run("schema", "verify")
    assert (verified.exit_code, verified.stdout) == (
        0,
        "every znode conforms to schema version 1\n",
    )


def test_schema_verify_lists_problems(shell: Shell, store: FakeStore) -> None:
    store.tree.znodes["/flows/x"] = replace(store.tree.znodes["/flows"], data=b"{}")
    result = shell.run("schema", "verify")
    assert result.exit_code == 1
    assert "/flows/x\t" in result.stdout
    assert [problem["path"] for problem in shell.json("schema", "verify")] == ["/flows/x"]


def test_two_nodes_with_one_address_are_queried_once(store: FakeStore) -> None:
    """As when a host was renamed, and its first session is not over."""
    asked = []
    for name in ("n8", "n9"):
        store.write(paths.node(name), records.Node(uuid=name, roles=("ingest",)), ABSENT)
        store.write(paths.live_node(name), live("one:7000"), ABSENT)

    def ask(address: str) -> dict[str, Reached]:
        asked.append(address)
        return {"j": Reached(0, 1)}

    began = time.monotonic()
    found = positions(store, ask)
    assert time.monotonic() < began + fan_out.ASK_SECONDS / 2
    assert asked.count("one:7000") == 1
    assert found.by_node["n8"] == found.by_node["n9"]


@pytest.mark.slow
def test_many_frozen_nodes_cost_no_more_time_than_one(store: FakeStore) -> None:
    """Also when they are more than are asked at a time, and however long each takes."""
    released = threading.Event()
    for number in range(600):
        name = f"n{number:03}"
        node = records.Node(uuid=name, roles=("ingest",))
        store.write(paths.node(name), node, ABSENT)
        store.write(paths.live_node(name), live(f"{name}:7000"), ABSENT)
    frozen = {f"n{number:03}:7000" for number in range(0, 600, 10)}

    def ask(address: str) -> dict[str, Reached]:
        if address in frozen:
            released.wait(60)
        return {f"j.{address}": Reached(0, 1)}

    began = time.monotonic()
    found = positions(store, ask)
    took = time.monotonic() - began
    released.set()
    assert took < 2 * fan_out.ASK_SECONDS
    assert {f"{name}:7000" for name in found.silent} == frozen
    assert len(found.by_node) == 540


def test_flow_shows_the_reason_for_its_number_of_tasks(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", str(write_flow(SCALED)))
    shown = shell.run("flow", "show", "web").stdout
    assert "collect tasks, 2 to 8: not decided yet\n" in shown
    decisions = (
        records.ScalingDecision(time=NOON, kind="out", before=2, tasks=5, why="late by 70 s"),
        records.ScalingDecision(time=NOON + 60, kind="steady", before=5, tasks=5, why="not late"),
    )
    said = records.Scaling(tasks=5, rate=480.0, decisions=decisions)
    store.write(paths.partitions("web"), records.Partitions(scaling=said), ABSENT)
    shown = shell.run("flow", "show", "web").stdout
    assert "collect tasks, 2 to 8: 5\n" in shown
    lines = shown.splitlines()
    assert lines[-2].split()[2:] == ["steady", "5", "not", "late"]
    assert lines[-1].split()[2:] == ["out", "2", "->", "5", "late", "by", "70", "s"]
    as_json = shell.json("flow", "show", "web")["scaling"]
    assert (as_json["min"], as_json["max"], as_json["tasks"], as_json["rate"]) == (2, 8, 5, 480.0)
    assert [one["kind"] for one in as_json["decisions"]] == ["steady", "out"]
    fixed = SCALED.replace("{min: 2, max: 8}", "2")
    shell.run("flow", "apply", str(write_flow(fixed)))
    assert shell.json("flow", "show", "web")["scaling"] is None
