"""Three ZooKeeper servers, three masters, one real node: each case ends in a legal, converged state
and with data that flows. At the very end every event that was sent is in the lake exactly once.

The node and its collector reach the servers through proxies; 200 light nodes come and go beside
them. ``FLUMENG_MASTERS_AWAY_SECONDS=60`` leaves the masters dead for a minute, not three seconds.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from flumeng.agent.standalone.embedded import free_port
from flumeng.control.commands.cluster import verify_cluster
from flumeng.control.commands.flows import apply_flow, delete_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.planner import planner as plan
from flumeng.control.queries import overview
from flumeng.control.snapshot.reader import Reader
from flumeng.control.zookeeper import ANY, Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import FlumengError
from tests.testkit.cluster import acks_of
from tests.testkit.daemons import start_logged
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from tests.testkit.zookeeper import Proxy, RealEnsemble, proxied
from zkschema import paths, records

pytestmark = pytest.mark.long

SESSION_SECONDS = 4.0
AWAY_SECONDS = float(os.environ.get("FLUMENG_MASTERS_AWAY_SECONDS", "3"))
SEND_EVERY_SECONDS = 0.02
LIGHT_NODES = 200
LIGHT_TASKS = 40
LIGHT_KILLED = 100
"""Less than half: a cluster that has lost half of its nodes at once stops moving tasks."""

FLOW_TEXT = """
flow: web
sources:
  - syslog: {{listen: "127.0.0.1:{port}", protocol: tcp}}
place: {{ingest: {{labels: {{kind: real}}}}, collect: {{labels: {{kind: real}}}}}}
delivery: exactly-once
batch: {{seconds: 0.2, events: 50000}}
sinks:
  - files: {{path: "{lake}", format: parquet, shared: true}}
"""
LIGHT_TEXT = """
flow: light
sources: [syslog: {listen: "127.0.0.1:5514", protocol: tcp}]
place: {ingest: {labels: {kind: light}}, collect: {labels: {kind: light}, tasks: 40}}
sinks: [noop]
"""
LATER_TEXT = """
flow: later
sources: [tail: {paths: [/nowhere/at/all]}]
place: {ingest: {labels: {kind: real}}, collect: {labels: {kind: real}}}
sinks: [noop]
"""


class Sender(threading.Thread):
    """Sends numbered lines over one connection until it is stopped."""

    def __init__(self, port: int) -> None:
        super().__init__(name="sender", daemon=True)
        self.sent = 0
        self._port = port
        self._ended = threading.Event()

    def run(self) -> None:
        with socket.create_connection(
            ("127.0.0.1", self._port), timeout=PATIENCE_SECONDS
        ) as connection:
            while not self._ended.wait(SEND_EVERY_SECONDS):
                lines = [
                    f"<13>1 2026-11-20T10:00:00Z h a - - - n={self.sent + i} \n" for i in range(20)
                ]
                connection.sendall("".join(lines).encode())
                self.sent += len(lines)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1):
                pass

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive()


class Cluster:
    """``store`` is the test's own session, connected to the servers without the proxies."""

    def __init__(self, folder: Path, ensemble: RealEnsemble, proxies: Sequence[Proxy]) -> None:
        self.folder = folder
        self.ensemble = ensemble
        self.proxies = proxies
        self.hosts = f"{ensemble.address}/cluster"
        self.store: Store = connect(self.hosts, session_seconds=SESSION_SECONDS)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.sender = Sender(free_port())

    def run(self, name: str, module: str, *arguments: object) -> None:
        self.processes[name] = start_logged(
            self.folder / f"{name}.log", sys.executable, "-m", module, *map(str, arguments)
        )

    def run_master(self, name: str) -> None:
        self.run(name, "flumeng.control.master", self.hosts, SESSION_SECONDS)

    def run_light_nodes(self, name: str, first: int, count: int) -> None:
        self.run(
            name,
            "tests.testkit.light_nodes",
            self.hosts,
            self.folder,
            first,
            count,
            SESSION_SECONDS,
        )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def acked(self) -> int:
        return sum(acks_of(self.store).values())

    def live(self) -> set[str]:
        return set(self.store.children(paths.live_nodes()))

    def session(self) -> int:
        """That of the real node; 0 while it is not live."""
        found = self.store.read(paths.live_node("real"))
        return found.session if found else 0

    def flows_on(self) -> None:
        """Lines sent before this call are acked, and lines sent from now on too."""
        for _ in range(2):
            until(self.has_acked(self.sender.sent + 1), "data to flow")

    def has_acked(self, events: int) -> Callable[[], bool]:
        return lambda: self.acked() >= events

    def converges(self) -> None:
        until(self.is_converged, self.trouble)

    def is_converged(self) -> bool:
        before = self.decided()
        time.sleep(0.5)
        return self.decided() == before and not self.trouble()

    def decided(self) -> list[tuple[str, object]]:
        """The versions of the plans and assignments that masters have written."""
        names = [paths.plan(flow) for flow in self.store.children(paths.flows())]
        nodes = [paths.assignment(node) for node in self.store.children(paths.nodes())]
        return [
            (str(path), found and found.version)
            for path, found in zip(
                [*names, *nodes], self.store.read_many([*names, *nodes]), strict=True
            )
        ]

    def trouble(self) -> list[str]:
        """Problems that are left once all is quiet. A pinned task waits for its node."""
        live = self.live()
        tasks = overview.tasks(self.store)
        nodes = {node.node: node for node in overview.nodes(self.store)}
        found = [f"{problem}" for problem in verify_cluster(self.store)]
        for task in tasks:
            waits = task.kind == records.INGEST and task.node not in live and task.state == "down"
            if not waits and (task.node not in live or task.state != "running"):
                said = f"{task.flow}/{task.task} on {task.node} is {task.state}: {task.why}"
                found.append(f"{said}; {nodes.get(task.node or '')}")
        found += self.illegal({(task.flow, task.task): (task.node, task.epoch) for task in tasks})
        for master in self.store.children(paths.live_masters()) if not found else ():
            reader = Reader(self.store, master, time.monotonic, time.time)
            if actions := plan.plan(reader.snapshot()):
                found.append(f"{master} finds something to do: {actions[0].why}")
        return found

    def illegal(self, planned: dict[tuple[str, str], tuple[str | None, int]]) -> list[str]:
        """Tasks that an assignment gives to a live node although the plan gives them to another."""
        nodes = sorted(self.live())
        told = self.store.read_many([paths.assignment(node) for node in nodes])
        return [
            f"{node} was told to run {task.flow}/{task.task}"
            for node, assignment in zip(nodes, told, strict=True)
            for task in (assignment.value.tasks if assignment else ())
            if planned.get((task.flow, task.task)) != (node, task.epoch)
        ]

    def lake_numbers(self) -> list[int]:
        files = [str(file) for file in (self.folder / "lake").glob("*.parquet")]
        bodies = ds.dataset(files, format="parquet").to_table(columns=["body"])["body"]
        found = pc.extract_regex(pc.cast(bodies, "string"), r"n=(?P<n>\d+)")
        return sorted(int(n) for n in pc.struct_field(found, "n").to_pylist())

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(timeout=PATIENCE_SECONDS)
        self.store.close()


def until(condition: Callable[[], object], what: str | Callable[[], object]) -> None:
    """Wait; while ZooKeeper is away the condition counts as false."""
    wait_for(condition, what, ignoring=FlumengError, pause_seconds=0.25)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("ensemble")
    ensemble = RealEnsemble(folder / "zookeeper")
    with ExitStack() as stack:
        stack.callback(ensemble.stop)
        ensemble.start()
        proxies = stack.enter_context(proxied(ensemble))
        cluster = Cluster(folder, ensemble, proxies)
        stack.callback(cluster.stop)
        tree.init(cluster.store)
        settings = records.Cluster(throttles={"balance": LIGHT_NODES})
        cluster.store.write(paths.cluster(), settings, ANY)
        for number in range(3):
            cluster.run_master(f"master-{number}")
        through = ",".join(proxy.address for proxy in proxies) + "/cluster"
        node = ["--zk", through, "--data", folder / "real", "--name", "real"]
        cluster.run("real", "flumeng.agent.node", *node, "--session-seconds", SESSION_SECONDS)
        until(cluster.session, "the node")
        labelled = cluster.store.read(paths.node("real"))
        assert labelled is not None
        cluster.store.write(
            paths.node("real"),
            records.Node(
                uuid=labelled.value.uuid, roles=labelled.value.roles, labels={"kind": "real"}
            ),
            ANY,
        )
        port = cluster.sender._port
        text = FLOW_TEXT.format(port=port, lake=folder / "lake")
        apply_flow(Operator(cluster.store, "test", "", 0.0), text)
        until(lambda: listens(port), "the node to listen")
        cluster.sender.start()
        cluster.flows_on()
        yield cluster
        cluster.sender.end()
        until(lambda: cluster.acked() == cluster.sender.sent, "the last events")
        until(lambda: not cluster.store.children(paths.commits("web")), "the last commit")
        assert cluster.lake_numbers() == list(range(cluster.sender.sent))
        for log in folder.glob("*.log"):
            assert "Traceback" not in log.read_text(), log.read_text()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_cluster_converges_after_the_leader_is_killed(cluster: Cluster) -> None:
    leader = cluster.ensemble.leader
    leader.kill()
    cluster.ensemble.wait_serving(2)
    cluster.flows_on()
    cluster.converges()
    leader.start()
    cluster.ensemble.wait_serving()
    assert cluster.ensemble.leader is not leader


def test_cluster_converges_after_a_frozen_leader_returns_as_a_follower(cluster: Cluster) -> None:
    """The hardest server to lose: its followers notice only after their own timeout."""
    leader = cluster.ensemble.leader
    leader.freeze()
    until(lambda: any(s.mode() == "leader" for s in cluster.ensemble.servers), "a new leader")
    cluster.flows_on()
    cluster.converges()
    leader.thaw()
    until(lambda: leader.mode() == "follower", "the old leader to follow")
    cluster.converges()


def test_lost_replies_of_acks_and_commits_do_no_harm(cluster: Cluster) -> None:
    """Acks and commits are carried out, and their owner gets no reply."""
    task = next(task for task in overview.tasks(cluster.store) if task.kind == "collect")
    for _ in range(2):
        for proxy in cluster.proxies:
            proxy.drop_replies()
        time.sleep(1.5)
        for proxy in cluster.proxies:
            proxy.heal()
        cluster.flows_on()
    cluster.converges()
    after = next(task for task in overview.tasks(cluster.store) if task.kind == "collect")
    assert after == task, "the task was not left alone"


def test_node_is_live_again_after_its_session_expired(cluster: Cluster) -> None:
    """The node is cut off from all servers; events accepted meanwhile wait in its journal."""
    session, sent = cluster.session(), cluster.sender.sent
    assert session
    for proxy in cluster.proxies:
        proxy.cut()
    until(lambda: not cluster.session(), "the session to expire")
    acked = cluster.acked()
    time.sleep(0.5)
    assert cluster.acked() == acked
    assert cluster.sender.sent > sent
    for proxy in cluster.proxies:
        proxy.heal()
    until(lambda: cluster.session() not in (0, session), "the node to be live again")
    cluster.flows_on()
    cluster.converges()


def test_cluster_converges_after_the_data_of_one_server_is_wiped(cluster: Cluster) -> None:
    server = cluster.ensemble.followers[0]
    server.kill()
    server.wipe()
    server.start()
    cluster.ensemble.wait_serving()
    copy = connect(f"{server.address}/cluster")
    still = [path for path in cluster.store.dump() if not path.startswith(("/commits", "/audit"))]
    until(lambda: set(still) <= copy.dump().keys(), "the server to hold all znodes again")
    copy.close()
    cluster.flows_on()
    cluster.converges()


def test_flows_run_without_masters_and_restarted_masters_plan(cluster: Cluster) -> None:
    masters = [name for name in cluster.processes if name.startswith("master")]
    for name in masters:
        cluster.kill(name)
    apply_flow(Operator(cluster.store, "test", "", 0.0), LATER_TEXT)
    ends = time.monotonic() + AWAY_SECONDS
    while time.monotonic() < ends:
        cluster.flows_on()
    assert cluster.store.read(paths.plan("later")) is None
    for name in masters:
        cluster.run_master(name)
    until(lambda: any(t.flow == "later" for t in overview.tasks(cluster.store)), "a plan")
    cluster.converges()
    delete_flow(Operator(cluster.store, "test", "", 0.0), "later", discard=True)
    until(lambda: cluster.store.read(paths.flow("later")) is None, "the flow to go")
    cluster.flows_on()


def test_cluster_converges_after_200_nodes_join_and_half_are_killed(cluster: Cluster) -> None:
    apply_flow(Operator(cluster.store, "test", "", 0.0), LIGHT_TEXT)
    staying = LIGHT_NODES - LIGHT_KILLED
    cluster.run_light_nodes("light-staying", 0, staying)
    cluster.run_light_nodes("light-killed", staying, LIGHT_KILLED)
    until(lambda: len(cluster.live()) == LIGHT_NODES + 1, "all nodes to be live")
    until(lambda: len(light_tasks(cluster)) == LIGHT_NODES + LIGHT_TASKS, "all tasks to be planned")
    cluster.converges()
    cluster.kill("light-killed")
    until(lambda: len(cluster.live()) == staying + 1, "the sessions to expire")
    cluster.converges()
    assert len(light_tasks(cluster)) == LIGHT_NODES + LIGHT_TASKS
    cluster.flows_on()


def light_tasks(cluster: Cluster) -> list[str]:
    return [task.task for task in overview.tasks(cluster.store) if task.flow == "light"]
