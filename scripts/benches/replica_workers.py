"""Real ingest workers of several nodes, each a process with a Flight server of its own, on one
disk.

The bench is to them what their nodes, the master and ZooKeeper are: it keeps who holds which
journal, makes the changes that a worker proposes at the version that it knows, and tells all of
them what is there then. That takes no longer than a look at a queue, so that what is measured is
the workers' work.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty

from flumeng.journal.replication.membership import Membership
from tests.testkit.ingest_worker import WorkerProcess, flow_text

PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.002
FLOW = "bench"


class ReplicaWorkers:
    """``workers`` by their nodes' names: the first one ingests. ``nodes`` are to hold each
    replicated journal."""

    def __init__(self, folder: Path, names: tuple[str, ...], nodes: tuple[str, ...]) -> None:
        self.workers: dict[str, WorkerProcess] = {}
        self.nodes = nodes
        self.memberships: dict[str, tuple[Membership, int]] = {}
        self._folder = folder
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        for name in names:
            self.add(name)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def first(self) -> WorkerProcess:
        return next(iter(self.workers.values()))

    def add(self, name: str) -> None:
        with self._lock:
            self.workers[name] = WorkerProcess(self._folder / name, "--node", name)

    def remove(self, name: str) -> None:
        """The worker and its disk."""
        with self._lock:
            self.workers.pop(name).kill()
        shutil.rmtree(self._folder / name)

    def run(self, source: str, *, durability: str, min_in_sync: int = 1) -> None:
        """A flow on the first worker. Returns when so many replicas are in sync."""
        replicas = f"replicas: {{copies: {min_in_sync}, min_in_sync: {min_in_sync}}}\n"
        replicas = replicas if durability == "replicated" else ""
        self.first.run(flow_text(FLOW, source) + f"durability: {durability}\n{replicas}")
        if durability == "replicated":
            self.until(lambda: self.in_sync >= min_in_sync, f"{min_in_sync} replicas in sync")

    @property
    def in_sync(self) -> int:
        """How many replicas of the only replicated journal are in sync."""
        with self._lock:
            return max((len(m.in_sync) for m, _ in self.memberships.values()), default=0)

    def hold(self, *nodes: str) -> None:
        """From now on these nodes are to hold the journals; the others' replicas are deleted."""
        with self._lock:
            self.nodes = nodes
            for journal, (membership, version) in self.memberships.items():
                in_sync = tuple(c for c in membership.in_sync if c.partition("/")[0] in nodes)
                changed = Membership(
                    membership.lineage, membership.term, membership.primary, in_sync, nodes
                )
                self.memberships[journal] = changed, version + 1
            self._tell()

    def until(
        self, holds: Callable[[], bool], what: str, *, look_seconds: float = LOOK_SECONDS
    ) -> float:
        """When it held, on the monotonic clock."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            assert self._thread.is_alive(), "what is between the workers has failed"
            time.sleep(look_seconds)
        return time.monotonic()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        for worker in self.workers.values():
            worker.stop()

    def _serve(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            with self._lock:
                changed = self._enter()
                for worker in self.workers.values():
                    changed |= self._grant(worker)
                if changed:
                    self._tell()

    def _enter(self) -> bool:
        """What the first worker has made, as its node would enter it."""
        new = {
            name: said
            for name, said in self.first.status["journals"].items()
            if "replica" in said and name not in self.memberships
        }
        for name, said in new.items():
            replica = said["replica"]
            began = Membership(said["lineage"], said["term"] + 1, replica, (replica,), self.nodes)
            self.memberships[name] = began, 0
        return bool(new)

    def _grant(self, worker: WorkerProcess) -> bool:
        proposed = False
        while True:
            try:
                proposal = worker.proposals.get_nowait()
            except Empty:
                return proposed
            proposed = True
            _, version = self.memberships[proposal["journal"]]
            if proposal["version"] == version:
                self.memberships[proposal["journal"]] = (
                    Membership.from_message(proposal),
                    version + 1,
                )

    def _tell(self) -> None:
        journals = {
            name: {"version": version, "created": 1, **membership.as_message()}
            for name, (membership, version) in self.memberships.items()
        }
        addresses = {name: worker.ready["address"] for name, worker in self.workers.items()}
        for name, worker in self.workers.items():
            worker.send(
                type="replicas",
                journals=journals,
                addresses={node: where for node, where in addresses.items() if node != name},
                ended={},
                unwanted=[] if name in self.nodes else list(self.memberships),
                texts={},
            )
