"""When a cluster on one host counts as started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flumeng.agent.standalone.standalone import NODE, Daemon, Progress, Standalone
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.membership import names
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.zookeeper import ABSENT, ANY, tree
from flumeng.platform.errors import UserError
from flumeng.platform.security.roles import DIRECTORY
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.cluster import new_cluster
from zkschema import paths, records

TEXT = "{{flow: {}, sources: [syslog: {{listen: '127.0.0.1:0'}}], sinks: [noop]}}"
PID = 4711
INGEST = records.PlannedTask(kind="ingest", node=NODE, epoch=1, state="running")
LIVE = records.LiveNode(
    uuid="u", incarnation="i", addresses=("h:1",), pid=PID, version="1", since=0.0
)


class Cluster:
    """Flows ``web`` and ``app``, planned onto the only node."""

    def __init__(self) -> None:
        self.store = new_cluster()
        self.store.write(paths.node(NODE), records.Node(uuid="u", roles=("ingest",)), ABSENT)
        for flow in ("web", "app"):
            apply_flow(Operator(self.store, "a", "", 0.0), TEXT.format(flow))
            self.store.write(paths.plan(flow), records.Plan(tasks={"ingest.0": INGEST}), ANY)

    def live(self, pid: int, *addresses: str) -> None:
        live = replace(LIVE, pid=pid, addresses=addresses)
        self.store.write(paths.live_node(NODE), live, ANY)

    def say(self, **states: str) -> None:
        tasks = {
            f"{flow}/ingest.0": records.TaskStatus(
                epoch=1, revision=1, state=state, error="the port is taken"
            )
            for flow, state in states.items()
        }
        status = records.NodeStatus(assignment_version=0, tasks=tasks)
        self.store.write(paths.status(NODE), status, ANY)

    def progress(self, *given: str) -> Progress:
        return Progress(self.store, NODE, PID, given)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("state", ["running", "failed"])
def test_status_of_an_earlier_node_process_is_ignored(cluster: Cluster, state: str) -> None:
    cluster.say(web=state, app=state)
    assert not cluster.progress("web").is_up
    cluster.live(PID - 1, "h:1")
    assert not cluster.progress("web").is_up
    cluster.live(PID, "")
    assert not cluster.progress("web").is_up, "what it says is not there yet"


def test_all_flows_are_waited_for(cluster: Cluster) -> None:
    cluster.live(PID, "h:1")
    cluster.say(web="running", app="starting")
    progress = cluster.progress("web")
    assert (progress.is_up, [*progress.waiting], progress.failed) == (True, ["app"], {})
    cluster.say(web="running", app="running")
    progress = cluster.progress("web")
    assert (progress.is_up, progress.waiting, progress.failed) == (True, {}, {})


def test_failing_flow_ends_only_a_start_with_that_flow(cluster: Cluster) -> None:
    cluster.live(PID, "h:1")
    cluster.say(web="running", app="failed")
    assert cluster.progress("web").failed == {"app": "the port is taken"}
    with pytest.raises(UserError, match="flow app cannot run: the port is taken"):
        cluster.progress("app").require_given()
    cluster.progress("web").require_given()


def test_standalone_counts_tasks_of_a_plan_in_buckets(cluster: Cluster) -> None:
    cluster.live(PID, "h:1")
    cluster.say(web="running", app="running")
    cluster.store.write(paths.plan("web"), records.Plan(buckets=1), ANY)
    bucket = paths.plan_bucket("web", "0")
    cluster.store.write(bucket, records.Plan(tasks={"ingest.0": INGEST}), ABSENT)
    assert cluster.progress("web").waiting == {}


@pytest.mark.parametrize("path", ["/flows/app", "/flows/app/plan", "/flows/app/revisions/1"])
def test_unreadable_flow_ends_no_cluster(cluster: Cluster, path: str) -> None:
    cluster.live(PID, "h:1")
    cluster.say(web="running", app="running")
    cluster.store.tree.znodes[path].data = b"{"
    progress = cluster.progress("web")
    progress.require_given()
    assert "web" not in {*progress.waiting, *progress.failed}


def test_daemon_that_cannot_be_started_now_is_started_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon("node", [str(tmp_path / "absent")], tmp_path / "node.log", measured=False)
    daemon.keep_up()
    before = daemon.process
    assert before is None
    daemon.command = ["true"]
    daemon.started = 0.0
    daemon.keep_up()
    assert daemon.process is not None
    assert daemon.process.wait() == 0
    daemon.command = [str(tmp_path / "absent")]
    for _ in range(2):
        daemon.started = 0.0
        daemon.keep_up()
    assert caplog.text.count("process node ended with code 0: restarting") == 1


def test_operator_of_some_flows_stays_limited_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """His certificate lies beside the administrator's; an unknown member is admitted for all."""
    certificates = Certificates(tmp_path)
    monkeypatch.setenv(DIRECTORY, str(certificates.folder("admin", "operator", name="bob")))
    store = new_cluster()
    standalone = Standalone(tmp_path, 0, node="n1")
    standalone._secure(store)
    assert names(store, tree.require(store)) == ["node:n1", "operator:bob"]
    limited = ["operator:bob@web"]
    secure_cluster(Operator(store, "a", "", 1.0), cluster=CLUSTER, admit=limited)
    standalone._secure(store)
    assert names(store, tree.require(store)) == ["node:n1", "operator:bob@web"]
