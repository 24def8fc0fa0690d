"""Of a node and a copy of its data directory one works, and the other says why it does not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.daemons import start_logged
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for
from zkschema import paths

SESSION_SECONDS = 2.0


class Host:
    """Starts nodes of one name on any data directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zookeeper = RealZooKeeper(folder / "zookeeper")
        self.zookeeper.start()
        self.hosts = f"{self.zookeeper.address}/copies"
        self.store: Store = connect(self.hosts)
        tree.init(self.store)
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self, data: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "flumeng.agent.node", "--zk", self.hosts, "--name", "n1"]
        command += ["--data", str(self.folder / data), "--session-seconds", str(SESSION_SECONDS)]
        self.nodes.append(start_logged(self.folder / f"{data}.log", *command))
        return self.nodes[-1]

    def live(self) -> int | None:
        """The process that serves under the node's name."""
        found = self.store.read(paths.live_node("n1"))
        return found.value.pid if found and all(found.value.addresses) else None

    def close(self) -> None:
        for node in self.nodes:
            node.terminate()
            node.wait(timeout=30)
        self.store.close()
        self.zookeeper.kill()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


@pytest.mark.long
def test_node_and_its_copy_do_not_both_run_and_the_copy_reports_why(
    host: Host, tmp_path: Path
) -> None:
    original = host.start("original")
    wait_for(lambda: host.live() == original.pid, "the node does not come up")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")

    copy = host.start("copy")
    assert copy.wait(timeout=60) != 0
    said = (tmp_path / "copy.log").read_text()
    assert (
        f"node n1 is live as process {original.pid} of this host. That process still runs" in said
    )
    assert "ingest.0 started" not in said, "the copy took events into its journals"
    assert (host.live(), original.poll()) == (original.pid, None)

    original.kill()
    original.wait()
    began = time.monotonic()
    again = host.start("original")
    wait_for(lambda: host.live() == again.pid, "the node does not come back")
    print(f"back after {time.monotonic() - began:.1f} s")
    again.kill()
    again.wait()

    copy = host.start("copy")
    assert copy.wait(timeout=60) != 0
    said = (tmp_path / "copy.log").read_text()
    assert "this data directory is a copy or a backup" in said
    assert "Traceback" not in said


@pytest.mark.long
def test_node_supplanted_while_it_was_cut_off_stops(host: Host, tmp_path: Path) -> None:
    """Its copy came to life when its session was over."""
    original = host.start("original")
    wait_for(lambda: host.live() == original.pid, "the node does not come up")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    original.send_signal(19)
    wait_for(lambda: host.live() is None, "its session does not end")
    copy = host.start("copy")
    wait_for(lambda: host.live() == copy.pid, "the copy does not come up")
    original.send_signal(18)
    assert original.wait(timeout=60) != 0
    assert "from a copy of this data directory" in (tmp_path / "original.log").read_text()
    assert (host.live(), copy.poll()) == (copy.pid, None)
