"""A driver, its JVM or an ingest worker is stopped and not dead: it is ended and started again.

Each keeps its connections and says nothing. Every event that was accepted before, meanwhile and
after is in the lake exactly once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

import pytest

from flumeng.agent.standalone.embedded import free_port
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import details
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import FLOW_TEXT, Cluster, LakeWatcher, child_of, numbers, on_disk, tcp_line
from tests.testkit.daemons import module_of
from tests.testkit.waiting import wait_for
from zkschema import paths

pytestmark = pytest.mark.long

EVENTS = 2_000
SILENT_SECONDS = 6.0


class FrozenCluster(Cluster):
    """A cluster whose node has short timeouts for its children."""

    def node_arguments(self, folder: str = "node", name: str = "n1") -> list[str]:
        return [*super().node_arguments(folder, name), "--silent-seconds", str(SILENT_SECONDS)]


def descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name
    return ""


def send(port: int, first: int) -> None:
    """Send so many events; the peer's close confirms that it has read everything."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"".join(tcp_line(n) for n in range(first, first + EVENTS)))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1):
            pass


def accepted(watcher: LakeWatcher) -> int:
    """How many events were ever in the node's journals: TCP has no acknowledgement."""
    return sum(position.safe for position in watcher.positions().values())


def causes(store: Store) -> list[str]:
    return [line.cause for line in details.event_log(store, "n1").lines if line.after == "hung"]


def runs(store: Store) -> bool:
    found = store.read(paths.status("n1"))
    tasks = list(found.value.tasks.values()) if found else []
    return len(tasks) == 2 and all(task.state == "running" for task in tasks)


def test_frozen_child_is_restarted_without_lost_or_doubled_events(tmp_path: Path) -> None:
    cluster = FrozenCluster(tmp_path)
    cluster.start_all()
    store = connect(cluster.hosts)
    try:
        lake, port = on_disk(tmp_path / "lake"), free_port()
        text = FLOW_TEXT.format(port=port, logs=tmp_path / "logs", lake=lake.options)
        apply_flow(Operator(store, "test", "", 0.0), text)
        wait_for(lambda: runs(store), "the flow does not run")
        watcher, node = LakeWatcher(store, lake), cluster.tops["node"].pid
        sent = 0
        for frozen in ("JVM", "collector", "ingest"):
            send(port, sent)
            sent += EVENTS
            wait_for(lambda: accepted(watcher) == sent, "not all is accepted")  # noqa: B023
            module = "ingest" if frozen == "ingest" else "collector"
            child = child_of(node, module_of(module))
            assert child is not None
            family = [child, *descendants(child)]
            stopped = [pid for pid in family if frozen == "JVM" and program(pid) == "java"]
            os.kill((stopped or [child])[0], signal.SIGSTOP)
            if frozen != "ingest":
                send(port, sent)  # it is accepted meanwhile
                sent += EVENTS
            wait_for(lambda: not runs(store), f"nobody notices that the {frozen} is stopped")
            wait_for(
                lambda: not any(program(pid) for pid in family),  # noqa: B023
                f"of the {frozen} something is left",
            )
            wait_for(lambda: runs(store), f"the {frozen} is not started again")
        send(port, sent)
        sent += EVENTS
        wait_for(lambda: accepted(watcher) == sent, "not all is accepted")
        watcher.settle()
        table = watcher.table(["journal", "seq", "body"])
        ids = set(zip(table["journal"].to_pylist(), table["seq"].to_pylist(), strict=True))
        assert len(ids) == table.num_rows == sent
        assert sorted(numbers(table["body"], "tcp")) == list(range(sent))
        wait_for(lambda: len(causes(store)) == 3, "the node's story does not tell it")
        assert causes(store) == [f"hung: no message for {SILENT_SECONDS:g} s"] * 3
    finally:
        store.close()
        cluster.stop()
