"""A master and a node with ingest workers, scraped: right numbers, a frozen child, no ZooKeeper.

The collector's metrics are looked at in ``test_standalone.py``, which has Spark.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flumeng.agent.standalone.embedded import free_port
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.daemons import children_of
from tests.testkit.ingest_worker import flow_text
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for

FLUMENG = Path(sys.executable).with_name("flumeng")
EVENTS = 5_000

Page = dict[str, dict[tuple[str, ...], float]]


class Daemon:
    """A process with ``--metrics``; ``url`` is the address that it logs."""

    def __init__(self, *arguments: str) -> None:
        command = [str(FLUMENG), *arguments, "--metrics", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        lines = iter(self.process.stderr.readline, "")
        said = (re.search(r"metrics at (http://\S+)/metrics", line) for line in lines)
        self.url = next(found[1] for found in said if found)
        threading.Thread(target=lambda: list(lines), daemon=True).start()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.url}/{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def scrape(self) -> Page:
        """Metric -> its labels' values, the process last -> value."""
        page: Page = {}
        for family in text_string_to_metric_families(self.get("metrics")[1]):
            for name, labels, value, *_ in family.samples:
                process = labels.pop("process")
                page.setdefault(name, {})[*labels.values(), process] = value
        return page

    def child(self, module: str) -> int:
        """The pid of a child that runs ``module``."""
        for pid in children_of(self.process.pid):
            if f"-m\0{module}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError(f"no child runs {module}")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=PATIENCE_SECONDS)


@contextmanager
def cluster(folder: Path, *node_arguments: str) -> Iterator[tuple[RealZooKeeper, Daemon, Daemon]]:
    """ZooKeeper, a master, and a node that ingests."""
    server = RealZooKeeper(folder / "zookeeper")
    server.start()
    hosts = f"{server.address}/metrics"
    store = connect(hosts)
    tree.init(store)
    daemons: list[Daemon] = []
    try:
        daemons.append(Daemon("master", "--zk", hosts, "--session-seconds", "2"))
        where = ["--zk", hosts, "--data", str(folder / "data"), "--name", "n", "--role", "ingest"]
        daemons.append(Daemon("node", "run", *where, "--session-seconds", "2", *node_arguments))
        yield server, daemons[0], daemons[1]
    finally:
        store.close()
        for daemon in daemons:
            daemon.end()
        server.kill()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.long
def test_node_reports_received_events_and_frozen_workers(tmp_path: Path, port: int) -> None:
    with cluster(tmp_path, "--workers", "1") as (server, master, node):
        store = connect(f"{server.address}/metrics")
        apply_flow(
            Operator(store, "test", "", 0.0),
            flow_text("web", f'tcp: {{listen: "127.0.0.1:{port}"}}'),
        )
        wait_for(lambda: node.scrape().get("flumeng_node_tasks"), "nothing runs")
        wait_for(lambda: node.get("readyz") == (200, "ok\n"), node.get("readyz")[1])
        wait_for(lambda: master.get("readyz") == (200, "ok\n"), master.get("readyz")[1])

        lines = b"".join(b"event %06d\n" % number for number in range(EVENTS))
        wait_for(lambda: _connects(port), "the source does not listen")
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(lines)
        key = ("web", "tcp", "ingest.0")
        taken = "flumeng_ingest_events_total"
        wait_for(
            lambda: node.scrape().get(taken, {}).get(key) == EVENTS, "not all events are counted"
        )
        page = node.scrape()
        assert page["flumeng_ingest_bytes_total"][key] == len(lines)
        wait_for(
            lambda: node.scrape()["flumeng_journal_unacked_events"]["web", "ingest.0"] == EVENTS,
            "not all events are in the journal",
        )
        wait_for(
            lambda: node.scrape()["flumeng_journal_lag_seconds"]["web", "ingest.0"] > 1,
            "nothing delivers, and the lag does not grow",
        )
        assert page["flumeng_child_up"]["ingest.0", "node"] == 1
        assert page["flumeng_child_starts_total"]["ingest.0", "node"] == 1
        assert {process for (process,) in page["process_threads"]} == {"node", "ingest.0"}
        assert not [path for path, data in store.dump().items() if b"_total" in data], "in a znode"
        store.close()

        ingest = node.child("flumeng.agent.ingest")
        os.kill(ingest, signal.SIGSTOP)
        try:
            began = time.monotonic()
            page = node.scrape()
            assert time.monotonic() - began < 9, "longer than Prometheus waits"
            assert page["flumeng_child_up"]["ingest.0", "node"] == 0
            assert ("ingest.0",) not in page["process_threads"]
            assert page["flumeng_zookeeper_connected"]["node",] == 1
            assert "ingest.0: it does not answer\n" in node.get("readyz")[1]
            assert node.get("readyz")[0] == 503
            assert node.get("healthz")[0] == 200
        finally:
            os.kill(ingest, signal.SIGCONT)
        wait_for(
            lambda: node.scrape().get(taken, {}).get(key) == EVENTS, "the thawed child is not told"
        )

        server.kill()
        for daemon in (node, master):
            wait_for(lambda d=daemon: d.get("readyz")[0] == 503, "ready without ZooKeeper")  # type: ignore[misc]
            assert "ZooKeeper" in daemon.get("readyz")[1]
            assert daemon.get("healthz") == (200, "ok\n")
        assert node.scrape()["flumeng_zookeeper_connected"]["node",] == 0
        assert node.scrape()[taken][key] == EVENTS, "sources go on, and so do their numbers"
        server.start()
        for daemon in (node, master):
            wait_for(lambda d=daemon: d.get("readyz")[0] == 200, "not ready again")  # type: ignore[misc]


def _connects(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
