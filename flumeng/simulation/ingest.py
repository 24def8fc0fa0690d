"""A modelled ingest worker: one journal a flow, which appears, grows and is closed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flumeng.simulation.child import END_OF_INPUT, ChildProcess
from flumeng.simulation.disk import JournalFile

if TYPE_CHECKING:
    from flumeng.simulation.host import Host

GROW_SECONDS = 3.0
MOST_EVENTS = 40


class Ingest(ChildProcess):
    """What is on disk is that of the host; see ``flumeng.ingest.worker`` for what is modelled."""

    def __init__(self, host: Host, role: str, name: str) -> None:
        super().__init__(host, role, name)
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
        if self.host.journals.writer is self:
            self.host.journals.writer = None

    def _start(self) -> None:
        """One process at a time has the journals."""
        if self.host.journals.writer is not None:
            self.exit(2)
            return
        self.host.journals.writer = self
        self._is_ready = True
        self.send({"type": "ready", "address": f"{self.host.name}:1"})
        self.world.journals_grew()

    def _handle(self, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind == "configure":
            self._answers = message["number"]
            self._configure(message["tasks"])
        elif kind == "acks":
            for name, ack in message["acks"].items():
                if file := self.host.journals.files.get(name):
                    self.world.checks.on_trim(name, file, ack)
                    file.floor = max(file.floor, ack)
        elif kind == "remove":
            self._remove(message["journals"], message["flows"])
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
        files = self.host.journals.files
        for name, file in files.items():
            if file.flow not in wanted and not file.closed:
                self.tell_of(name, f"closed at {file.end}")
                file.closed = True
        open_flows = {file.flow for file in files.values() if not file.closed}
        for flow in wanted:
            if flow not in open_flows:
                self.host.journals.made += 1
                name = f"{flow}.{self.host.name}.0.{self.host.journals.made}"
                files[name] = JournalFile(flow)
                self.host.journals.kept_flows.add(flow)
                self.tell_of(name, "made")

    def _remove(self, journals: Iterable[str], flows: Iterable[str]) -> None:
        for name in journals:
            file = self.host.journals.files.get(name)
            if file is not None and file.closed:
                self.world.checks.on_removed(name, file)
                del self.host.journals.files[name]
                self.tell_of(name, "removed")
        self.host.journals.kept_flows -= set(flows)

    def _grow(self) -> None:
        names = [name for name, file in self.host.journals.files.items() if not file.closed]
        if names and not self._quiet and self.world.rough:
            file = self.host.journals.files[self.world.random.choice(names)]
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
            for name, file in self.host.journals.files.items()
        }
        kept = sorted(self.host.journals.kept_flows)
        return {
            "type": "status",
            "answers": self._answers,
            "tasks": tasks,
            "journals": journals,
            "kept_flows": kept,
        }

    def tell_of(self, journal: str, what: str) -> None:
        self.say(f"{journal} {what}")
