"""Nodes and tasks, as operators look at them, drain them and take them out. On a fake store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flumeng.control.zookeeper import ABSENT, ANY, Store, Version, Write
from tests.testkit.cluster import add_journal, new_cluster
from tests.testkit.command_line import NOON, Reached, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.verify import verify

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
LIVE = records.LiveNode(
    uuid="u", incarnation="i", addresses=("n1:7000",), pid=1, version="0.1.0", since=NOON
)


@pytest.fixture
def store() -> FakeStore:
    """Flow web at revision 2, with both of its tasks and one journal on node n1, which is live."""
    store = new_cluster()
    flow = records.Flow(revision=2)
    store.write(paths.flow("web"), flow, ABSENT)
    for folder in (paths.revisions("web"), paths.acks("web"), paths.cursor("web", "main")):
        store.write(folder, None, ABSENT)
    revision = records.Revision(text=FLOW, author="a", reason="", time=NOON)
    store.write(paths.revision("web", "2"), revision, ABSENT)
    planned = {
        "ingest.n1": records.PlannedTask(kind="ingest", node="n1", epoch=1, state="assigned"),
        "collect.0": records.PlannedTask(
            kind="collect", node="n1", epoch=3, state="assigned", partitions=("web.n1.0.aa",)
        ),
    }
    store.write(paths.plan("web"), records.Plan(tasks=planned), ABSENT)
    for name in ("n1", "n2"):
        node = records.Node(uuid=name, roles=("ingest", "collect"), labels={"role": "web"})
        store.write(paths.node(name), node, ABSENT)
    store.write(paths.live_node("n1"), LIVE, ABSENT)
    tasks = tuple(
        records.AssignedTask(
            flow="web", task=name, kind=task.kind, epoch=task.epoch, revision=2, state="running"
        )
        for name, task in planned.items()
    )
    store.write(paths.assignment("n1"), records.Assignment(tasks=tasks), ABSENT)
    said = {
        f"web/{name}": records.TaskStatus(epoch=task.epoch, revision=1, state="running")
        for name, task in planned.items()
    }
    status = records.NodeStatus(assignment_version=0, tasks=said)
    store.write(paths.status("n1"), status, ABSENT)
    add_journal(store, "web.n1.0.aa")
    ack = records.Ack(epoch=3, offset=40)
    store.write(paths.ack("web", "main", "web.n1.0.aa"), ack, ABSENT)
    return store


@pytest.fixture
def shell(store: FakeStore) -> Shell:
    shell = Shell(store.tree)
    shell.positions["n1:7000"] = {"web.n1.0.aa": Reached(floor=0, safe=100)}
    return shell


def node(store: FakeStore, name: str = "n1") -> records.Node:
    found = store.read(paths.node(name))
    assert found is not None
    return found.value


def commands(store: FakeStore) -> set[tuple[str, str]]:
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    return {(entry.value.command, entry.value.reason) for entry in entries if entry}


def empty(store: FakeStore, *kinds: str) -> None:
    """The cluster after a finished drain."""
    if "plan" in kinds:
        store.write(paths.plan("web"), records.Plan(), ANY)
    if "assignment" in kinds:
        store.write(paths.assignment("n1"), records.Assignment(), ANY)
    if "status" in kinds:
        store.write(paths.status("n1"), records.NodeStatus(assignment_version=1), ANY)
    if "journals" in kinds:
        store.remove(paths.journal("web.n1.0.aa"), ANY)


ALL = ("plan", "assignment", "status", "journals")

# -- looking


def test_node_show_lists_state_labels_tasks_and_journals(shell: Shell) -> None:
    shown = shell.run("node", "show", "n1").stdout
    assert "live       yes, at n1:7000\ndesired    active\n" in shown
    assert "labels     role=web\ncapacity   -\nassignment 0 applied of 0\n" in shown
    assert "web/collect.0\tcollect\t3\tstarting\truns revision 1 instead of 2\n" in shown
    assert "web.n1.0.aa\t60\n" in shown
    as_json = shell.json("node", "show", "n1")
    assert as_json["node"]["labels"] == {"role": "web"}
    assert as_json["journals"] == {"web.n1.0.aa": 60}
    assert as_json["left"] == {
        "tasks": ["web/collect.0", "web/ingest.n1"],
        "journals": ["web.n1.0.aa"],
        "replicas": [],
        "unreadable": [],
    }


def test_task_list_and_task_show_list_tasks_with_their_state(shell: Shell) -> None:
    lines = shell.run("task", "list").stdout.splitlines()
    assert lines[1] == (
        "web/collect.0\tcollect\tn1\t-\t3\t1 (2 wanted)\tstarting\t1\truns revision 1 instead of 2"
    )
    assert [row["task"] for row in shell.json("task", "list")] == ["collect.0", "ingest.n1"]
    shown = shell.run("task", "show", "web/collect.0").stdout
    assert shown.startswith(
        "task web/collect.0 (collect) is starting: runs revision 1 instead of 2\n"
        "node n1, epoch 3\n"
        "revision 2 is wanted, 1 is applied\n"
    )
    assert "web.n1.0.aa\t3\t40\t100\t60\n" in shown
    as_json = shell.json("task", "show", "web/collect.0")
    assert (as_json["task"]["wanted"], as_json["task"]["revision"]) == (2, 1)


def test_revision_of_an_earlier_owner_is_not_shown_as_applied(
    shell: Shell, store: FakeStore
) -> None:
    plan = store.read(paths.plan("web"))
    assert plan is not None
    later = {name: replace(task, epoch=9) for name, task in plan.value.tasks.items()}
    store.write(paths.plan("web"), replace(plan.value, tasks=later), ANY)
    assert shell.json("task", "show", "web/collect.0")["task"]["revision"] is None


def test_unknown_names_get_the_nearest(shell: Shell) -> None:
    assert 'did you mean "n1"' in shell.run("node", "show", "n11").stderr
    assert 'did you mean "web/collect.0"' in shell.run("task", "show", "web/collect.1").stderr
    for words in (("drain",), ("undrain",), ("decommission",), ("label", "a=b")):
        assert shell.run("node", words[0], "nope", *words[1:]).exit_code == 2


# -- label


def test_labels_are_set_and_removed(shell: Shell, store: FakeStore) -> None:
    done = shell.run("node", "label", "n1", "role-", "disk=ssd", "tier=", "--reason", "new disk")
    assert (done.exit_code, done.stdout) == (0, "node n1 has labels disk=ssd, tier=\n")
    assert node(store).labels == {"disk": "ssd", "tier": ""}
    assert ("node label n1 disk=ssd tier= role-", "new disk") in commands(store)
    before = store.dump()
    shell.run("node", "label", "n1", "role-", "disk=ssd")
    assert store.dump() == before
    assert shell.run("node", "label", "n1", "disk-", "tier-").stdout == "node n1 has no labels\n"


@pytest.mark.parametrize(
    "words",
    [("role",), ("=x",), ("a=1", "a-"), ("a-", "a="), ("role-", "roles"), ("role-", "-")],
    ids=" ".join,
)
def test_invalid_label_is_wrong_input(
    shell: Shell, store: FakeStore, words: tuple[str, ...]
) -> None:
    assert shell.run("node", "label", "n1", *words).exit_code == 2
    assert node(store).labels == {"role": "web"}


# -- capacity


def test_capacity_is_set_shown_and_removed(shell: Shell, store: FakeStore) -> None:
    done = shell.run("node", "capacity", "n1", "slots=16", "mb_per_second=200.5", "--reason", "new")
    assert (done.exit_code, done.stdout) == (
        0, "node n1 has capacity slots=16, mb_per_second=200.5\n",
    )  # fmt: skip
    assert node(store).capacity == {"slots": 16.0, "mb_per_second": 200.5}
    assert ("node capacity n1 slots=16 mb_per_second=200.5", "new") in commands(store)
    assert "capacity   mb_per_second=200.5, slots=16\n" in shell.run("node", "show", "n1").stdout
    assert "\tmb_per_second=200.5, slots=16\t" in shell.run("node", "list").stdout
    assert shell.json("node", "show", "n1")["node"]["capacity"]["slots"] == 16.0
    before = store.dump()
    shell.run("node", "capacity", "n1", "slots=16")
    assert store.dump() == before
    gone = shell.run("node", "capacity", "n1", "slots-", "mb_per_second-")
    assert gone.stdout == "node n1 has no set capacity\n"
    assert node(store).capacity == {}


def test_capacity_that_no_flow_weighs_is_reported(shell: Shell) -> None:
    assert shell.run("node", "capacity", "n1", "slots=16").stderr == ""
    mistyped = shell.run("node", "capacity", "n1", "slot=16")
    assert (mistyped.exit_code, mistyped.stderr) == (
        0,
        'no flow has a task weight slot, so this limits nothing yet; did you mean "slots"?\n',
    )


@pytest.mark.parametrize(
    "words",
    [
        ("slots",),
        ("=1",),
        ("slots=x",),
        ("slots=0",),
        ("slots=nan",),
        ("slots=inf",),
        ("a=1", "a-"),
    ],
    ids=" ".join,
)
def test_invalid_capacity_is_refused_and_not_stored(
    shell: Shell, store: FakeStore, words: tuple[str, ...]
) -> None:
    assert shell.run("node", "capacity", "n1", *words).exit_code == 2
    assert node(store).capacity == {}


# -- drain


def test_drain_lists_the_remaining_tasks_and_journals(shell: Shell, store: FakeStore) -> None:
    result = shell.run("node", "drain", "n1", "--reason", "old disk")
    assert (result.exit_code, result.stdout) == (
        0,
        "node n1 drains: 2 tasks and 1 journal left\n"
        "- task web/collect.0 is starting\n"
        "- task web/ingest.n1 is starting\n"
        "- journal web.n1.0.aa: 60 events are not in the sinks yet\n",
    )
    assert node(store).desired == "draining"
    assert commands(store) == {("node drain n1", "old disk")}
    shell.run("node", "drain", "n1")
    assert len(commands(store)) == 1
    assert shell.run("node", "undrain", "n1").stdout == "node n1 may get work again\n"
    assert node(store).desired == "active"
    assert shell.run("node", "undrain", "n1").stdout == "node n1 is active already\n"


@pytest.mark.parametrize("kind", ALL)
def test_drain_is_done_only_when_nothing_is_left(shell: Shell, store: FakeStore, kind: str) -> None:
    empty(store, *(other for other in ALL if other != kind))
    assert "left\n" in shell.run("node", "drain", "n1").stdout
    empty(store, kind)
    assert shell.run("node", "drain", "n1").stdout == (
        "node n1 is drained (remove it with `flumeng node decommission n1`)\n"
    )


@pytest.mark.parametrize(
    ("partitions", "runs", "left"),
    [((), False, False), ((), True, True), (("web.n2.0.aa",), False, True)],
    ids=["reads nothing", "still runs", "still needed"],
)
def test_last_collector_is_drained_when_its_task_has_nothing_left_to_read(
    shell: Shell, store: FakeStore, partitions: tuple[str, ...], runs: bool, left: bool
) -> None:
    """No other node may run the task, so masters leave it where it is."""
    empty(store, *ALL)
    task = records.PlannedTask(
        kind="collect", node="n1", epoch=3, state="draining", partitions=partitions, why="why"
    )
    store.write(paths.plan("web"), records.Plan(tasks={"collect.0": task}), ANY)
    assigned = records.AssignedTask(
        flow="web", task="collect.0", kind="collect", epoch=3, revision=2, state="draining"
    )
    store.write(paths.assignment("n1"), records.Assignment(tasks=(assigned,)), ANY)
    if runs:
        said = {"web/collect.0": records.TaskStatus(epoch=3, revision=2, state="running")}
        status = records.NodeStatus(assignment_version=2, tasks=said)
        store.write(paths.status("n1"), status, ANY)
    (row,) = shell.json("task", "list")
    assert row["state"] == "draining"
    shown = shell.run("node", "drain", "n1").stdout
    assert ("task web/collect.0" in shown, "is drained" in shown) == (left, not left)


def test_drain_of_an_absent_node_reports_that_it_must_come_back(
    shell: Shell, store: FakeStore
) -> None:
    store.remove(paths.live_node("n1"), ANY)
    empty(store, "plan", "assignment")
    shown = shell.run("node", "drain", "n1").stdout
    assert "1 journal left; it is not live: start it" in shown
    assert "? events are not in the sinks yet" in shown


def test_drain_waits_until_it_is_done(shell: Shell, store: FakeStore) -> None:
    steps = list(ALL)
    shell.meanwhile = lambda: empty(store, steps.pop()) if steps else None
    result = shell.run("node", "drain", "n1", "--wait", "--timeout", 60)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("node n1 is drained")
    assert steps == []


def test_drain_that_times_out_lists_the_remaining_work(shell: Shell, store: FakeStore) -> None:
    empty(store, "plan", "assignment", "status")
    result = shell.run("node", "drain", "n1", "--wait", "--timeout", 60)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "flumeng: not within 60 s; still missing:\n"
        "- journal web.n1.0.aa is not fully collected yet\n"
    )
    assert 60 <= shell.seconds < 62


def test_wait_survives_a_short_absence_of_zookeeper(shell: Shell, store: FakeStore) -> None:
    def meanwhile() -> None:
        (session,) = [other for other in store.tree.stores if other is not store]
        session.connected = shell.seconds > 5
        if session.connected:
            empty(store, *ALL)

    shell.meanwhile = meanwhile
    assert shell.run("node", "drain", "n1", "--wait", "--timeout", 60).exit_code == 0


def test_dry_run_of_a_drain_changes_nothing(shell: Shell, store: FakeStore) -> None:
    before = store.dump()
    shown = shell.run("node", "drain", "n1", "--dry-run").stdout.splitlines()
    assert shown[0] == "TASK\tFROM\tTO\tWHAT"
    assert "web/ingest.n1\tn1\t-\tends" in shown
    assert shell.json("node", "drain", "n1", "--dry-run")["moves"]
    assert store.dump() == before


def test_dry_run_of_an_apply_changes_nothing(
    shell: Shell, store: FakeStore, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("flows") / "web.yaml"
    file.write_text(FLOW + "# more\n")
    before = store.dump()
    shown = shell.run("flow", "apply", file, "--dry-run").stdout
    assert "web/collect.0\tn1\tn1\ttakes revision 3\n" in shown
    assert shell.run("flow", "apply", file, "--dry-run", "--if-revision", 9).exit_code == 3
    assert store.dump() == before
    assert shell.json("flow", "apply", file) == [
        {"file": str(file), "flow": "web", "revision": 3, "changed": True, "error": None}
    ]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a:b", "web@n1", "..", "n" * 101])
def test_node_name_that_is_invalid_in_journal_names_is_wrong_input(
    shell: Shell, tmp_path: Path, name: str
) -> None:
    data = tmp_path / "data"
    wrong = shell.run("node", "run", "--data", data, "--name", name)
    assert wrong.exit_code == 2
    assert "use at most 100 letters, digits" in wrong.stderr
    assert not data.exists()


def test_node_on_a_public_address_needs_an_identity(shell: Shell, tmp_path: Path) -> None:
    data = tmp_path / "data"
    wrong = shell.run("node", "run", "--data", data, "--host", "10.0.0.7")
    assert wrong.exit_code == 2
    assert "other hosts could read all events" in wrong.stderr
    assert not data.exists()


# -- decommission


def test_decommission_removes_a_node_that_is_drained_and_stopped(
    shell: Shell, store: FakeStore
) -> None:
    live = shell.run("node", "decommission", "n1")
    assert (live.exit_code, live.stderr) == (
        3, "flumeng: node n1 is live: drain it, then stop it\n",
    )  # fmt: skip
    store.remove(paths.live_node("n1"), ANY)
    for kind in ALL:
        refused = shell.run("node", "decommission", "n1")
        left = kind != "status"
        if left:
            assert refused.exit_code == 3, kind
            assert "drain it first" in refused.stderr
            empty(store, kind)
    done = shell.run("node", "decommission", "n1", "--reason", "sold")
    assert (done.exit_code, done.stdout) == (0, "node n1 is gone\n")
    assert not [path for path in store.dump() if "/n1" in path]
    assert ("node decommission n1", "sold") in commands(store)
    assert verify(store.dump()) == []


def test_decommission_of_a_node_with_an_unreadable_record_names_it(
    shell: Shell, store: FakeStore
) -> None:
    """Draining could not end."""
    store.remove(paths.live_node("n1"), ANY)
    empty(store, *ALL)
    store.tree.znodes[str(paths.assignment("n1"))].data = b"{"
    refused = shell.run("node", "decommission", "n1")
    assert refused.exit_code == 3
    assert f"schema verify` ({paths.assignment('n1')}: " in refused.stderr
    assert "drain" not in refused.stderr


def test_advice_about_a_masters_trouble_depends_on_its_subject(
    shell: Shell, store: FakeStore
) -> None:
    troubles = {"certificate of master": "it expired", "master m2": "hangs", "node n1": "refused"}
    master = records.LiveMaster(host="h", pid=1, version="0", since=0.0, troubles=troubles)
    store.write(paths.live_master("m1"), master, ABSENT)
    causes = {cause["what"]: cause["advice"] for cause in shell.json("status")["causes"]}
    assert causes["certificate of master: it expired (master m1)"].startswith("replace it")
    assert "where it hangs" in causes["master m2: hangs (master m1)"]
    assert "tries again" in causes["node n1: refused (master m1)"]


@pytest.mark.parametrize("meddling", ["comes live", "gets work"])
def test_node_that_comes_back_meanwhile_is_not_removed(store: FakeStore, meddling: str) -> None:
    class Meddler(Shell):
        def connect(self, hosts: str) -> Store:
            mine = super().connect(hosts)
            commit = mine.commit

            def commit_late(writes: Sequence[Write]) -> list[Version]:
                if meddling == "comes live":
                    store.write(paths.live_node("n1"), LIVE, ABSENT)
                else:
                    store.write(paths.assignment("n1"), records.Assignment(), ANY)
                return commit(writes)

            mine.commit = commit_late  # type: ignore[method-assign]
            return mine

    store.remove(paths.live_node("n1"), ANY)
    empty(store, *ALL)
    assert Meddler(store.tree).run("node", "decommission", "n1").exit_code == 3
    assert store.exists(paths.node("n1"))
    assert store.exists(paths.assignment("n1"))


def test_json_of_a_drain_lists_the_remaining_work(shell: Shell) -> None:
    left = json.loads(shell.run("node", "drain", "n1", "--json").stdout)
    assert left["journals"] == ["web.n1.0.aa"]


def test_drain_of_a_task_without_another_node_reports_it(shell: Shell, store: FakeStore) -> None:
    plan = store.read(paths.plan("web"))
    assert plan is not None
    task = replace(plan.value.tasks["collect.0"], state="draining", why="n1 may not keep it")
    store.write(paths.plan("web"), records.Plan(tasks={"collect.0": task}), ANY)
    empty(store, "status")
    waited = shell.run("node", "drain", "n1", "--wait", "--timeout", 1)
    assert waited.exit_code == 1
    assert (
        "- task web/collect.0 is draining: n1 may not keep it; its node released it, and no other "
        "node runs it yet\n"
    ) in waited.stderr
