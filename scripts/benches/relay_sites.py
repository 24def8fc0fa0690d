"""Two sites of ``bench relay``: each has a ZooKeeper, a master and a node in a network namespace.

``fra`` receives lines and is a gateway, ``nyc`` reads its flow. Lines are as long as the flow's
events are heavy: 1,000 bytes, which do not compress.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benches.processes import family
from flumeng.control.commands.flows import apply_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.cluster import acks_of
from tests.testkit.daemons import start_logged
from tests.testkit.ip_link import Ends
from tests.testkit.store import RealZooKeeper
from zkschema import paths

FLUMENG = Path(sys.executable).with_name("flumeng")
SOURCE, TARGET = "fra", "nyc"
PORT, LINES_PORT = 9000, 5514
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.05
WEB = """
flow: web
sources: [{{syslog: {{listen: "{host}:{port}", protocol: tcp}}}}]
journal: {{max_bytes: {bytes}}}
sinks: [noop]
"""
COPY = """
flow: copy
sources: [{{flow: {{site: fra, name: web, discovery_seconds: 1}}}}]
delivery: exactly-once
batch: {{seconds: 0.2}}
sinks: [{{files: {{path: "{lake}", format: parquet}}}}]
"""
LINE_BYTES = 1000
BLOCK_LINES = 1000
JOURNAL_BYTES = 8 << 30


class Site:
    """One site. ``store``: a session with its ZooKeeper."""

    def __init__(self, folder: Path, name: str, ends: Ends) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.name, self.end = name, 0 if name == SOURCE else 1
        self.ends = ends
        self.host = ends.addresses[self.end]
        self.zookeeper = RealZooKeeper(self.folder / "zookeeper")
        self.hosts = f"{self.zookeeper.address}/site"
        self.tops: dict[str, subprocess.Popen[bytes]] = {}
        self.store: Store

    def start(self, *roles: str) -> None:
        with self.ends.inside(self.end):
            self.zookeeper.start()
            self.store = connect(self.hosts)
            tree.init(self.store)
            self._run("master")
            node = ["node", "run", "--name", "n1", "--host", self.host, "--insecure"]
            node += ["--port", str(PORT), "--data", str(self.folder / "node")]
            self._run(*node, *(word for role in roles for word in ("--role", role)))

    def meet(self, other: Site) -> None:
        name_cluster(self._operator, self.name)
        add_site(self._operator, other.name, [other.gateway], "")

    def apply(self, text: str) -> None:
        apply_flow(self._operator, text)

    def pause(self, flow: str) -> None:
        set_flow_state(self._operator, flow, "suspended")

    def resume(self, flow: str) -> None:
        set_flow_state(self._operator, flow, "running")

    def stop(self) -> None:
        for process in self.tops.values():
            process.terminate()
        for process in self.tops.values():
            process.wait(60)
        if hasattr(self, "store"):
            self.store.close()
        self.zookeeper.kill()

    @property
    def gateway(self) -> str:
        return f"{self.host}:{PORT + 3}"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds so far of the node and its living children."""
        return sum(process_seconds(pid) for pid in family(self.tops["node"].pid))

    @property
    def journal(self) -> str:
        """The only journal."""
        (name,) = self.store.children(paths.journals())
        return name

    @property
    def journal_bytes(self) -> int:
        """Bytes of the journals on disk."""
        return sum(file.stat().st_size for file in (self.folder / "node").rglob("*.segment"))

    def acked(self, flow: str) -> int:
        return sum(acks_of(self.store, flow).values())

    def _run(self, *command: str) -> None:
        log = self.folder / f"{command[0]}.log"
        self.tops[command[0]] = start_logged(log, FLUMENG, *command, "--zk", self.hosts)

    @property
    def _operator(self) -> Operator:
        return Operator(self.store, "bench", "", time.time())


@contextlib.contextmanager
def two_sites(folder: Path, ends: Ends) -> Iterator[tuple[Site, Site]]:
    """Start both, with the flow ``web`` at the source; its reader has no flow yet."""
    sites = Site(folder, SOURCE, ends), Site(folder, TARGET, ends)
    with contextlib.ExitStack() as stack:
        for site, roles in zip(sites, (("ingest", "gateway"), ("collect",)), strict=True):
            stack.callback(site.stop)
            site.start(*roles)
        for site, other in (sites, sites[::-1]):
            site.meet(other)
        source = sites[0]
        source.apply(WEB.format(host=source.host, port=LINES_PORT, bytes=JOURNAL_BYTES))
        until(lambda: listens(source), "the source to listen")
        yield sites


def process_seconds(pid: int) -> float:
    """CPU seconds of a process so far, to the microsecond: its clock is named by its pid."""
    return time.clock_gettime((~pid << 3) | 2)


def listens(site: Site) -> bool:
    with site.ends.inside(site.end), contextlib.suppress(OSError):
        socket.create_connection((site.host, LINES_PORT), 1).close()
        return True
    return False


class Lines:
    """Sends numbered lines to the source's node, from within its namespace."""

    def __init__(self, site: Site) -> None:
        self.sent = 0
        noise = base64.b64encode(os.urandom(LINE_BYTES * BLOCK_LINES)).decode()
        body = LINE_BYTES - len("<13>1 - h app - - - ") - 1
        lines = (noise[at : at + body] for at in range(0, BLOCK_LINES * body, body))
        self._block = "".join(f"<13>1 - h app - - - {line}\n" for line in lines).encode()
        with site.ends.inside(site.end):
            self._connection = socket.create_connection((site.host, LINES_PORT))

    def send(self, events: int, bytes_per_second: float | None = None) -> None:
        """Send so many events, as fast as the node takes them, or at an even rate."""
        began, first = time.monotonic(), self.sent
        while self.sent < first + events:
            if bytes_per_second:
                due = began + (self.sent - first) * LINE_BYTES / bytes_per_second
                time.sleep(max(0.0, due - time.monotonic()))
            self._connection.sendall(self._block)
            self.sent += BLOCK_LINES

    def close(self) -> None:
        self._connection.close()


def until(true: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(LOOK_SECONDS)
