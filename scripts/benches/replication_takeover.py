"""From the end of a lost node's session until its journal is served by the node of another replica.

Real ZooKeeper, a real master, and three real nodes that hold replicas, one of which ingests over
http. Again and again events are sent until they are answered, all processes of that node are killed
(SIGKILL) at once, and it is started again when the journal is served elsewhere; then it begins a
journal anew. The clock starts when a watch says that the node's znode in ``/live`` is gone, so a
session's timeout is not in; the grace period is 0. It stops when the last answered event has been
read from the new primary, which is found as a collector finds it: the journal's record says which
node, and that node's znode where it serves. The parts: until the record says so, and until then.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benches.replication_rates import place
from benches.senders import make_blocks
from benches.takeover import FLUMENG, Cluster, until
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import FlumengError
from tests.testkit.store import RealZooKeeper
from zkschema import paths
from zkschema.records import Journal

SESSION_SECONDS = 2.0
POSTS = 20
LINES_AT_ONCE = 100
SETTLE_SECONDS = 1.0
ANSWER_SECONDS = 10.0
INGESTS, OTHERS = "n1", ("n2", "n3")
FLOW = """
flow: bench
sources: [{{http: {{listen: "127.0.0.1:{port}"}}}}]
durability: replicated
replicas: {{copies: 2, min_in_sync: 2}}
sinks: [noop]
"""
PARTS = ("promote", "serve")
BLOCKS = make_blocks(LINES_AT_ONCE)


def measure(rounds: int) -> dict[str, object]:
    with _cluster() as (cluster, port):
        found = [_fail(cluster, port) for _ in range(rounds)]
    whole = [sum(parts) for parts in found]
    return {
        "takeovers": rounds,
        "takeover_ms_p50": round(1000 * median(whole)),
        "takeover_ms_worst": round(1000 * max(whole)),
        "takeover_parts_ms": {
            part: round(1000 * median(each))
            for part, each in zip(PARTS, zip(*found, strict=True), strict=True)
        },
    }


def _fail(cluster: Cluster, port: int) -> tuple[float, float]:
    """The seconds that each part took."""
    until(lambda: _takes(port) and _open_journal(cluster) is not None, "a journal in sync")
    journal = _open_journal(cluster)
    assert journal is not None
    last = _post(port, POSTS)
    with JournalClient(_address(cluster, INGESTS)) as client:
        end = client.positions()[journal].safe
    assert _last_event(cluster, journal, end) == last  # also, what a client loads is loaded
    time.sleep(SETTLE_SECONDS)
    gone = _Gone(cluster)
    cluster.kill(INGESTS)
    gone.wait()
    until(lambda: _record(cluster, journal).primary != INGESTS, "another primary")
    promoted = time.monotonic()
    until(lambda: _last_event(cluster, journal, end) == last, "the last answered event")
    served = time.monotonic()
    _start_node(cluster, INGESTS, "ingest", "replica")
    return promoted - gone.at, served - promoted


def _open_journal(cluster: Cluster) -> str | None:
    for name in cluster.store.children(paths.journals()):
        record = _record(cluster, name)
        if record.primary == INGESTS and not record.closed and len(record.in_sync) == 2:
            return name
    return None


def _record(cluster: Cluster, journal: str) -> Journal:
    found = cluster.store.read(paths.journal(journal))
    assert found is not None, f"journal {journal} is gone"
    return found.value


def _address(cluster: Cluster, node: str) -> str:
    found = cluster.store.read(paths.live_node(node))
    return found.value.addresses[0] if found and found.value.addresses else ""


def _last_event(cluster: Cluster, journal: str, end: int) -> bytes | None:
    """Its body, where the journal's primary serves it."""
    with JournalClient(_address(cluster, _record(cluster, journal).primary)) as client:
        try:
            (batch,) = client.read(journal, end - 1, end)
        except FlumengError:  # not yet
            return None
    body: bytes = batch.column("body")[0].as_py()
    return body


def _takes(port: int) -> bool:
    """Whether an event is answered: the first one after a takeover has the journal begun again."""
    try:
        _post(port, 1)
    except (OSError, http.client.HTTPException, AssertionError):
        return False
    return True


def _post(port: int, posts: int) -> bytes:
    """Some requests, each answered; the last line of the last."""
    sender = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    block = b""
    for block in BLOCKS[:posts]:
        sender.request("POST", "/", block, {"Content-Type": "text/plain"})
        answer = sender.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    sender.close()
    return block.splitlines()[-1]


class _Gone:
    """When the node's znode in /live has vanished: ``at``, on the monotonic clock."""

    def __init__(self, cluster: Cluster) -> None:
        self._store, self._path = cluster.store, paths.live_node(INGESTS)
        self._looks = threading.Event()
        self.at = 0.0
        self._store.watch(self._path, self._on_change)

    def _on_change(self, _: str) -> None:
        self.at = time.monotonic()
        self._looks.set()

    def wait(self) -> None:
        while self._store.exists(self._path):
            assert self._looks.wait(60.0), "the session does not end"
            self._looks.clear()


@contextmanager
def _cluster() -> Iterator[tuple[Cluster, int]]:
    """Once all nodes are there; with the port where events are taken."""
    with place() as folder:
        server = RealZooKeeper(folder / "zookeeper")
        server.start()
        hosts = f"{server.address}/bench"
        store = connect(hosts)
        cluster = Cluster(folder, hosts, store)
        try:
            tree.init(store)
            _run(hosts, "cluster", "set", "grace_seconds", "0")
            cluster.start("master", "master")
            _start_node(cluster, INGESTS, "ingest", "replica")
            for name in OTHERS:
                _start_node(cluster, name, "replica")
            until(lambda: all(_address(cluster, n) for n in (INGESTS, *OTHERS)), "nodes")
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            text = FLOW.format(port=port)
            apply_flow(Operator(store, "bench", "", time.time()), text)
            yield cluster, port
        except AssertionError:
            for log in folder.glob("*.log"):
                print(log, log.read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            for process in list(cluster.running):
                cluster.kill(process)
            store.close()
            server.kill()


def _run(hosts: str, *arguments: str) -> None:
    subprocess.run([str(FLUMENG), *arguments, "--zk", hosts], check=True, capture_output=True)


def _start_node(cluster: Cluster, name: str, *roles: str) -> None:
    said = [text for role in roles for text in ("--role", role)]
    said += ["--data", str(cluster.folder / name), "--name", name]
    cluster.start(name, "node", "run", *said, "--session-seconds", str(SESSION_SECONDS))
