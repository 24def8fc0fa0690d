"""A rollout as operators see it: the revision of each task, the progress, and the reason of a
return.

Masters plan and nodes obey, on a fake store; a node can be scripted to fail a revision.
"""

from __future__ import annotations

import pytest

from flumeng.control.commands import preview
from flumeng.control.commands.flows import apply_flow, rollback_flow, set_flow_state
from flumeng.control.commands.nodes import label_node, set_node_desired
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.revisions import KEEP_REVISIONS
from flumeng.control.master.daemon import Master
from flumeng.control.zookeeper import ABSENT, ANY
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_node, new_cluster
from tests.testkit.command_line import Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

FLOW = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:5514"}}]
place: {collect: {tasks: 3}}
sinks: [noop]
rollout: {canary: 1, max_parallel: 2, settle_seconds: 0}
"""
NEWER = f"{FLOW}# newer\n"
SLOW = FLOW.replace("settle_seconds: 0}", "settle_seconds: 3600}\n# slow")
SIGN = ("ann", "", 0.0)
NODES = ("n1", "n2", "n3")


class Cluster:
    """A master and obedient nodes, one step at a time."""

    def __init__(self) -> None:
        self.store = new_cluster()
        self.shell = Shell(self.store.tree)
        self.failing: dict[tuple[str, int], str] = {}
        for name in NODES:
            add_node(self.store, name)
        self.master = Master(FakeStore(self.store.tree), "m")
        apply_flow(Operator(self.store, *SIGN), FLOW)
        self.settle()

    def plan(self) -> str:
        return self.master.tick()

    def obey(self) -> None:
        for name in NODES:
            found = self.store.read(paths.assignment(name))
            assert found is not None
            said = {
                f"{task.flow}/{task.task}": self._said(name, task)
                for task in found.value.tasks
                if task.state != "draining"
            }
            status = records.NodeStatus(assignment_version=found.version.number, tasks=said)
            before = self.store.read(paths.status(name))
            if before is None or before.value != status:
                expect = before.version if before else ABSENT
                self.store.write(paths.status(name), status, expect)

    def settle(self) -> None:
        for _ in range(50):
            said = self.plan()
            self.obey()
            if said == "nothing to do" == self.plan():
                return
        pytest.fail("the masters did not come to rest")

    def _said(self, node: str, task: records.AssignedTask) -> records.TaskStatus:
        error = self.failing.get((node, task.revision))
        return records.TaskStatus(
            epoch=task.epoch,
            revision=task.revision,
            state="failed" if error else "running",
            error=error,
        )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def revisions(shell: Shell) -> dict[str, tuple[int, int | None]]:
    return {row["task"]: (row["wanted"], row["revision"]) for row in shell.json("task", "list")}


def test_task_list_shows_the_desired_and_the_running_revision(cluster: Cluster) -> None:
    shell = cluster.shell
    assert set(revisions(shell).values()) == {(1, 1)}
    assert shell.json("flow", "show", "web")["rollout"] is None
    apply_flow(Operator(cluster.store, *SIGN), NEWER)
    cluster.plan()
    seen = revisions(shell)
    canary = [name for name, (wanted, _) in seen.items() if wanted == 2]
    assert sorted(name.split(".")[0] for name in canary) == ["collect", "ingest"]
    assert {seen[name] for name in canary} == {(2, 1)}
    assert {row for name, row in seen.items() if name not in canary} == {(1, 1)}
    shown = shell.run("task", "list").stdout
    assert shown.count("\t1 (2 wanted)\t") == 2
    assert shown.count("\t1\trunning\t") == 4
    assert "\t1 (2 wanted)\t" in shell.run("flow", "show", "web").stdout


def test_the_progress_of_a_rollout_is_shown_until_it_is_done(cluster: Cluster) -> None:
    shell = cluster.shell
    apply_flow(Operator(cluster.store, *SIGN), NEWER)
    cluster.plan()
    assert (
        "rollout: revision 2 runs in 0 of 6 tasks, the others stay with 1 (canary of 1, "
        "2 allowed)\n"
    ) in shell.run("flow", "show", "web").stdout
    cluster.obey()
    (row,) = shell.json("status")["flows"]
    assert row["rollout"] == {
        "revision": 2, "before": 1, "stage": "canary", "canary": 1, "max_parallel": 2,
        "tasks": 6, "taken": 2, "running": 2,
        "paused": False,
    }  # fmt: skip
    assert "\t2/6 run 2 (canary)\t" in shell.run("status").stdout
    assert shell.run("flow", "wait", "web", "--running", "--timeout", 1).exit_code == 0
    waiting = shell.run("flow", "wait", "web", "--rolled-out", "--timeout", 1)
    assert waiting.exit_code == 1
    assert "- revision 2 runs in 2 of 6 tasks" in waiting.stderr
    cluster.plan()
    assert shell.json("status")["flows"][0]["rollout"]["stage"] == "waves"
    cluster.settle()
    assert set(revisions(shell).values()) == {(2, 2)}
    assert shell.json("flow", "show", "web")["rollout"] is None
    done = shell.run("flow", "wait", "web", "--rolled-out", "--timeout", 1)
    assert (done.exit_code, done.stderr) == (0, "")


def test_flow_that_rolled_back_shows_the_reason_until_the_next_apply(cluster: Cluster) -> None:
    shell = cluster.shell
    apply_flow(Operator(cluster.store, *SIGN), NEWER)
    cluster.failing = {(name, 2): "no such table" for name in NODES}
    cluster.settle()
    assert set(revisions(shell).values()) == {(1, 1)}
    shown = shell.run("flow", "show", "web").stdout
    assert "revision 1 by ann" in shown
    assert "it went back to this revision: task web/" in shown
    assert "failed with revision 2: no such table" in shown
    status = shell.run("status")
    assert status.exit_code == 1
    assert "- flow web went back to revision 1 by itself: task web/" in status.stdout
    assert "no such table\n  correct the file and apply it" in status.stdout
    waiting = shell.run("flow", "wait", "web", "--rolled-out", "--timeout", 60)
    assert (waiting.exit_code, cluster.shell.seconds) == (1, 0)
    assert waiting.stderr.startswith("flumeng: flow web went back to revision 1: task web/")
    assert [row["revision"] for row in shell.json("flow", "history", "web")] == [1, 2]
    entries = [cluster.store.read(paths.audit(n)) for n in cluster.store.children(paths.audits())]
    assert any(e and "rollout of revision 2 goes back to 1" in e.value.command for e in entries)
    cluster.failing = {}
    assert apply_flow(Operator(cluster.store, *SIGN), f"{FLOW}# right\n").revision == 3
    cluster.settle()
    assert shell.run("flow", "wait", "web", "--rolled-out", "--timeout", 1).exit_code == 0
    assert "went back" not in shell.run("flow", "show", "web").stdout
    assert not [c for c in shell.json("status")["causes"] if "went back" in c["what"]]


@pytest.mark.parametrize("again", ["apply", "rollback"])
def test_applying_the_restored_revision_clears_the_cause(cluster: Cluster, again: str) -> None:
    apply_flow(Operator(cluster.store, *SIGN), NEWER)
    cluster.failing = {(name, 2): "no such table" for name in NODES}
    cluster.settle()
    if again == "apply":
        assert not apply_flow(Operator(cluster.store, *SIGN), FLOW).changed
    else:
        assert not rollback_flow(Operator(cluster.store, *SIGN), "web", 1).changed
    cluster.settle()
    assert "went back" not in cluster.shell.run("flow", "show", "web").stdout
    assert not [c for c in cluster.shell.json("status")["causes"] if "went back" in c["what"]]
    entries = [cluster.store.read(paths.audit(n)) for n in cluster.store.children(paths.audits())]
    said = f"flow {again} web (stays at revision 1)"
    assert any(entry and entry.value.command == said for entry in entries)


def test_dry_run_of_a_rollout_lists_all_tasks_of_the_new_revision(cluster: Cluster) -> None:
    file_text = {"web": NEWER}
    moves = preview.apply(cluster.store, file_text).moves
    assert {move.what for move in moves} == {"takes revision 2"}
    assert len(moves) == 6


@pytest.mark.parametrize("state", ["stopped", "suspended"])
def test_revision_applied_to_a_halted_flow_is_unproven_when_it_runs_again(
    cluster: Cluster, state: str
) -> None:
    set_flow_state(Operator(cluster.store, *SIGN), "web", state)
    cluster.settle()
    apply_flow(Operator(cluster.store, *SIGN), NEWER)
    cluster.failing = {(node, 2): "it is broken" for node in NODES}
    cluster.settle()
    set_flow_state(Operator(cluster.store, *SIGN), "web", "running")
    cluster.settle()
    assert set(revisions(cluster.shell).values()) == {(1, 1)}
    assert "it is broken" in cluster.shell.json("flow", "show", "web")["went_back"]


def test_revision_applied_without_live_nodes_is_unproven_when_they_return(cluster: Cluster) -> None:
    live = cluster.store.read(paths.live_node("n1"))
    assert live is not None
    for node in NODES:
        cluster.store.remove(paths.live_node(node), ANY)
    apply_flow(Operator(cluster.store, *SIGN), NEWER)
    cluster.plan()
    cluster.plan()
    cluster.failing = {(node, 2): "it is broken" for node in NODES}
    for node in NODES:
        cluster.store.write(paths.live_node(node), live.value, ABSENT)
    cluster.settle()
    assert set(revisions(cluster.shell).values()) == {(1, 1)}
    assert "it is broken" in cluster.shell.json("flow", "show", "web")["went_back"]


def test_text_to_roll_back_to_is_kept_over_any_number_of_later_revisions(cluster: Cluster) -> None:
    store = cluster.store
    for number in range(KEEP_REVISIONS + 5):
        apply_flow(Operator(store, *SIGN), f"{FLOW}# {number}\n")
    cluster.plan()
    for node in NODES:
        told = store.read(paths.assignment(node))
        assert told is not None
        for task in told.value.tasks:
            assert store.exists(paths.revision("web", str(task.revision))), task
    cluster.settle()
    apply_flow(Operator(store, *SIGN), NEWER)
    assert len(store.children(paths.revisions("web"))) == KEEP_REVISIONS


def test_task_that_no_node_may_run_any_more_holds_up_no_rollout(cluster: Cluster) -> None:
    """A task that reads nothing is released although no other node has room for it."""
    place = "place: {collect: {tasks: 2, labels: {disk: ssd}, per_node: 1}}"
    text = FLOW.replace("place: {collect: {tasks: 3}}", place)
    for node in ("n1", "n2"):
        label_node(Operator(cluster.store, *SIGN), node, {"disk": "ssd"}, ())
    apply_flow(Operator(cluster.store, *SIGN), text)
    cluster.settle()
    set_node_desired(Operator(cluster.store, *SIGN), "n1", "draining")
    cluster.settle()
    rows = {row["task"]: row["state"] for row in cluster.shell.json("task", "list")}
    assert (rows["collect.0"], rows["collect.1"]) == ("draining", "running")
    apply_flow(Operator(cluster.store, *SIGN), f"{text}# newer\n")
    cluster.settle()
    assert revisions(cluster.shell)["collect.1"] == (3, 3)
    assert cluster.shell.json("flow", "show", "web")["rollout"] is None


def test_resumed_flow_counts_as_running_only_when_it_is_collected_again(cluster: Cluster) -> None:
    """Until a master has looked, its sources are all that is planned, and they run."""
    waiting = ("flow", "wait", "web", "--running", "--timeout", 1)
    set_flow_state(Operator(cluster.store, *SIGN), "web", "suspended")
    cluster.settle()
    set_flow_state(Operator(cluster.store, *SIGN), "web", "running")
    early = cluster.shell.run(*waiting)
    assert early.exit_code == 1
    assert "- flow web has 0 of 3 collect tasks planned so far" in early.stderr
    cluster.settle()
    assert cluster.shell.run(*waiting).exit_code == 0


def test_rollout_is_paused_resumed_and_aborted(cluster: Cluster) -> None:
    shell = cluster.shell
    assert shell.run("flow", "rollout", "pause", "web").exit_code == 3, "none is under way"
    apply_flow(Operator(cluster.store, *SIGN), SLOW)
    cluster.settle()
    assert "is paused" in shell.run("flow", "rollout", "pause", "web").stdout
    cluster.settle()
    said = shell.run("flow", "rollout", "status", "web").stdout
    assert "paused until `flow rollout resume`" in said
    assert shell.run("flow", "rollout", "pause", "web", "--if-revision", "1").exit_code == 3
    assert "goes on" in shell.run("flow", "rollout", "resume", "web").stdout
    assert shell.run("flow", "rollout", "abort", "web", "--reason", "odd").exit_code == 0
    cluster.settle()
    said = shell.run("flow", "rollout", "status", "web").stdout
    assert "no rollout is under way, revision 1 is current" in said
    assert ": odd" in said
    assert "it went back to this revision: aborted by" in shell.run("flow", "show", "web").stdout
    status = shell.run("status")
    assert (status.exit_code, "went back" in status.stdout) == (0, False), "an operator wanted it"
    audit = shell.run("cluster", "audit").stdout
    assert "flow rollout abort web (revision 2, back to 1)" in audit


def test_promoted_rollout_is_over(cluster: Cluster) -> None:
    apply_flow(Operator(cluster.store, *SIGN), SLOW)
    cluster.settle()
    assert cluster.shell.run("flow", "rollout", "promote", "web").exit_code == 0
    cluster.settle()
    said = cluster.shell.run("flow", "rollout", "status", "web").stdout
    assert "no rollout is under way, revision 2 is current" in said


def test_rollout_without_progress_rolls_back_and_shows_why() -> None:
    cluster = Cluster()
    clock = Clock(0.0)
    cluster.master = Master(FakeStore(cluster.store.tree), "m", clock)
    late = FLOW.replace("tasks: 3", "tasks: 3, labels: {role: nobody}")
    late = late.replace("settle_seconds: 0", "settle_seconds: 0, deadline_seconds: 60")
    apply_flow(Operator(cluster.store, *SIGN), late)
    cluster.settle()
    clock.now += 50.0
    cluster.settle()
    assert "(canary of 1" in cluster.shell.run("flow", "rollout", "status", "web").stdout
    clock.now += 20.0
    cluster.settle()
    said = cluster.shell.run("flow", "rollout", "status", "web").stdout
    assert "went back to revision 1: revision 2 made no progress for 60 s: task web/collect" in said
