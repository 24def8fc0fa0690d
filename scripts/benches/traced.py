"""Processes of a bench that say what they do and when: masters, and nodes that collect.

``python -m benches.traced master HOSTS NAME`` is a real master. ``python -m benches.traced nodes
HOSTS FOLDER FIRST COUNT`` runs nodes ``n{FIRST}`` and so on in one process: real sessions, real
registration and machine, and as its child the real collector, over scripted journals and a
pipeline that writes nothing. A line ``leave NAME`` on standard input ends a node as a crash does,
``join NAME`` starts it again. Every line of output is one JSON object with the moment, ``at``, on
the machine's monotonic clock.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.worker import Worker
from flumeng.agent.node.daemon import Node
from flumeng.agent.node.data_directory import DataDirectory
from flumeng.agent.node.events import Ended, Event, Reported
from flumeng.agent.node.protocol import Message
from flumeng.agent.node.settings import Settings
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Reach
from flumeng.control.master.daemon import Master
from flumeng.control.zookeeper import Path as ZPath
from flumeng.control.zookeeper import Put, Refused, Store, Version, Write
from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore
from flumeng.platform import logs, processes
from tests.testkit.collector import Restless, ScriptedEngine, ScriptedPipeline, StillPositions
from zkschema import paths
from zkschema.records import COLLECT, DISCOVER, Ack

SESSION_SECONDS = 10.0
SLOTS = 2
EVENTS_PER_SECOND = 10
BEAT_SECONDS = 5.0
"""Of each scripted journal."""

_printing = threading.Lock()


def say(**what: object) -> None:
    with _printing:
        print(json.dumps({"at": time.monotonic(), **what}), flush=True)


class Traced:
    """A store that reports to ``committed`` and notes when it reads; otherwise the store it has."""

    def __init__(self, store: Store, committed: Callable[[Sequence[Write], float], None]) -> None:
        self._store = store
        self._committed = committed
        self.first_read = self.last_read = self.heard = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("read", "read_many", "read_each", "children", "exists"):
            return found

        def read(*arguments: object) -> object:
            began = time.monotonic()
            if self.first_read < self.heard:
                self.first_read = began
            try:
                return found(*arguments)
            finally:
                self.last_read = time.monotonic()

        return read

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        began = time.monotonic()
        versions = self._store.commit(writes)
        self._committed(writes, began)
        return versions

    def commit_each(self, transactions: Sequence[Sequence[Write]]) -> list[Refused]:
        began = time.monotonic()
        outcomes = self._store.commit_each(transactions)
        for writes, refused in zip(transactions, outcomes, strict=True):
            if refused is None:
                self._committed(writes, began)
        return outcomes

    def watch(self, path: ZPath, notify: Callable[[str], None]) -> None:
        def heard(changed: str) -> None:
            if changed.startswith(str(paths.live_nodes())):
                self.heard = time.monotonic()
            notify(changed)

        self._store.watch(path, heard)


def run_master(hosts: str, name: str) -> None:
    def committed(writes: Sequence[Write], began: float) -> None:
        rows = {str(write.path): write.path.row.pattern for write in writes}
        plans = [path for path, row in rows.items() if row.startswith(paths.plan.pattern)]
        told = [path.split("/")[2] for path, row in rows.items() if row == paths.assignment.pattern]
        if plans or told:
            read = {"first_read": store.first_read, "last_read": store.last_read}
            say(what="commit", plan=bool(plans), told=told, began=began, **read)

    store = Traced(ZooKeeperStore(hosts, SESSION_SECONDS), committed)
    Master(store, name).run()


class Journals(StillPositions):
    """Every journal grows all the time, from the moment 0 of the machine's clock."""

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        safe = int(time.monotonic() * EVENTS_PER_SECOND)
        return {name: Reach("", safe) for name in partitions}


class Collector:
    """A node's child, in a thread, with a session of its own; also the parent of its worker."""

    def __init__(self, node: str, hosts: str, hear: Callable[[Event], None]) -> None:
        self._node = node
        self._hear = hear
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._tasks: dict[tuple[str, int], str] = {}
        self._seen: set[tuple[str, int, str]] = set()
        self._store = ZooKeeperStore(hosts, SESSION_SECONDS)
        threading.Thread(target=self._run, name=f"{node}-collector", daemon=True).start()

    def tell(self, message: Message) -> None:
        for task in message.get("tasks", ()):
            key, epoch = f"{task['flow']}/{task['task']}", task["epoch"]
            self._once("told", key, epoch)
            self._tasks |= {(name, epoch): key for name in task["partitions"]}
        self._inbox.put(message)

    def kill(self) -> None:
        self._inbox.put(None)

    def die(self) -> None:
        """End without a word."""
        self._hear = lambda _: None
        self._inbox.put({"type": "stop", "drain_seconds": 0.0})

    def messages(self) -> Iterator[Message]:
        while (message := self._inbox.get()) is not None:
            yield message

    def send(self, message: Message) -> None:
        self._hear(Reported(COLLECT, message))

    def _run(self) -> None:
        store = Traced(self._store, self._committed)
        self._store.wait_connected(SESSION_SECONDS)
        Worker(
            self,  # type: ignore[arg-type]
            store,
            engine=ScriptedEngine(),
            slots=SLOTS,
            build=_pipeline,
            positions=lambda wake: Restless(Journals(), wake),
            on_stuck=sys.exit,
        ).run()
        self._store.close()
        self._hear(Ended(COLLECT, 0))

    def _committed(self, writes: Sequence[Write], _began: float) -> None:
        """The first write of a task's acks under an epoch is its claim, the second an ack."""
        keys = {
            (self._tasks[write.path.name, write.value.epoch], write.value.epoch)
            for write in writes
            if isinstance(write, Put) and isinstance(write.value, Ack)
        }
        for key, epoch in keys:
            self._once("acked" if ("claimed", epoch, key) in self._seen else "claimed", key, epoch)

    def _once(self, what: str, key: str, epoch: int) -> None:
        if (what, epoch, key) not in self._seen:
            self._seen.add((what, epoch, key))
            say(what=what, task=key, epoch=epoch, node=self._node)


class Discovery:
    """A node's child that has no tasks, and answers and lives on until it dies."""

    def __init__(self, hear: Callable[[Event], None]) -> None:
        self._hear = hear
        self._number = 0
        hear(Reported(DISCOVER, {"type": "ready"}))
        threading.Thread(target=self._beat, name="discovery", daemon=True).start()

    def tell(self, message: Message) -> None:
        self._number = message.get("number", self._number)
        self._answer()

    def kill(self) -> None:
        self.die()

    def die(self) -> None:
        self._hear = lambda _: None

    def _answer(self) -> None:
        self._hear(Reported(DISCOVER, {"type": "status", "answers": self._number, "tasks": {}}))

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            self._answer()


def _pipeline(assignment: Assignment) -> ScriptedPipeline:
    return ScriptedPipeline(parse_flow(assignment.spec))


class CollectingNode(Node):
    """A real node but for its child, that can end as a crash ends it."""

    def __init__(self, name: str, folder: Path, hosts: str) -> None:
        self._own_home = DataDirectory(folder / name)
        self._own_store = ZooKeeperStore(hosts, SESSION_SECONDS)
        settings = Settings(name, folder / name, hosts, roles=(COLLECT,), warm_collector=False)
        super().__init__(settings, self._own_home, self._own_store)
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()

    def crash(self) -> None:
        """Nothing more is acked or said; then its session ends."""
        self._exit = True
        self._thread.join()
        for child in self._children.values():
            child.die()  # type: ignore[attr-defined]
        say(what="gone", node=self._settings.name)
        self._own_store.close()
        self._own_home._lock.close()

    def _start(self, child: str) -> None:
        if child == COLLECT:
            collector = Collector(self._settings.name, self._settings.hosts, self.hear)
            self._children[child] = collector  # type: ignore[assignment]
        else:
            self._children[child] = Discovery(self.hear)  # type: ignore[assignment]


def run_nodes(hosts: str, folder: str, first: str, count: str) -> None:
    def start(name: str) -> CollectingNode:
        return CollectingNode(name, Path(folder), hosts)

    numbers = range(int(first), int(first) + int(count))
    nodes = {name: start(name) for name in (f"n{number}" for number in numbers)}
    for line in sys.stdin:
        order, name = line.split()
        if order == "leave":
            nodes.pop(name).crash()
        else:
            nodes[name] = start(name)


if __name__ == "__main__":
    processes.die_with_parent()
    logs.to_stderr(sys.argv[1])
    run: dict[str, Callable[..., None]] = {"master": run_master, "nodes": run_nodes}
    run[sys.argv[1]](*sys.argv[2:])
