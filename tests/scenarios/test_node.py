"""The state machine of a node: ``node/*.txt`` are transcripts of events and its instructions.

The node has one ingest worker and one collector. Commands:

- ``assign KIND...``: the next assignment has one task of each kind
- ``ready CHILD``, ``runs CHILD [ERROR]``: a child is ready, and reports its last configuration
- ``ends CHILD CODE [FLOW...]``: its process has ended, with jobs of these flows unfinished
- ``wait SECONDS``: ticks ten times a second; silent children give no sign of life, the others do
- ``silent CHILD``: from now on it gives none
- ``stop SECONDS``: the node is to stop, and its collector may drain for so long
- ``status``: what the node reports; ``log``: its event log
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flumeng.agent.node import events
from flumeng.agent.node.machine import Machine
from tests.scenarios.transcripts import check
from zkschema.records import COLLECT, INGEST, AssignedTask, Assignment

FILES = sorted((Path(__file__).parent / "node").glob("*.txt"))
STEP_SECONDS = 0.1


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_events_get_the_instructions_of_the_transcript(file: Path, rewrite: bool) -> None:
    check(file, lambda: SmallNode().run, rewrite)


@dataclass
class SmallNode:
    seconds: float = 0.0
    version: int = 0
    configured: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    up: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.machine = Machine((INGEST, COLLECT), lambda: self.seconds)

    def run(self, words: Sequence[str], _text: str) -> str:
        match words:
            case "assign", *kinds:
                self.version += 1
                tasks = tuple(_task(kind) for kind in kinds)
                texts = {("web", 1): "flow: web"}
                return self._handle(events.Assigned(self.version, Assignment(tasks=tasks), texts))
            case "ready", child:
                self.up.add(child)
                return self._handle(events.Reported(child, {"type": "ready", "address": ""}))
            case "runs", child, *errors:
                return self._handle(events.Reported(child, self._status(child, errors)))
            case "ends", child, code, *flows:
                self.up.discard(child)
                return self._handle(events.Ended(child, int(code), frozenset(flows)))
            case "silent", child:
                self.silent.add(child)
            case "wait", seconds:
                return self._wait(float(seconds))
            case "stop", seconds:
                return self._handle(events.Stop(float(seconds)))
            case ["status"]:
                return self._report()
            case ["log"]:
                return "\n".join(map(str, self.machine.story))
            case _:
                pytest.fail(f"unknown command: {' '.join(words)}")
        return ""

    def _handle(self, event: events.Event) -> str:
        return "\n".join(map(self._carry_out, self.machine.handle(event)))

    def _carry_out(self, instruction: events.Instruction) -> str:
        match instruction:
            case events.Start(child):
                self.silent.discard(child)
                return f"start {child}"
            case events.Tell(child, message) if message["type"] == "configure":
                self.configured[child] = message["tasks"]
                names = [task["task"] for task in message["tasks"]]
                return f"configure {child}: {', '.join(names) or 'no tasks'}"
            case events.Tell(child, message):
                return f"{message['type']} {child}"
            case events.Kill(child, why):
                return f"kill {child}: {why}"
            case events.Exit():
                return "exit"

    def _status(self, child: str, errors: Sequence[str]) -> dict[str, Any]:
        tasks = {
            f"{task['flow']}/{task['task']}": {
                "epoch": task["epoch"],
                "revision": task["revision"],
                "state": "failed" if errors else "running",
                "error": " ".join(errors) or None,
            }
            for task in self.configured[child]
        }
        return {"type": "status", "answers": self.version, "tasks": tasks}

    def _wait(self, seconds: float) -> str:
        lines: list[str] = []
        for step in range(1, round(seconds / STEP_SECONDS) + 1):
            self.seconds += STEP_SECONDS
            for child in sorted(self.up - self.silent):
                self._handle(events.Reported(child, {"type": "alive"}))
            done = self._handle(events.Tick())
            after = f"after {step * STEP_SECONDS:.1f} s"
            lines += [f"{after}: {line}" for line in done.splitlines()]
        return "\n".join(lines)

    def _report(self) -> str:
        status = self.machine.status
        lines = [f"assignment {status.assignment_version}"]
        lines += [
            f"{name}: {task.state}{f' ({task.error})' if task.error else ''}"
            for name, task in sorted(status.tasks.items())
        ]
        return "\n".join([*lines, *(f"{part}: {why}" for part, why in status.problems.items())])


def _task(kind: str) -> AssignedTask:
    task = f"{kind}.a" if kind == INGEST else f"{kind}.0"
    return AssignedTask(flow="web", task=task, kind=kind, epoch=1, revision=1, state="running")
