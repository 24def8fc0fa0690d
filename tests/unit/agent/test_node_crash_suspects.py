"""A flow that takes its collector down is found and set aside, and no other is."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from flumeng.agent.node.crash_suspects import ENDS, WINDOW_SECONDS, CrashSuspects
from flumeng.agent.node.events import Assigned, Ended, Instruction, Reported, Start, Tell, Tick
from flumeng.agent.node.machine import Machine
from flumeng.agent.node.running_jobs import RunningJobs
from zkschema.records import COLLECT, AssignedTask, Assignment

FLOWS = tuple(f"f{number}" for number in range(6))


def _task(flow: str, epoch: int, revision: int) -> AssignedTask:
    return AssignedTask(
        flow=flow, task="collect.0", kind=COLLECT, epoch=epoch, revision=revision, state="running"
    )


def tasks(epoch: int = 1, revision: int = 1) -> tuple[AssignedTask, ...]:
    return tuple(_task(flow, epoch, revision) for flow in FLOWS)


class Node:
    """A machine with a collector that ends whenever a job of a flow of ``culprits`` runs."""

    def __init__(self, *culprits: str, seed: int = 0) -> None:
        self.culprits = culprits
        self.now = 0.0
        self.random = random.Random(seed)
        self.machine = Machine((COLLECT,), lambda: self.now)
        self.running: set[str] = set()
        self.suspects: set[str] = set()
        self.ends = 0
        self.want(tasks())

    def want(self, assigned: tuple[AssignedTask, ...]) -> None:
        version = getattr(self, "version", 0) + 1
        self.version = version
        texts = {(task.flow, task.revision): "text" for task in assigned}
        self.hear(self.machine.handle(Assigned(version, Assignment(tasks=assigned), texts)))

    def hear(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Start):
                self.hear(self.machine.handle(Reported(instruction.child, {"type": "ready"})))
            elif (
                isinstance(instruction, Tell)
                and instruction.child == COLLECT
                and instruction.message["type"] == "configure"
            ):
                self.running = {task["flow"] for task in instruction.message["tasks"]}
                self.suspects = set(instruction.message["suspects"])

    def live(self, seconds: float) -> None:
        """Jobs run: suspects one at a time, of the others any."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            self.hear(self.machine.handle(Reported(COLLECT, {"type": "alive"})) if self.up else [])
            self.hear(self.machine.handle(Tick()))
            others = sorted(self.running - self.suspects)
            jobs = set(self.random.sample(others, self.random.randint(0, len(others))))
            if waiting := sorted(self.running & self.suspects):
                jobs.add(self.random.choice(waiting))
            if self.up and jobs.intersection(self.culprits):
                self.ends += 1
                self.machine.handle(Ended(COLLECT, 1, frozenset(jobs)))

    @property
    def up(self) -> bool:
        return self.machine.children[COLLECT].state.value == "running"

    def failed(self) -> dict[str, str | None]:
        found = self.machine.status.tasks.items()
        return {key: task.error for key, task in found if task.state == "failed"}


@pytest.mark.parametrize("seed", range(10))
def test_culprit_is_set_aside_by_name_and_the_others_run_on(seed: int) -> None:
    node = Node("f3", seed=seed)
    node.live(600)
    (reason,) = node.failed().values()
    assert reason is not None
    assert "set aside: the collector ended with code 1" in reason
    assert "flumeng task restart f3/collect.0" in reason
    assert node.failed().keys() == {"f3/collect.0"}
    assert node.running == set(FLOWS) - {"f3"}
    assert node.ends == ENDS
    assert any(step.who == "f3" and step.after == "set aside" for step in node.machine.story)
    node.live(WINDOW_SECONDS)
    assert node.suspects == set()


def test_two_culprits_are_both_found() -> None:
    node = Node("f1", "f4")
    node.live(900)
    assert node.failed().keys() == {"f1/collect.0", "f4/collect.0"}
    assert node.running == set(FLOWS) - {"f1", "f4"}


@pytest.mark.parametrize("change", [{"epoch": 2}, {"revision": 2}])
def test_culprit_comes_back_when_it_is_restarted_or_changed(change: dict[str, int]) -> None:
    node = Node("f3")
    node.live(600)
    node.culprits = ()
    node.want(tasks(**change))
    node.live(60)
    assert node.failed() == {}
    assert node.running == set(FLOWS)


def test_culprit_that_drains_is_released() -> None:
    node = Node("f3")
    node.live(600)
    drained = tuple(replace(t, state="draining") for t in tasks() if t.flow == "f3")
    node.want(drained)
    assert node.machine.status.tasks == {}


def test_distant_ends_and_ends_without_jobs_accuse_no_flow() -> None:
    found = CrashSuspects()
    for number in range(10):
        found = found.after_end(number * 5.0, (), tasks(), "ended")
    assert found == CrashSuspects()
    for number in range(10):
        found = found.after_end(number * (WINDOW_SECONDS + 1), ("f3",), tasks(), "ended")
    assert found.aside == {}


def test_running_jobs_are_read_when_the_process_has_ended(tmp_path: Path) -> None:
    running_jobs = RunningJobs(tmp_path)
    with running_jobs.job(["a"]):
        pass
    left = running_jobs.job(["b", "c"])
    left.__enter__()
    (tmp_path / "jobs" / "9").write_text("damaged")
    assert RunningJobs(tmp_path).take() == {"b", "c"}
    assert RunningJobs(tmp_path).take() == frozenset()
