"""Clusters as operators see them: ``cluster/*.txt`` are transcripts of commands.

The command line is flumeng's, the master is real, and ZooKeeper is a fake one in memory. Nodes run
the tasks that they are assigned. Commands beside ``flumeng``:

- ``node NAME [ROLE...] [SETTING=VALUE...]``: a node joins; settings are ``zone``, its capacity
  (``slots``) and labels
- ``down NAME``, ``up NAME``: its session ends, and begins
- ``fail NAME REVISION ERROR``: its tasks of that revision fail, ``works NAME``: no more
- ``wait SECONDS``: time passes
- ``tick``: the master looks once; ``settle``: it looks, and nodes obey, until all is at rest. Both
  print the log lines of the master
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flumeng.control.master.daemon import Master
from flumeng.control.zookeeper import ABSENT, tree
from tests.scenarios.transcripts import check
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

FILES = sorted((Path(__file__).parent / "cluster").glob("*.txt"))
ROLES = {records.INGEST, records.COLLECT, records.DISCOVER}
MOST_TICKS = 50
IDLE = "nothing to do"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_commands_print_the_transcript(file: Path, rewrite: bool) -> None:
    check(file, lambda: SmallCluster().run, rewrite)


@dataclass
class SmallCluster:
    store: FakeStore = field(default_factory=FakeStore)
    seconds: float = 0.0
    failures: dict[tuple[str, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tree.init(self.store)
        self.shell = Shell(self.store.tree)
        session = FakeStore(self.store.tree)
        self.master = Master(session, "m", lambda: self.seconds, lambda: NOON + self.seconds)
        self.incarnations: dict[str, int] = {}

    def run(self, words: Sequence[str], text: str) -> str:
        match words:
            case "flumeng", *rest:
                result = self.shell.run(*rest, typed=text or None)
                code = f"exit code {result.exit_code}\n" if result.exit_code else ""
                return result.output + code
            case "node", name, *settings:
                self._join(name, settings)
            case "up", name:
                self._connect(name)
            case "down", name:
                found = self.store.read(paths.live_node(name))
                assert found is not None
                self.store.remove(paths.live_node(name), found.version)
            case "fail", name, revision, error:
                self.failures[name, int(revision)] = error
            case "works", name:
                self.failures = {key: e for key, e in self.failures.items() if key[0] != name}
            case "wait", seconds:
                self.seconds += float(seconds)
            case ["tick"]:
                return self.master.tick().replace("; ", "\n")
            case ["settle"]:
                return self._settle()
            case _:
                pytest.fail(f"unknown command: {' '.join(words)}")
        return ""

    def _join(self, name: str, settings: Sequence[str]) -> None:
        given = dict(setting.split("=") for setting in settings if "=" in setting)
        slots = given.pop("slots", None)
        node = records.Node(
            uuid=name,
            roles=tuple(role for role in settings if role in ROLES) or ("ingest", "collect"),
            zone=given.pop("zone", ""),
            capacity={"slots": float(slots)} if slots else {},
            labels=given,
        )
        self.store.write(paths.node(name), node, ABSENT)
        self._connect(name)

    def _connect(self, name: str) -> None:
        incarnation = self.incarnations[name] = self.incarnations.get(name, 0) + 1
        live = records.LiveNode(
            uuid=name, incarnation=f"i{incarnation}", pid=1, version="0", since=NOON + self.seconds
        )
        self.store.write(paths.live_node(name), live, ABSENT)

    def _settle(self) -> str:
        lines: list[str] = []
        for _ in range(MOST_TICKS):
            sentence = self.master.tick()
            if sentence != IDLE:
                lines.append(sentence)
            if not self._obey() and sentence == IDLE:
                return "; ".join(lines).replace("; ", "\n")
        pytest.fail(f"not at rest after {MOST_TICKS} ticks: {lines}")

    def _obey(self) -> bool:
        """Each live node runs its assignment; false when no status changed."""
        changed = False
        for name in self.incarnations:
            assignment = self.store.read(paths.assignment(name))
            if assignment is None or self.store.read(paths.live_node(name)) is None:
                continue
            tasks = {
                f"{task.flow}/{task.task}": self._status(name, task)
                for task in assignment.value.tasks
                if task.state == "running"
            }
            status = records.NodeStatus(assignment_version=assignment.version.number, tasks=tasks)
            before = self.store.read(paths.status(name))
            if before is None or before.value != status:
                self.store.write(paths.status(name), status, before.version if before else ABSENT)
                changed = True
        return changed

    def _status(self, node: str, task: records.AssignedTask) -> records.TaskStatus:
        error = self.failures.get((node, task.revision))
        state = "failed" if error else "running"
        return records.TaskStatus(
            epoch=task.epoch, revision=task.revision, state=state, error=error
        )
