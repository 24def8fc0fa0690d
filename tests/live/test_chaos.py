"""The promise: whichever process is killed, every accepted event is in the lake exactly once.

Events over TCP and lines of a rotating file, while ingest worker, node, collector, an executor,
master, ZooKeeper and the S3 server are killed with SIGKILL at random moments, for
``FLUMENG_CHAOS_SECONDS`` at least. TCP has no acknowledgement: events that the worker had not
journaled when it died are the sender's to resend, so after a break the sender asks the journal for
the last number accepted and goes on behind it.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from flumeng.agent.standalone.embedded import free_port
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.journal.log.journal import ROLL_WORTH_BYTES
from flumeng.platform.errors import FlumengError
from flumeng.platform.remote_store import SILENT_SECONDS
from tests.live.chaos import (
    CHUNK,
    FLOW_TEXT,
    KILLS_OF_EACH,
    KINDS,
    PACE_SECONDS,
    Cluster,
    Lake,
    LakeWatcher,
    chaos_seconds,
    chaos_seed,
    kill_at_random,
    numbers,
    on_disk,
    tcp_line,
    write_rotating,
)
from tests.testkit.servers.s3 import RealS3
from tests.testkit.waiting import wait_for

PER_SECOND = round(CHUNK / PACE_SECONDS)


@dataclass(frozen=True)
class Target:
    """A lake of the test: for how long events are sent to it, and which processes are killed how
    often."""

    lake: Lake
    seconds: float
    kinds: tuple[str, ...]
    times: int
    others: Mapping[str, Callable[[], None]]


class Sender(threading.Thread):
    """Sends numbered lines; after a break it goes on behind the last number accepted."""

    def __init__(self, port: int, events: int, last_accepted: Callable[[], int]) -> None:
        super().__init__(name="sender", daemon=True)
        self.breaks = 0
        self._port = port
        self._events = events
        self._last_accepted = last_accepted

    def run(self) -> None:
        number, sent = 0, False
        while number < self._events:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=30) as connection:
                    number = self._last_accepted() + 1 if sent else 0
                    sent = True
                    self._send(connection, number)
                    number = self._last_accepted() + 1
            except (OSError, FlumengError):
                self.breaks += 1
                time.sleep(0.2)

    def _send(self, connection: socket.socket, number: int) -> None:
        """Send the rest. At the end the peer's close confirms that it has read everything."""
        while number < self._events:
            end = min(number + CHUNK, self._events)
            connection.sendall(b"".join(tcp_line(n) for n in range(number, end)))
            number = end
            time.sleep(PACE_SECONDS)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1):
            pass
        time.sleep(1)


@pytest.fixture(params=["disk", "s3"])
def target(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Target]:
    if request.param == "disk":
        seconds = max(40.0, chaos_seconds())
        yield Target(on_disk(tmp_path / "lake"), seconds, KINDS, KILLS_OF_EACH, {})
        return
    server = RealS3(tmp_path / "s3")
    server.start()
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_ID", server.access_key)
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", server.secret_key)
    keys = 'credentials: {access_key: "${secret:lake-id}", secret_key: "${secret:lake-key}"}'
    options = f'path: "{server.location("lake/dt=%Y-%m-%d")}", {keys}'

    def restart() -> None:
        """Kill it, or freeze one that would forget its objects, for longer than it is waited for
        in one attempt."""
        if server.keeps:
            server.kill()
            time.sleep(1)
            server.start()
        else:
            server.freeze()
            time.sleep(1.5 * SILENT_SECONDS)
            server.thaw()

    others = {} if server.given else {"s3": restart}
    lake = Lake(options, f"{server.bucket}/lake", server.files)
    kinds: tuple[str, ...] = ("node", "collector", "executor")
    if chaos_seconds():
        kinds = (*KINDS, "executor")
    yield Target(lake, max(15.0, chaos_seconds()), kinds, 1, others)
    server.stop()


@pytest.mark.long
def test_every_accepted_event_is_in_the_lake_exactly_once(
    target: Target, cluster: Cluster, tmp_path: Path
) -> None:
    seed = chaos_seed()
    logs, port = tmp_path / "logs", free_port()
    logs.mkdir()
    text = FLOW_TEXT.format(port=port, logs=logs, lake=target.lake.options)
    store = connect(cluster.hosts)
    apply_flow(Operator(store, "test", "", 0.0), text)
    watcher = LakeWatcher(store, target.lake)
    events = round(target.seconds * PER_SECOND)
    lines = events // (2 * CHUNK) * CHUNK

    sender = Sender(port, events, watcher.last_accepted)
    writer = threading.Thread(target=write_rotating, args=(logs, lines), daemon=True)
    until = time.monotonic() + chaos_seconds()
    sender.start()
    writer.start()
    kill_at_random(
        cluster, random.Random(seed), target.kinds, target.others, times=target.times, until=until
    )
    sender.join(timeout=300 + chaos_seconds())
    writer.join(timeout=60 + chaos_seconds())
    assert not sender.is_alive(), "the sender could not hand everything over"
    watcher.settle()

    table = watcher.table(["journal", "seq", "body"])
    ids = set(zip(table["journal"].to_pylist(), table["seq"].to_pylist(), strict=True))
    assert len(ids) == table.num_rows, "an event is in the lake twice"
    assert sorted(numbers(table["body"], "file")) == list(range(lines))
    assert sorted(numbers(table["body"], "tcp")) == list(range(events))
    assert sender.breaks > 0, "no connection ever broke: nothing was tested"

    wait_for(
        lambda: all(
            kept.floor >= kept.safe or kept.bytes < 2 * ROLL_WORTH_BYTES
            for kept in watcher.accounts().values()
        ),
        lambda: f"journals are not trimmed: {watcher.accounts()}",
    )
    _require_no_staging(watcher, cluster)
    assert re.search("Traceback", (tmp_path / "master.log").read_text()) is None
    store.close()


def _require_no_staging(watcher: LakeWatcher, cluster: Cluster) -> None:
    """Staged files of a killed writer's late request may stay until the next owner's claim."""

    def staged() -> list[str]:
        return [path for path in watcher.paths() if "/dt=" not in path]

    if not staged():
        return
    assert cluster.kill("collector")
    wait_for(lambda: not staged(), lambda: f"staging was left behind: {staged()}")
