"""Light nodes: real sessions, machines and znodes over children that are only scripted.

``python -m tests.testkit.light_nodes HOSTS FOLDER FIRST COUNT [SESSION_SECONDS]`` runs COUNT of
them in one process, named ``light-FIRST`` and so on, until it is killed. Each opens an empty
journal for every flow that it ingests, and reports each collect task as running.
"""

from __future__ import annotations

import errno
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flumeng.agent.node.children import UNLIMITED, role_of
from flumeng.agent.node.claim import Claim
from flumeng.agent.node.daemon import Node
from flumeng.agent.node.data_directory import DataDirectory
from flumeng.agent.node.events import Ended, Event, Reported, Tick
from flumeng.agent.node.protocol import Message
from flumeng.agent.node.settings import Settings
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore
from flumeng.platform import processes
from zkschema.records import INGEST

TICK_SECONDS = 2.0
LABELS = {"kind": "light"}


class ClaimsInMemory:
    """The claim of a data directory that exists only in memory; ``full`` while no write
    succeeds."""

    def __init__(self) -> None:
        self.kept = Claim()
        self.full = False

    def claim(self) -> Claim:
        return self.kept

    def keep_claim(self, claim: Claim) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.kept = claim


class ScriptedChild:
    """Carries out each command at once; ``hear`` receives its answers.

    A journal that it closes ends at ``closed_end``.
    """

    closed_end = 0

    def __init__(self, name: str, node: str, hear: Callable[[Event], None]) -> None:
        self._name = name
        self._node = node
        self._hear = hear
        self._journals: dict[str, dict[str, Any]] = {}
        self._number: int | None = None
        self._tasks: list[Mapping[str, Any]] = []
        hear(Reported(name, {"type": "ready", "address": f"{node}:1"}))

    def open_journals(self, journals: Mapping[str, dict[str, Any]]) -> None:
        """Open these journals as existing ones."""
        self._journals.update(journals)

    def tell(self, message: Message) -> None:
        if message["type"] == "configure":
            self._number, self._tasks = message["number"], message["tasks"]
            self._report()
        elif message["type"] == "remove":
            for name in message["journals"]:
                self._journals.pop(name, None)
            self._report()
        elif message["type"] == "stop":
            self._hear(Ended(self._name, 0))

    def kill(self) -> None:
        self._hear(Ended(self._name, -9))

    def _report(self) -> None:
        running = [task for task in self._tasks if task["state"] != "draining"]
        status: Message = {
            "type": "status",
            "answers": self._number,
            "tasks": {
                f"{task['flow']}/{task['task']}": {
                    "epoch": task["epoch"],
                    "revision": task["revision"],
                    "state": "running",
                }
                for task in running
            },
        }
        if role_of(self._name) == INGEST:
            flows = {task["flow"] for task in running}
            for flow in flows:
                journal = {"flow": flow, "term": 1, "closed": False, "end": None}
                self._journals.setdefault(f"{flow}.{self._node}.0.light", journal)
            for journal in self._journals.values():
                if journal["flow"] not in flows:
                    journal.update(closed=True, end=self.closed_end)
            status["journals"] = {name: dict(said) for name, said in self._journals.items()}
            status["kept_flows"] = []
        self._hear(Reported(self._name, status))


class LightNode(Node):
    """Polls less often than a real one, so that hundreds fit on a machine."""

    def __init__(self, settings: Settings, store: Store) -> None:
        super().__init__(settings, DataDirectory(settings.data), store)

    def _next_event(self) -> Event:
        try:
            return self._events.get(timeout=TICK_SECONDS) or Tick()
        except queue.Empty:
            return Tick()

    def _start(self, child: str) -> None:
        scripted = ScriptedChild(child, self._settings.name, self.hear)
        self._children[child] = scripted  # type: ignore[assignment]


def start(hosts: str, folder: Path, number: int, session_seconds: float) -> LightNode:
    """One light node in a thread of its own."""
    name = f"light-{number}"
    settings = Settings(
        name,
        folder / name,
        hosts,
        labels=LABELS,
        session_seconds=session_seconds,
        limits=UNLIMITED,
        warm_collector=False,
    )
    node = LightNode(settings, ZooKeeperStore(hosts, session_seconds))
    threading.Thread(target=node.run, name=name, daemon=True).start()
    return node


def main(hosts: str, folder: str, first: str, count: str, session_seconds: str = "10") -> None:
    processes.die_with_parent()
    numbers = range(int(first), int(first) + int(count))
    nodes = [start(hosts, Path(folder), n, float(session_seconds)) for n in numbers]
    print(f"{len(nodes)} nodes", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
