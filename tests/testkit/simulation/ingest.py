"""A modelled ingest worker: one journal a flow, which appears, grows and is closed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.testkit.simulation.child import END_OF_INPUT, ChildProcess
from tests.testkit.simulation.cluster import Cluster
from tests.testkit.simulation.disk import Journals
from tests.testkit.simulation.stepped_node import SteppedNode

GROW_SECONDS = 3.0
MOST_EVENTS = 40


class Ingest(ChildProcess):
    """``journals`` are the host's; it models ``flumeng.agent.ingest.worker``."""

    def __init__(
        self, world: Cluster, parent: SteppedNode, role: str, name: str, journals: Journals
    ) -> None:
        super().__init__(world, parent, role, name)
        self._journals = journals
        self._answers: int | None = None
        self._tasks: dict[str, Mapping[str, Any]] | None = None
        self._quiet = False
        self._is_ready = False

    def step(self) -> None:
        if not self._is_ready:
            self._start()
        elif self.inbox:
            self._handle(self.inbox.popleft())
        else:
            self._grow()
        if self.alive and self._is_ready:
            self.report(self._status())
        self.due = self.world.now + GROW_SECONDS if self.world.rough else float("inf")

    def end(self) -> None:
        super().end()
        if self._journals.writer is self:
            self._journals.writer = None

    def _start(self) -> None:
        """One process at a time has the journals."""
        if self._journals.writer is not None:
            self.exit(2)
            return
        self._journals.writer = self
        self._is_ready = True
        self.send({"type": "ready", "address": f"{self._journals.host}:1"})
        self.world.journals_grew()

    def _handle(self, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind == "configure":
            self._answers = message["number"]
            self._configure(message["tasks"])
        elif kind == "acks":
            for name, ack in message["acks"].items():
                if file := self._journals.files.get(name):
                    self.world.checks.on_trim(name, file, ack)
                    file.floor = max(file.floor, ack)
        elif kind == "remove":
            self._remove(message["journals"], message["flows"])
        elif kind == "past":
            assert not message["seen"], "no disk of the model goes back"
        elif kind == "quiesce":
            self._quiet = True
        elif kind == "stop":
            self._quiet = True
            self.report(self._status())
            self.exit(0)
        else:
            assert message is END_OF_INPUT
            self.exit(0)

    def _configure(self, tasks: Iterable[Mapping[str, Any]]) -> None:
        wanted = {task["flow"]: task for task in tasks if task["state"] != "draining"}
        self._tasks = wanted
        if self._quiet:
            return
        files = self._journals.files
        for name, file in files.items():
            if file.flow not in wanted and not file.closed:
                self.tell_of(name, f"closed at {file.end}")
                file.closed = True
        open_flows = {file.flow for file in files.values() if not file.closed}
        for flow in wanted:
            if flow not in open_flows:
                self.tell_of(self._journals.make(flow), "made")

    def _remove(self, journals: Iterable[str], flows: Iterable[str]) -> None:
        for name in journals:
            file = self._journals.files.get(name)
            if file is not None and file.closed:
                self.world.checks.on_removed(name, file)
                del self._journals.files[name]
                self.tell_of(name, "removed")
        self._journals.kept_flows -= set(flows)

    def _grow(self) -> None:
        names = [name for name, file in self._journals.files.items() if not file.closed]
        if names and not self._quiet and self.world.rough:
            file = self._journals.files[self.world.random.choice(names)]
            file.end += self.world.random.randint(1, MOST_EVENTS)
            self.world.journals_grew()

    def _status(self) -> dict[str, Any]:
        tasks = {
            f"{flow}/{task['task']}": {
                "epoch": task["epoch"],
                "revision": task["revision"],
                "state": "stopped" if self._quiet else "running",
                "error": None,
            }
            for flow, task in (self._tasks or {}).items()
        }
        journals = {
            name: {
                "flow": file.flow,
                "term": 1,
                "closed": file.closed,
                "end": file.end if file.closed else None,
            }
            for name, file in self._journals.files.items()
        }
        kept = sorted(self._journals.kept_flows)
        return {
            "type": "status",
            "answers": self._answers,
            "tasks": tasks,
            "journals": journals,
            "kept_flows": kept,
        }

    def tell_of(self, journal: str, what: str) -> None:
        self.say(f"{journal} {what}")
