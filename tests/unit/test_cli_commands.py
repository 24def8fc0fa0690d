"""The command line on a fake store: what is printed, what is written, which code it exits with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.doors import Doors
from cli.main import tree as command_tree
from flumeng.errors import UnavailableError
from flumeng.operations import KEEP_REVISIONS
from flumeng.store import ABSENT, ANY, Store, tree
from flumeng.testing import FakeStore, FakeTree
from zkschema import paths, records

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
NOON = 1_700_000_000.0


@dataclass(frozen=True)
class Reached:
    floor: int
    safe: int


@dataclass
class Shell:
    """Runs commands against one tree, each with a session of its own."""

    tree: FakeTree
    positions: dict[str, Mapping[str, Reached]]
    cut: bool = False

    def connect(self, hosts: str) -> Store:
        if self.cut:
            raise UnavailableError(f"ZooKeeper at {hosts} did not answer")
        return FakeStore(self.tree)

    def ask(self, address: str) -> Mapping[str, Reached]:
        if address not in self.positions:
            raise UnavailableError(f"{address} did not answer")
        return self.positions[address]

    def run(self, *words: object, typed: str | None = None, zk: str | None = "zk:1/c") -> Result:
        doors = Doors(self.connect, self.ask, lambda: "ann@ops", lambda: NOON)
        return CliRunner().invoke(
            command_tree, [str(word) for word in words], obj=doors, input=typed,
            env={"FLUMENG_ZK": zk}, catch_exceptions=False,
        )  # fmt: skip

    def json(self, *words: object) -> Any:
        return json.loads(self.run(*words, "--json").stdout)


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    tree.init(store)
    return store


@pytest.fixture
def shell(store: FakeStore) -> Shell:
    return Shell(store.tree, {})


@pytest.fixture
def write_flow(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str = FLOW, name: str = "web.yaml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


# -- exit codes and errors


def test_each_kind_of_error_has_its_exit_code_and_one_sentence(
    shell: Shell, write_flow: Callable[..., Path]
) -> None:
    wrong = shell.run("flow", "show", "nothing")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert wrong.stderr == 'flumeng: there is no flow "nothing"; there are no flows yet\n'
    conflict = shell.run("flow", "apply", write_flow(), "--if-revision", 7)
    assert conflict.exit_code == 3
    assert conflict.stderr == (
        "flumeng: flow web does not exist, not at revision 7: look at it again\n"
    )
    shell.cut = True
    away = shell.run("flow", "list")
    assert away.exit_code == 4
    assert away.stderr == "flumeng: ZooKeeper at zk:1/c did not answer\n"


def test_a_command_that_needs_a_cluster_says_how_to_name_one(shell: Shell) -> None:
    result = shell.run("flow", "list", zk=None)
    assert result.exit_code == 2
    assert "--zk" in result.stderr
    assert "FLUMENG_ZK" in result.stderr


def test_a_chroot_without_a_cluster_is_wrong_input() -> None:
    shell = Shell(FakeTree(), {})
    for command in ("flow list", "node list", "ack list", "journal list", "status"):
        result = shell.run(*command.split())
        assert result.exit_code == 2, command
        assert "flumeng schema init" in result.stderr


def test_sessions_are_closed(shell: Shell, store: FakeStore) -> None:
    shell.run("flow", "list")
    shell.run("flow", "show", "nothing")
    assert store.tree.stores == [store]


# -- flow validate


def test_validate_says_what_is_valid(shell: Shell, write_flow: Callable[..., Path]) -> None:
    file = write_flow()
    result = shell.run("flow", "validate", file, zk=None)
    assert (result.exit_code, result.stdout) == (0, f"{file}: flow web is valid\n")
    assert shell.json("flow", "validate", file) == []


def test_validate_tells_all_problems_of_all_files(
    shell: Shell, write_flow: Callable[..., Path], tmp_path: Path
) -> None:
    one = write_flow("flow: A\nsources: [tail: {paths: [/a]}]\nsinks: [nop]\n", "one.yaml")
    two = write_flow("flow: b\nsinks: [noop]\n", "two.yaml")
    binary = tmp_path / "three.yaml"
    binary.write_bytes(b"flow: c\n\xff")
    missing = tmp_path / "four.yaml"
    result = shell.run("flow", "validate", one, two, binary, missing, zk=None)
    assert (result.exit_code, result.stdout) == (2, "")
    header, *lines = result.stderr.splitlines()
    assert header == "flumeng: 5 problems in flow files:"
    assert lines[1] == f'{one}:3: sinks[0]: unknown sink "nop"; did you mean "noop"?'
    assert lines[2].startswith(f'{two}:1: missing "sources"')
    assert lines[3:] == [
        f"{binary}:2: is not UTF-8",
        f"{missing}: cannot be read: No such file or directory",
    ]


def test_validate_gives_problems_as_json(shell: Shell, write_flow: Callable[..., Path]) -> None:
    file = write_flow("flow: b\nsources: [tail: {paths: [/a]}]\nsinks: []\n")
    result = shell.run("flow", "validate", file, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout) == [
        {
            "file": str(file),
            "line": 3,
            "path": "sinks",
            "message": "expected at least one entry",
        }
    ]


# -- flow apply


def test_apply_writes_a_flow_and_its_revision(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    result = shell.run("flow", "apply", write_flow(), "--reason", "first")
    assert (result.exit_code, result.stdout) == (0, "flow web revision 1\n")
    flow = store.read(paths.flow("web"))
    revision = store.read(paths.revision("web", "1"))
    assert flow is not None
    assert revision is not None
    assert flow.value == records.Flow(revision=1, state="running")
    assert revision.value == records.Revision(
        text=FLOW, author="ann@ops", reason="first", time=NOON
    )
    assert tree.verify(store) == []


def test_apply_of_the_same_text_changes_nothing(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow())
    before = dict(store.dump())
    result = shell.run("flow", "apply", write_flow())
    assert (result.exit_code, result.stdout) == (0, "flow web revision 1 (unchanged)\n")
    assert store.dump() == before


def test_apply_of_another_text_makes_the_next_revision_and_keeps_the_last(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow())
    result = shell.run("flow", "apply", write_flow(FLOW + "# more\n"), "--if-revision", 1)
    assert result.stdout == "flow web revision 2\n"
    assert store.children(paths.revisions("web")) == ["1", "2"]
    stale = shell.run("flow", "apply", write_flow(FLOW + "# other\n"), "--if-revision", 1)
    assert (stale.exit_code, stale.stderr) == (
        3,
        "flumeng: flow web is at revision 2, not at revision 1: look at it again\n",
    )
    assert store.children(paths.revisions("web")) == ["1", "2"]


def test_the_history_of_a_flow_is_bounded(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    for number in range(KEEP_REVISIONS + 3):
        shell.run("flow", "apply", write_flow(f"{FLOW}# {number}\n"))
    kept = sorted(int(number) for number in store.children(paths.revisions("web")))
    assert kept == list(range(4, KEEP_REVISIONS + 4))


def test_a_problem_in_one_file_keeps_all_from_being_written(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    good, bad = write_flow(), write_flow("flow: b\n", "bad.yaml")
    result = shell.run("flow", "apply", good, bad)
    assert result.exit_code == 2
    assert store.children(paths.flows()) == []


def test_one_flow_in_two_files_is_a_problem(shell: Shell, write_flow: Callable[..., Path]) -> None:
    one, two = write_flow(), write_flow(FLOW + "#\n", "two.yaml")
    result = shell.run("flow", "apply", one, two)
    assert result.stderr == (
        f"flumeng: 1 problem in flow files:\n{two}: flow: flow web is also in {one}\n"
    )


def test_a_change_by_someone_else_in_between_is_a_conflict(
    store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    """The compare-and-set, not the check before it, decides who wins."""

    class Meddler(Shell):
        def connect(self, hosts: str) -> Store:
            mine = super().connect(hosts)
            commit = mine.commit

            def commit_late(writes: Any) -> Any:
                flow = store.read(paths.flow("web"))
                assert flow is not None
                store.write(paths.flow("web"), replace(flow.value, revision=9), flow.version)
                return commit(writes)

            mine.commit = commit_late  # type: ignore[method-assign]
            return mine

    Shell(store.tree, {}).run("flow", "apply", write_flow())
    result = Meddler(store.tree, {}).run("flow", "apply", write_flow(FLOW + "#\n"))
    assert result.exit_code == 3
    assert result.stderr == "flumeng: /flows/web was changed by someone else\n"
    assert store.children(paths.revisions("web")) == ["1"]


def test_if_revision_goes_with_one_file(shell: Shell, write_flow: Callable[..., Path]) -> None:
    two = write_flow("flow: b\n", "b.yaml")
    assert shell.run("flow", "apply", write_flow(), two, "--if-revision", 0).exit_code == 2
    assert shell.run("flow", "apply", write_flow(), "--if-revision", 0).exit_code == 0


def test_every_change_leaves_an_audit_entry(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow(), "--reason", "why not")
    shell.run("flow", "delete", "web")
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    told = {(e.value.who, e.value.command, e.value.reason) for e in entries if e}
    assert told == {
        ("ann@ops", "flow apply web (revision 1)", "why not"),
        ("ann@ops", "flow delete web", ""),
    }


# -- flow delete


def test_delete_asks_masters_to_drain(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow())
    result = shell.run("flow", "delete", "web", "--if-revision", 1)
    assert result.exit_code == 0
    assert "collected to their end" in result.stdout
    flow = store.read(paths.flow("web"))
    assert flow is not None
    assert (flow.value.state, flow.value.discard) == ("deleted", False)
    again = shell.run("flow", "delete", "web")
    assert (again.exit_code, again.stdout) == (0, "flow web is being deleted already\n")
    applied = shell.run("flow", "apply", write_flow())
    assert (applied.exit_code, applied.stderr) == (
        3,
        "flumeng: flow web is being deleted: apply it again when it is gone\n",
    )


def test_discard_asks_first(
    shell: Shell, store: FakeStore, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow())
    refused = shell.run("flow", "delete", "web", "--discard", typed="n\n")
    assert refused.exit_code == 1
    flow = store.read(paths.flow("web"))
    assert flow is not None
    assert flow.value.state == "running"
    assert shell.run("flow", "delete", "web", "--discard", "--yes").exit_code == 0
    flow = store.read(paths.flow("web"))
    assert flow is not None
    assert (flow.value.state, flow.value.discard) == ("deleted", True)


def test_delete_of_a_misspelt_flow_names_the_nearest(
    shell: Shell, write_flow: Callable[..., Path]
) -> None:
    shell.run("flow", "apply", write_flow())
    result = shell.run("flow", "delete", "wbe")
    assert result.stderr == 'flumeng: there is no flow "wbe"; did you mean "web"?\n'
    assert shell.run("flow", "delete", "we/b").exit_code == 2


# -- looking


def live(address: str = "") -> records.LiveNode:
    return records.LiveNode(
        uuid="u", incarnation="i", address=address, pid=1, version="0.1.0", since=NOON
    )


def run_cluster(store: FakeStore) -> None:
    """Flow web runs on n1, which is live; n2 was there and is gone with a journal of its own."""
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
        journal = records.Journal(flow="web", node=name, primary=name, term=1, in_sync=(name,))
        store.write(paths.journal(f"web.{name}.0.aa"), journal, ABSENT)
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


def test_flow_list(cluster: Shell) -> None:
    assert cluster.run("flow", "list").stdout == (
        "FLOW\tSTATE\tREVISION\tDELIVERY\tSOURCES\tSINKS\tRUNNING\n"
        "web\trunning\t1\tat-least-once\ttail\tnoop\t2/2\n"
    )
    (row,) = cluster.json("flow", "list")
    assert (row["flow"], row["revision"], row["sources"]) == ("web", 1, ["tail"])
    assert [task["state"] for task in row["tasks"]] == ["running", "running"]


def test_flow_show(cluster: Shell) -> None:
    shown = cluster.run("flow", "show", "web").stdout
    assert "flow web is running\nrevision 1 by ann@ops, 2023-11-14 22:13:20 UTC\n" in shown
    assert FLOW in shown
    assert "collect-0\tcollect\tn1\t3\trunning\tweb.n1.0.aa\t-\n" in shown
    assert cluster.json("flow", "show", "web")["text"] == FLOW


def test_node_list(cluster: Shell) -> None:
    lines = cluster.run("node", "list").stdout.splitlines()
    assert lines[1] == (
        "n1\tyes\tactive\tingest,collect\trole=n1\t0\t0\t"
        "web/collect-0=running,web/ingest-n1=running"
    )
    assert lines[2] == "n2\tno\tactive\tingest,collect\trole=n2\t-\t-\t-"


def test_ack_list_shows_the_lag_where_it_is_known(cluster: Shell) -> None:
    assert cluster.run("ack", "list").stdout == (
        "FLOW\tCURSOR\tPARTITION\tEPOCH\tOFFSET\tEND\tLAG\n"
        "web\tmain\tweb.n1.0.aa\t3\t40\t100\t60\n"
        "web\tmain\tweb.n2.0.aa\t-\t-\t-\t-\n"
    )


def test_reads_go_on_when_no_node_answers(cluster: Shell) -> None:
    cluster.positions.clear()
    acks = cluster.json("ack", "list")
    assert [(row["offset"], row["lag"]) for row in acks] == [(40, None), (None, None)]
    journals = cluster.run("journal", "list")
    assert journals.exit_code == 0
    assert journals.stdout.splitlines()[1:] == [
        "web.n1.0.aa\tn1\tweb\t1\t-\t-\tno",
        "web.n2.0.aa\tn2\tweb\t1\t-\t-\tno",
    ]


def test_journal_list(cluster: Shell) -> None:
    assert cluster.run("journal", "list").stdout.splitlines()[1] == (
        "web.n1.0.aa\tn1\tweb\t1\t10\t100\tno"
    )


def test_a_closed_journal_has_an_end_even_when_its_node_is_gone(
    cluster: Shell, store: FakeStore
) -> None:
    journal = store.read(paths.journal("web.n2.0.aa"))
    assert journal is not None
    closed = replace(journal.value, closed=True, end=7)
    store.write(paths.journal("web.n2.0.aa"), closed, ANY)
    assert cluster.json("ack", "list")[1]["lag"] == 7


# -- status


def test_status_of_a_well_cluster(cluster: Shell, store: FakeStore) -> None:
    store.write(paths.live_node("n2"), live(), ABSENT)
    result = cluster.run("status")
    assert (result.exit_code, result.stdout) == (
        0,
        "ok: 1 master live, 2 of 2 nodes live\n"
        "FLOW\tSTATE\tREVISION\tRUNNING\tLAG\n"
        "web\trunning\t1\t2/2\t60+?\n",
    )


def test_status_says_what_is_wrong_and_what_to_do(cluster: Shell, store: FakeStore) -> None:
    store.remove(paths.live_master("m1"), ANY)
    cluster.positions.clear()
    result = cluster.run("status")
    assert result.exit_code == 1
    assert "- no master is live" in result.stdout
    assert "- node n2 is not live\n  start `flumeng node run` on its host" in result.stdout
    assert "- node n1 does not serve its journals at n1:7000" in result.stdout
    assert cluster.json("status")["health"] == "degraded"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "failed", "error": "no space"}, "task web/collect-0 is failed: no space"),
        ({"epoch": 2}, "task web/collect-0 is starting: node n1 has not started it yet"),
        ({"revision": 0}, "task web/collect-0 is starting: runs revision 0, 1 is wanted"),
    ],
)
def test_status_tells_of_each_task_that_does_not_run(
    cluster: Shell, store: FakeStore, change: dict[str, Any], said: str
) -> None:
    status = store.read(paths.status("n1"))
    assert status is not None
    tasks = dict(status.value.tasks)
    tasks["web/collect-0"] = replace(tasks["web/collect-0"], **change)
    store.write(paths.status("n1"), replace(status.value, tasks=tasks), ANY)
    assert said in [cause["what"] for cause in cluster.json("status")["causes"]]


def test_status_tells_of_tasks_that_nobody_can_run(cluster: Shell, store: FakeStore) -> None:
    plan = store.read(paths.plan("web"))
    assert plan is not None
    waiting = records.PlannedTask(
        kind="collect", node=None, epoch=4, state="waiting", why="no node has the labels"
    )
    away = records.PlannedTask(kind="ingest", node="n2", epoch=1, state="assigned")
    tasks = {"collect-0": waiting, "ingest-n2": away}
    store.write(paths.plan("web"), replace(plan.value, tasks=tasks), ANY)
    said = [cause["what"] for cause in cluster.json("status")["causes"]]
    assert "task web/collect-0 is waiting: no node has the labels" in said
    assert "task web/ingest-n2 is away: node n2 is not live" in said


def test_a_revision_of_another_flumeng_is_shown_not_fatal(cluster: Shell, store: FakeStore) -> None:
    revision = store.read(paths.revision("web", "1"))
    assert revision is not None
    newer = replace(revision.value, text=FLOW.replace("noop", "kafka"))
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
    assert {"znode": "/flows", "record": None}.items() <= table["znodes"][2].items()


def test_schema_init_makes_a_cluster_once() -> None:
    shell = Shell(FakeTree(), {})
    assert "schema version 1" in shell.run("schema", "init").stdout
    assert shell.run("schema", "init").stdout == "nothing to do: the cluster is there\n"
    verified = shell.run("schema", "verify")
    assert (verified.exit_code, verified.stdout) == (0, "every znode keeps to schema version 1\n")


def test_schema_verify_tells_what_is_wrong(shell: Shell, store: FakeStore) -> None:
    store.tree.znodes["/flows/x"] = replace(store.tree.znodes["/flows"], data=b"{}")
    result = shell.run("schema", "verify")
    assert result.exit_code == 1
    assert "/flows/x\t" in result.stdout
    assert [problem["path"] for problem in shell.json("schema", "verify")] == ["/flows/x"]
