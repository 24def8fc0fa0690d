"""A stolen certificate of one node and the folders that all nodes share: a real ZooKeeper with TLS,
a real master, light nodes with certificates, and a thief with the certificate of n2."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from flumeng.agent.node.children import UNLIMITED
from flumeng.agent.node.settings import Settings
from flumeng.control.commands.flows import apply_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.snapshot.assignment_pages import read_assignment
from flumeng.control.zookeeper import ABSENT, ANY, Store, tree
from flumeng.control.zookeeper.access_lists import to_kazoo
from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore, connect
from flumeng.platform.errors import ConflictError, ForbiddenError
from flumeng.platform.security.roles import DIRECTORY, Role, subject_of
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.daemons import start_logged
from tests.testkit.light_nodes import LightNode
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for
from zkschema import paths, records
from zkschema.access import PERMISSIONS

SESSION_SECONDS = 4
FLOW = """
flow: web
sources: [{syslog: {listen: "127.0.0.1:5514"}}]
sinks: [{console: {}}]
"""


class Cluster:
    """``admin`` and ``thief`` are sessions of the test; the thief has the certificate of n2."""

    def __init__(self, folder: Path, ends: ExitStack, environment: pytest.MonkeyPatch) -> None:
        self.folder, self._ends, self._environment = folder, ends, environment
        self.certificates = Certificates(folder / "certificates")
        server = RealZooKeeper(folder / "zk", self.certificates.folder("zookeeper", name="zk1"))
        server.start()
        ends.callback(server.kill)
        self.hosts = f"{server.address}/cluster"
        self.admin = self.session("admin", "root")
        tree.init(self.admin)
        secure_cluster(
            Operator(self.admin, "test", "", 1.0),
            cluster=CLUSTER,
            admit=["node:n1", "node:n2", "operator:al"],
        )
        apply_flow(Operator(self.admin, "al", "", 0.0), FLOW)
        self.thief = self.session("node", "n2")

    def identify(self, role: Role, name: str) -> None:
        folder = self.certificates.top / name
        if not (folder / f"{role}.pem").exists():
            self.certificates.folder(role, name=name)
        self._environment.setenv(DIRECTORY, str(folder))

    def session(self, role: Role, name: str) -> Store:
        self.identify(role, name)
        store = connect(self.hosts, session_seconds=SESSION_SECONDS, roles=[role])
        self._ends.callback(store.close)
        return store

    def run_master(self) -> subprocess.Popen[bytes]:
        self.identify("master", "m1")
        command = [sys.executable, "-m", "flumeng.control.master", self.hosts, str(SESSION_SECONDS)]
        process = start_logged(self.folder / "master.log", *command, env=dict(os.environ))
        self._ends.callback(process.kill)
        return process

    def run_node(self, name: str) -> Callable[[], None]:
        """Start the node; returns the function that stops it and its session."""
        self.identify("node", name)
        store = ZooKeeperStore(self.hosts, SESSION_SECONDS, roles=["node"])
        settings = Settings(
            name, self.folder / name, self.hosts, session_seconds=60, limits=UNLIMITED
        )
        node = LightNode(settings, store)
        running = threading.Thread(target=node.run, name=name)
        running.start()

        def stop() -> None:
            node.stop()
            running.join(30)
            assert not running.is_alive()
            store.close()
            node._home._lock.close()  # as its process would

        self._ends.callback(stop)
        return stop

    @property
    def log(self) -> str:
        return (self.folder / "master.log").read_text()

    def live(self, name: str) -> bool:
        return self.admin.exists(paths.live_node(name))

    def tasks(self, name: str) -> list[str]:
        found = read_assignment(self.admin, name)
        return sorted(task.task for task in found.value.tasks) if found else []

    def forge(self, live: records.LiveNode) -> None:
        """Register n1 as live as soon as it is not."""

        def taken() -> bool:
            try:
                self.thief.write(paths.live_node("n1"), live, ABSENT)
            except ConflictError:
                return False
            return True

        wait_for(taken)

    def make(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Create a znode with an access list that only n2 may read."""
        assert isinstance(self.thief, ZooKeeperStore)
        own = to_kazoo(((f"x509:{subject_of(CLUSTER, 'node', 'n2')}", PERMISSIONS),))
        self.thief._client.create(path, data, acl=own, ephemeral=ephemeral)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with ExitStack() as ends:
        yield Cluster(tmp_path, ends, monkeypatch)


def test_forged_live_node_is_ignored_and_the_real_node_comes_back(cluster: Cluster) -> None:
    master = cluster.run_master()
    stop = cluster.run_node("n1")
    wait_for(lambda: cluster.tasks("n1") == ["collect.0", "ingest.n1"])
    found = cluster.admin.read(paths.live_node("n1"))
    assert found is not None
    wait_for(lambda: cluster.admin.exists(paths.status("n1")))
    stop()
    cluster.forge(found.value)
    wait_for(lambda: not cluster.live("n1"))
    assert "/live/nodes/n1 does not prove its node, and is removed: its signature" in cluster.log
    cluster.run_node("n2")
    wait_for(lambda: "collect.0" in cluster.tasks("n2"))

    master.kill()
    master.wait()
    cluster.forge(replace(found.value, certificates="", signature=""))
    again = cluster.run_node("n1")
    time.sleep(1)
    forged = cluster.admin.read(paths.live_node("n1"))
    assert forged is not None
    assert forged.session == cluster.thief.session, "nothing keeps n1 from its name"
    cluster.run_master()
    wait_for(lambda: cluster.live("n1") and owner(cluster, "n1") != cluster.thief.session)
    assert "removed /live/nodes/n1, which does not prove" in cluster.log
    wait_for(lambda: "ingest.n1" in cluster.tasks("n1"))
    wait_for(lambda: has_applied(cluster, "n1"))
    again()


def owner(cluster: Cluster, name: str) -> int:
    found = cluster.admin.read(paths.live_node(name))
    return found.session if found else 0


def has_applied(cluster: Cluster, name: str) -> bool:
    told = cluster.admin.read(paths.assignment(name))
    said = cluster.admin.read(paths.status(name))
    return bool(told and said and said.value.assignment_version == told.version.number)


def test_znode_with_a_hidden_access_list_hides_only_itself(cluster: Cluster) -> None:
    """The maker of a znode chooses its list. n1 is given work, does it and is queried all the same,
    and the forged znode of its liveness is removed."""
    cluster.make("/live/nodes/n1", b"x", ephemeral=True)
    cluster.make("/journals/web.n1.0.feed", b"x")
    cluster.run_master()
    cluster.run_node("n1")
    wait_for(lambda: cluster.tasks("n1") == ["collect.0", "ingest.n1"])
    wait_for(lambda: has_applied(cluster, "n1"))
    mine = paths.journal("web.n1.0.light")
    wait_for(lambda: cluster.admin.exists(mine))
    with pytest.raises(ForbiddenError):
        cluster.thief.remove(mine, ANY)
    operator = cluster.session("operator", "al")
    found = operator.read_each([paths.journal("web.n1.0.feed"), mine])
    assert [type(one).__name__ for one in found] == ["Unreadable", "Versioned"]
    with pytest.raises(ForbiddenError):
        operator.read(paths.journal("web.n1.0.feed"))


@pytest.mark.long
def test_journals_of_a_stopped_flow_leave_no_registration_behind(cluster: Cluster) -> None:
    """Their node may not remove entries of the folder where all nodes register theirs."""
    journal = paths.journal("web.n1.0.light")
    cluster.run_master()
    cluster.run_node("n1")
    wait_for(lambda: cluster.admin.exists(journal))
    ack = paths.ack("web", "main", journal.name)
    cluster.session("collector", "n1").write(ack, records.Ack(epoch=9, offset=0), ABSENT)
    set_flow_state(Operator(cluster.admin, "al", "", 0.0), "web", "stopped")
    wait_for(lambda: not cluster.admin.exists(journal), seconds=60)
    assert not cluster.admin.exists(ack)
    wait_for(lambda: "removed the registration of journal web.n1.0.light" in cluster.log)


def test_node_removes_no_registration_and_marks_only_its_own(cluster: Cluster) -> None:
    own, other = paths.journal("web.n2.0.ab"), paths.journal("web.n1.0.ab")
    record = records.Journal(flow="web", node="n2", primary="n2", term=1, in_sync=("n2",))
    cluster.thief.write(own, record, ABSENT)
    cluster.session("node", "n1").write(other, replace(record, node="n1", primary="n1"), ABSENT)
    for path in (own, other):
        with pytest.raises(ForbiddenError):
            cluster.thief.remove(path, ANY)
    with pytest.raises(ForbiddenError):
        cluster.thief.write(other, replace(record, gone=True), ANY)
    cluster.thief.write(own, replace(record, gone=True), ANY)
    cluster.run_master()
    wait_for(lambda: not cluster.admin.exists(own))
    assert cluster.admin.exists(other)
