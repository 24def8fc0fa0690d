"""The promise: whatever is killed, every accepted event is in the lake exactly once.

200,000 events over TCP and 100,000 lines of a rotating file, while ingest worker, node, collector,
master and ZooKeeper are killed with SIGKILL at random moments. TCP has no acknowledgement: what the
worker had not journaled when it died is the sender's to resend, so after a break the sender asks
the journal for the last number accepted and goes on behind it.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flumeng.errors import FlumengError
from flumeng.journal.journal import ROLL_WORTH_BYTES
from flumeng.operations.flows import apply_flow
from flumeng.runtime.embedded import free_port
from flumeng.store.zookeeper import connect
from tests.live.chaos import (
    CHUNK,
    FLOW_TEXT,
    PACE_SECONDS,
    Cluster,
    LakeWatcher,
    chaos_seed,
    kill_at_random,
    numbers,
    tcp_line,
    write_rotating,
)

TCP_EVENTS = 200_000
FILE_LINES = 100_000


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


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    cluster.start_all()
    yield cluster
    cluster.stop()


def test_every_accepted_event_is_in_the_lake_exactly_once(cluster: Cluster, tmp_path: Path) -> None:
    seed = chaos_seed()
    logs, lake, port = tmp_path / "logs", tmp_path / "lake", free_port()
    logs.mkdir()
    text = FLOW_TEXT.format(port=port, logs=logs, lake=lake)
    store = connect(cluster.hosts)
    apply_flow(store, text, author="test", reason="", now=0.0)
    watcher = LakeWatcher(store, lake)

    sender = Sender(port, watcher.last_accepted)
    writer = threading.Thread(target=write_rotating, args=(logs, FILE_LINES), daemon=True)
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
