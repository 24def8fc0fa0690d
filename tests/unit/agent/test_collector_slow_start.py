"""A slow start of Spark gets time while its processes work, and is reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from flumeng.agent.collector.slow_start import MOST_SECONDS, REPORT_SECONDS, Work, report, work
from flumeng.agent.node import events
from flumeng.agent.node.children import Limits
from flumeng.agent.node.machine import Machine
from flumeng.agent.node.protocol import Message
from tests.testkit.clock import Clock
from tests.testkit.waiting import wait_for
from zkschema.records import COLLECT, AssignedTask, Assignment

BUSY = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"


def started(work_done: Iterator[Work], rounds: float) -> list[Message]:
    """Return the messages of a start that ends after so many reports."""
    starting: Future[object] = Future()
    sent: list[Message] = []
    left = [rounds]

    def wait(_seconds: float) -> None:
        left[0] -= 1
        if left[0] < 0:
            starting.set_result(None)

    report(sent.append, starting, lambda: next(work_done), wait)
    return sent


def growing(cpu_seconds: float, read_bytes: int) -> Iterator[Work]:
    for number in range(10_000):
        yield Work(number * cpu_seconds, number * read_bytes)


@pytest.mark.parametrize(("cpu", "read"), [(0.2, 0), (0.0, 65_536)])
def test_start_that_makes_progress_is_reported_with_its_age(cpu: float, read: int) -> None:
    sent = started(growing(cpu, read), 3)
    assert [message["held"] for message in sent] == [
        "Spark starts since 10 s",
        "Spark starts since 20 s",
        "Spark starts since 30 s",
    ]


def test_start_that_does_nothing_is_not_reported() -> None:
    """An idle JVM takes a little processor time."""
    assert started(growing(0.05, 0), 30) == []


def test_start_that_never_ends_is_reported_no_more() -> None:
    sent = started(growing(5.0, 0), float("inf"))
    assert len(sent) == MOST_SECONDS / REPORT_SECONDS


def test_work_of_processes_below_counts_and_that_of_frozen_ones_stands_still() -> None:
    top = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
    try:
        wait_for(lambda: work(top.pid).cpu_seconds > 0.5, "it does not work")
        os.killpg(top.pid, signal.SIGSTOP)
        wait_for(lambda: work(top.pid) == work(top.pid), "it goes on")
        frozen = work(top.pid)
        assert not work(top.pid).is_ahead_of(frozen)
        os.killpg(top.pid, signal.SIGCONT)
        wait_for(lambda: work(top.pid).is_ahead_of(frozen), "it stands still", seconds=60)
    finally:
        os.killpg(top.pid, signal.SIGKILL)
        top.wait()


def test_node_ends_no_collector_that_reports_its_slow_start() -> None:
    """A collector that reports nothing within its limit is killed."""
    clock = Clock()
    machine = Machine(("collect",), clock, limits=Limits(start_seconds=120.0))
    task = AssignedTask(
        flow="web", task="collect-0", kind=COLLECT, epoch=1, revision=1, state="running"
    )
    machine.handle(events.Assigned(1, Assignment(tasks=(task,)), {("web", 1): "text"}, {}))
    for number in range(1, 100):
        assert not tick(machine, clock, REPORT_SECONDS)
        held = f"Spark starts since {number * REPORT_SECONDS:.0f} s"
        machine.handle(events.Reported("collect", {"type": "alive", "held": held}))
    (status,) = machine.status.tasks.values()
    assert (status.state, status.error) == ("starting", "collect waits: Spark starts since 990 s")
    assert not tick(machine, clock, 120.0)
    assert tick(machine, clock, 1.0)


def tick(machine: Machine, clock: Clock, seconds: float) -> list[events.Kill]:
    """Return the kills within so many seconds; longer steps would be pauses of the node."""
    found: list[events.Instruction] = []
    for _ in range(int(seconds * 2)):
        clock.now += 0.5
        found += machine.handle(events.Tick())
    kills = (each for each in found if isinstance(each, events.Kill))
    return [each for each in kills if each.child == "collect"]
