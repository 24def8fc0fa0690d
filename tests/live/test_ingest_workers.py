"""Several ingest workers of one node, as real processes: shared sockets, kill -9, fewer of them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.acks import ask_worker, positions
from flumeng.control.zookeeper import tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.events.journal_names import maker_of
from flumeng.journal.serving.client import JournalClient
from tests.testkit.ingest_worker import WorkerProcess, flow_text
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths

FLUMENG = Path(sys.executable).with_name("flumeng")


def free_place() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def send(place: str, lines: list[str]) -> None:
    """Send each message over a connection of its own, until connections are refused."""
    host, _, port = place.rpartition(":")
    for line in lines:
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{line}\n".encode())


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[WorkerProcess]]:
    pair = [
        WorkerProcess(tmp_path / "node", "--worker", number, "--workers", "2") for number in "01"
    ]
    yield pair
    for worker in pair:
        if worker.process.poll() is None:
            worker.kill()


def test_killed_worker_loses_no_safe_event_and_the_other_serves_on(
    pair: list[WorkerProcess], tmp_path: Path
) -> None:
    """A file is read by one of them only."""
    place, log = free_place(), tmp_path / "app.log"
    log.write_text("".join(f"line {number}\n" for number in range(50)))
    flow = flow_text("f", f'tcp: {{listen: "{place}"}}', f'tail: {{paths: ["{log}"]}}')
    for worker in pair:
        worker.run(flow)
    sent = [f"sent {number}" for number in range(200)]
    send(place, sent[:100])
    wait_for(lambda: sum(len(worker.bodies("f")) for worker in pair) == 150)
    spread = [[b for b in worker.bodies("f") if b.startswith("sent")] for worker in pair]
    assert all(spread), "the kernel gives senders to both"
    before = pair[1].bodies("f")
    pair[1].kill()
    send(place, sent[100:])
    wait_for(lambda: len(pair[0].bodies("f")) == 150 + 100 - len(spread[1]))
    pair[1].start()
    assert pair[1].bodies("f") == before
    pair[1].run(flow)
    bodies = [body for worker in pair for body in worker.bodies("f")]
    assert sorted(bodies) == sorted(sent + [f"line {number}" for number in range(50)])
    assert {maker_of(name) for name in pair[1].journals("f")} == {1}


def test_node_with_fewer_workers_serves_and_drains_all_journals(tmp_path: Path) -> None:
    """The first worker serves the journals of the second, closed, so that they are collected."""
    zookeeper = RealZooKeeper(tmp_path / "zookeeper")
    zookeeper.start()
    hosts, place = f"{zookeeper.address}/workers", free_place()
    store = connect(hosts)
    tree.init(store)
    text = flow_text("f", f'tcp: {{listen: "{place}"}}')
    apply_flow(Operator(store, "test", "", 0.0), text)
    master = subprocess.Popen([sys.executable, "-m", "flumeng.control.master", hosts])
    node: subprocess.Popen[bytes] | None = None

    def start(workers: int) -> subprocess.Popen[bytes]:
        command = [str(FLUMENG), "node", "run", "--zk", hosts, "--data", str(tmp_path / "node")]
        options = ["--name", "n.1", "--role", "ingest", "--workers", str(workers)]
        return subprocess.Popen(command + options)

    def addresses() -> tuple[str, ...]:
        live = store.read(paths.live_node("n.1"))
        return live.value.addresses if live and all(live.value.addresses) else ()

    def is_running() -> bool:
        status = store.read(paths.status("n.1"))
        tasks = status.value.tasks.values() if status else ()
        return [task.state for task in tasks] == ["running"]

    def safe() -> dict[int, int]:
        """The number of events by worker, as an operator sees it."""
        answered = positions(store, ask_worker).by_node.get("n.1", {})
        return {maker_of(name): position.safe for name, position in answered.items()}

    try:
        node = start(workers=2)
        wait_for(lambda: len(addresses()) == 2 and is_running())
        send(place, [f"{number}" for number in range(100)])
        wait_for(lambda: sum(safe().values()) == 100)
        before = safe()
        assert len(before) == 2
        assert all(before.values())
        wait_for(lambda: len(store.children(paths.journals())) == 2)
        node.send_signal(signal.SIGTERM)
        assert node.wait(timeout=PATIENCE_SECONDS) == 0
        node = start(workers=1)
        wait_for(lambda: len(addresses()) == 1 and is_running())
        assert safe() == before
        (orphan,) = [n for n in store.children(paths.journals()) if maker_of(n) == 1]

        def closed() -> bool:
            found = store.read(paths.journal(orphan))
            return found is not None and found.value.closed and found.value.end == before[1]

        wait_for(closed)
        with JournalClient(addresses()[0]) as client:
            rows = sum(batch.num_rows for batch in client.read(orphan, 0, before[1]))
        assert rows == before[1]
    finally:
        for process in filter(None, (node, master)):
            process.terminate()
            process.wait(timeout=PATIENCE_SECONDS)
        store.close()
        zookeeper.kill()
