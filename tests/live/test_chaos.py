"""The promise: whatever is killed, every accepted event is in the lake exactly once.

200,000 events over TCP and 100,000 lines of a rotating file, while ingest worker, node, collector,
master and ZooKeeper are killed with SIGKILL at random moments. TCP has no acknowledgement: what the
worker had not journaled when it died is the sender's to resend, so after a break the sender asks
the journal for the last number accepted and goes on behind it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from flumeng.errors import FlumengError, UnavailableError
from flumeng.journal.account import Account
from flumeng.journal.client import JournalClient
from flumeng.journal.journal import ROLL_WORTH_BYTES
from flumeng.journal.position import Position
from flumeng.operations.flows import apply_flow
from flumeng.runtime.embedded import free_port
from flumeng.store import Store, tree
from flumeng.store.zookeeper import connect
from flumeng.testing import RealZooKeeper
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN

TCP_EVENTS = 200_000
FILE_LINES = 100_000
CHUNK = 200
ROTATE_LINES = 9_000
KINDS = ("ingest", "node", "collector", "master", "zookeeper")
KILLS_OF_EACH = 2
PACE_SECONDS = 0.06
FLOW = "chaos"

FLOW_TEXT = """
flow: chaos
sources:
  - syslog: {{listen: "127.0.0.1:{port}", protocol: tcp}}
  - tail: {{paths: ["{logs}/app.log*"]}}
delivery: exactly-once
batch: {{seconds: 0.3, events: 50000}}
sinks:
  - files: {{path: "{lake}/dt=%Y-%m-%d", format: parquet}}
"""


class Cluster:
    """The three top processes, restarted by the test; the node restarts its children itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zookeeper = RealZooKeeper(folder / "zookeeper")
        self.hosts = f"{self.zookeeper.address}/chaos"
        self.tops: dict[str, subprocess.Popen[bytes]] = {}

    def node_arguments(self) -> list[str]:
        return ["--zk", self.hosts, "--data", str(self.folder / "node"), "--name", "n1"]

    def start_all(self) -> None:
        self.start("zookeeper")
        store = connect(self.hosts)
        tree.init(store)
        store.close()
        self.start("master")
        self.start("node")

    def start(self, name: str) -> None:
        if name == "zookeeper":
            self.zookeeper.start()
            return
        arguments = [self.hosts] if name == "master" else self.node_arguments()
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", f"flumeng.{name}", *arguments]
            self.tops[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, kind: str) -> bool:
        """SIGKILL one of the five; False when its process is not there right now."""
        if kind == "zookeeper":
            self.zookeeper.kill()
        elif kind in self.tops:
            self.tops[kind].kill()
            self.tops[kind].wait()
        else:
            pid = child_of(self.tops["node"].pid, f"flumeng.{kind}")
            if pid is None:
                return False
            os.kill(pid, signal.SIGKILL)
        return True

    def stop(self) -> None:
        for process in self.tops.values():
            process.terminate()
        for process in self.tops.values():
            process.wait(timeout=60)
        self.zookeeper.kill()


def child_of(parent: int, module: str) -> int | None:
    """The pid of ``python -m module`` among the children of ``parent``."""
    for task in Path(f"/proc/{parent}/task").iterdir():
        for pid in (task / "children").read_text().split():
            with contextlib.suppress(FileNotFoundError):
                if module in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                    return int(pid)
    return None


class Sender(threading.Thread):
    """Sends numbered lines; after a break it goes on behind the last number accepted."""

    def __init__(self, port: int, last_accepted: Callable[[], int]) -> None:
        super().__init__(name="sender", daemon=True)
        self.breaks = 0
        self._port = port
        self._last_accepted = last_accepted

    def run(self) -> None:
        number = 0
        while number < TCP_EVENTS:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=30) as connection:
                    number = self._last_accepted() + 1
                    self._send(connection, number)
                    number = self._last_accepted() + 1
            except (OSError, FlumengError):
                self.breaks += 1
                time.sleep(0.2)

    def _send(self, connection: socket.socket, number: int) -> None:
        """All that is left. At the end the peer's close says that it has read everything."""
        while number < TCP_EVENTS:
            end = min(number + CHUNK, TCP_EVENTS)
            connection.sendall(b"".join(tcp_line(n) for n in range(number, end)))
            number = end
            time.sleep(PACE_SECONDS)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1):
            pass
        time.sleep(1)


def tcp_line(number: int) -> bytes:
    return f"<13>1 2026-11-20T10:00:00Z sender chaos - - - tcp={number} {'x' * 120}\n".encode()


def write_rotating(logs: Path) -> None:
    """100,000 numbered lines into app.log, renamed away again and again."""
    current = (logs / "app.log").open("ab", buffering=0)
    for number in range(0, FILE_LINES, CHUNK):
        lines = (f"file={n} {'y' * 80}\n" for n in range(number, number + CHUNK))
        current.write("".join(lines).encode())
        if number % ROTATE_LINES == 0 and number:
            (logs / "app.log").rename(logs / f"app.log.{number}")
            current.close()
            current = (logs / "app.log").open("ab", buffering=0)
        time.sleep(PACE_SECONDS * 2)
    current.close()


class Watcher:
    """What the test sees from outside: ZooKeeper, the journals, the lake."""

    def __init__(self, store: Store, lake: Path) -> None:
        self._store = store
        self._lake = lake

    def address(self) -> str:
        live = self._store.read(paths.live_node("n1"))
        if live is None or not any(live.value.addresses):
            raise UnavailableError("the node is not there")
        (address,) = live.value.addresses
        return address

    def positions(self) -> dict[str, Position]:
        with JournalClient(self.address(), timeout_seconds=30) as client:
            return client.positions()

    def accounts(self) -> dict[str, Account]:
        with JournalClient(self.address(), timeout_seconds=30) as client:
            return client.accounts()

    def acks(self) -> dict[str, int]:
        names = self._store.children(paths.cursor(FLOW, CURSOR_MAIN))
        found = self._store.read_many([paths.ack(FLOW, CURSOR_MAIN, name) for name in names])
        return {name: ack.value.offset for name, ack in zip(names, found, strict=True) if ack}

    def last_accepted(self) -> int:
        """The highest TCP number in the journals, or in the lake where they hold none any more."""
        highest = -1
        with JournalClient(self.address(), timeout_seconds=30) as client:
            for name, position in client.positions().items():
                for batch in client.read(name, position.floor, position.safe):
                    found = numbers(batch.column("body"), "tcp")
                    highest = max(highest, *found, -1) if found else highest
        if highest < 0:
            self.settle()
            highest = max(self.lake_numbers("tcp"), default=-1)
        return highest

    def settled(self) -> bool:
        ends = {name: position.safe for name, position in self.positions().items()}
        return bool(ends) and ends == self.acks() and not self._store.children(paths.commits(FLOW))

    def settle(self, seconds: float = 120.0) -> None:
        """Wait until every ack is at its journal's end and no commit is in progress."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(FlumengError):
                if self.settled():
                    return
            assert time.monotonic() < deadline, f"{self._state()} did not settle"
            time.sleep(0.2)

    def lake_numbers(self, kind: str) -> list[int]:
        if not any(self._lake.glob("dt=*/*.parquet")):
            return []
        return numbers(self.table(["body"])["body"], kind)

    def table(self, columns: list[str]) -> ds.Table:
        files = [str(file) for file in self._lake.glob("dt=*/*.parquet")]
        return ds.dataset(files, format="parquet").to_table(columns=columns)

    def _state(self) -> str:
        return f"positions {self.positions()}, acks {self.acks()}"


def numbers(bodies: object, kind: str) -> list[int]:
    found = pc.extract_regex(pc.cast(bodies, "string"), rf"{kind}=(?P<n>\d+) ")
    return [int(n) for n in pc.struct_field(found, "n").to_pylist() if n is not None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    cluster.start_all()
    yield cluster
    cluster.stop()


def kill_at_random(cluster: Cluster, chance: random.Random) -> None:
    kinds = [kind for kind in KINDS for _ in range(KILLS_OF_EACH)]
    chance.shuffle(kinds)
    while kinds:
        time.sleep(chance.uniform(1.0, 5.0))
        kind = kinds.pop()
        if not cluster.kill(kind):
            kinds.insert(0, kind)
            continue
        time.sleep(chance.uniform(0.0, 1.0))
        if kind in ("node", "master", "zookeeper"):
            cluster.start(kind)


def test_every_accepted_event_is_in_the_lake_exactly_once(cluster: Cluster, tmp_path: Path) -> None:
    seed = int(os.environ.get("FLUMENG_CHAOS_SEED", random.randrange(10**6)))
    print(f"FLUMENG_CHAOS_SEED={seed}")
    logs, lake, port = tmp_path / "logs", tmp_path / "lake", free_port()
    logs.mkdir()
    text = FLOW_TEXT.format(port=port, logs=logs, lake=lake)
    store = connect(cluster.hosts)
    apply_flow(store, text, author="test", reason="", now=0.0)
    watcher = Watcher(store, lake)

    sender = Sender(port, watcher.last_accepted)
    writer = threading.Thread(target=write_rotating, args=(logs,), daemon=True)
    sender.start()
    writer.start()
    kill_at_random(cluster, random.Random(seed))
    sender.join(timeout=300)
    writer.join(timeout=60)
    assert not sender.is_alive(), "the sender could not hand everything over"
    watcher.settle()

    table = watcher.table(["journal", "seq", "body"])
    ids = set(zip(table["journal"].to_pylist(), table["seq"].to_pylist(), strict=True))
    assert len(ids) == table.num_rows, "an event is in the lake twice"
    assert sorted(numbers(table["body"], "file")) == list(range(FILE_LINES))
    assert sorted(numbers(table["body"], "tcp")) == list(range(TCP_EVENTS))
    assert sender.breaks > 0, "no connection ever broke: nothing was tested"

    deadline = time.monotonic() + 60
    while any(
        kept.floor < kept.safe and kept.bytes >= 2 * ROLL_WORTH_BYTES
        for kept in watcher.accounts().values()
    ):
        assert time.monotonic() < deadline, f"journals are not trimmed: {watcher.accounts()}"
        time.sleep(0.2)
    leftovers = [path for path in lake.rglob("*") if path.is_file() and "dt=" not in str(path)]
    assert leftovers == [], "staging was left behind"
    assert re.search("Traceback", (tmp_path / "master.log").read_text()) is None
    store.close()
