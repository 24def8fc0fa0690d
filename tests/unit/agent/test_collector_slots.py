"""The order of batches for slots, shared jobs, and batches that begin too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.job import STARTS_AT_ONCE, Jobs, Starts
from flumeng.agent.collector.outcome import HungError
from flumeng.agent.collector.slot import (
    APART,
    FAILING,
    SHARED,
    SHARED_EVENTS,
    SHARED_MEMBERS,
    SMALL_EVENTS,
    Request,
    SharedSize,
    Slots,
    bounds,
)
from flumeng.agent.collector.threads import Threads
from flumeng.connectors.api.ranged import Range
from tests.testkit.clock import Clock
from tests.testkit.collector import ScriptedEngine, ScriptedPipeline
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from tests.unit.agent.task_world import spec, waited


@dataclass(eq=False)
class Asker:
    """Asks for a slot under that name. Takes ``seconds`` to begin; records the granted sizes."""

    name: str
    seconds: float = 0.0
    may_begin: threading.Event | None = None
    write: Callable[[Sequence[Range]], None] = lambda _: None
    bounds: list[int | None] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)

    def begin(self, most_events: int | None) -> Work | None:
        self.bounds.append(most_events)
        if self.may_begin is not None:
            waited(self.may_begin)
        time.sleep(self.seconds)
        pipeline = ScriptedPipeline(spec(), self.write, shareable=True)
        self.works.append(Work(pipeline, (), {}, {}, PATIENCE_SECONDS, lambda _: None))
        return self.works[-1]


def request(flow: str, events: int = 10, *, task: int = 0, **changes: Any) -> Request:
    asker = Asker(f"{flow}/collect.{task}")
    return Request(flow, asker, events, **{"shareable": True, **changes})


def keys(requests: Sequence[Request]) -> list[str]:
    return [each.member.name for each in requests if isinstance(each.member, Asker)]


def test_flows_take_turns_however_many_tasks_they_have() -> None:
    slots = Slots()
    for task in range(3):
        slots.ask(request("many", task=task, shareable=False))
    slots.ask(request("one", shareable=False))
    said = [keys(slots.next(SHARED)) for _ in range(4)]
    assert said == [["many/collect.0"], ["one/collect.0"], ["many/collect.1"], ["many/collect.2"]]
    assert slots.next(SHARED) == []


def test_flow_with_small_batches_waits_less_and_no_flow_waits_for_ever() -> None:
    clock = Clock(0.0)
    slots = Slots(clock=clock)
    slots.ask(request("patient", shareable=False, gather_seconds=2.0))
    clock.now = 0.1
    slots.ask(request("hasty", shareable=False, gather_seconds=0.2))
    clock.now = 0.2
    assert keys(slots.next(SHARED)) == ["hasty/collect.0"], "half of 0.2 s, a tenth of 2 s"
    turns = 0
    said: list[str] = []
    while "patient/collect.0" not in said:
        turns += 1
        hasty = request("hasty", shareable=False, gather_seconds=0.001)
        slots.ask(hasty)
        clock.now += 0.2
        said = keys(slots.next(SHARED))
        slots.withdraw(hasty)
    assert 8 <= turns <= 11, "however hasty the other one is"


def test_small_batches_share_a_job_and_large_ones_and_sql_run_alone() -> None:
    slots = Slots()
    slots.ask(request("a"))
    slots.ask(request("large", SMALL_EVENTS + 1))
    slots.ask(request("sql", shareable=False))
    slots.ask(request("b"))
    said = [keys(slots.next(SHARED)) for _ in range(3)]
    assert said == [["a/collect.0", "b/collect.0"], ["large/collect.0"], ["sql/collect.0"]]


def test_a_shared_job_is_bounded_in_batches_and_in_events() -> None:
    slots = Slots()
    for number in range(2 * SHARED_MEMBERS):
        slots.ask(request(f"f{number}"))
    assert len(slots.next(SHARED)) == SHARED_MEMBERS
    slots = Slots()
    for number in range(SHARED_MEMBERS):
        slots.ask(request(f"f{number}", SMALL_EVENTS))
    assert sum(each.events for each in slots.next(SHARED)) <= SHARED_EVENTS


def test_batch_apart_waits_for_slots_of_its_own() -> None:
    slots = Slots()
    slots.ask(request("a", apart=True))
    slots.ask(b := request("b", apart=True))
    assert slots.next(SHARED) == []
    assert keys(slots.next(APART)) == ["a/collect.0"]
    assert slots.withdraw(b)
    assert not slots.withdraw(b)
    assert slots.next(APART) == []


def test_small_batches_of_failing_tasks_share_jobs_with_each_other_only() -> None:
    slots = Slots()
    for name, failing in (("a", False), ("b", True), ("c", True), ("d", False)):
        slots.ask(request(name, failing=failing))
    slots.ask(request("large", SMALL_EVENTS + 1, failing=True))
    assert keys(slots.next(FAILING)) == ["b/collect.0", "c/collect.0"]
    assert slots.next(FAILING) == []
    said = [keys(slots.next(SHARED)) for _ in range(2)]
    assert said == [["a/collect.0", "d/collect.0"], ["large/collect.0"]]


def test_batch_that_grew_while_waiting_gets_its_part_of_a_shared_job() -> None:
    for events, members in ((10, 128), (SMALL_EVENTS, 10), (1, 3)):
        most = bounds([request(f"f{number}", events) for number in range(members)])
        assert all(each is not None and events <= each <= SMALL_EVENTS for each in most)
        assert sum(each or 0 for each in most) <= SHARED_EVENTS
    assert bounds([request("alone")]) == [None]


def test_two_requests_of_one_task_wait_independently() -> None:
    """A task that is given back soon after it was taken away waits beside its former self."""
    slots = Slots()
    before, after = request("a"), request("a")
    slots.ask(before)
    slots.ask(after)
    assert slots.withdraw(before)
    assert slots.next(SHARED) == [after]


@pytest.mark.slow
def test_batch_without_a_thread_has_not_begun_and_is_not_late() -> None:
    """Each batch has its time from when a thread takes it."""
    late: list[Work] = []
    starts = Starts(late.append, start_seconds=0.5)
    askers = [Asker(str(number), seconds=0.2) for number in range(100)]
    works, unreached = starts.begin([Request("f", asker, 1, shareable=True) for asker in askers])
    begun = [asker for asker in askers if asker.works]
    assert works == [asker.works[0] for asker in begun]
    assert [each.member for each in unreached] == [each for each in askers if each not in begun]
    time.sleep(0.5)
    assert late == []
    assert STARTS_AT_ONCE <= len(begun) == sum(len(asker.bounds) for asker in askers) < 40


def test_batch_that_begins_too_late_is_written_apart_and_not_discarded() -> None:
    """Its acks may have moved already."""
    engine = ScriptedEngine()
    jobs = Jobs(engine, 1, on_stuck=pytest.fail, start_seconds=0.3)
    may_begin = threading.Event()
    askers = [Asker("late", may_begin=may_begin), *(Asker(str(number)) for number in range(3))]
    for asker in askers:
        jobs.ask(Request("f", asker, 1, shareable=True))
    wait_for(lambda: sum(engine.jobs) == 3)
    may_begin.set()
    wait_for(lambda: sum(engine.jobs) == 4)
    assert [len(asker.bounds) for asker in askers] == [1, 1, 1, 1]


@pytest.mark.slow
def test_shared_job_has_only_batches_that_can_begin_in_time() -> None:
    engine = ScriptedEngine()
    jobs = Jobs(engine, 1, on_stuck=pytest.fail)
    for turn in range(1, 5):
        before = len(engine.jobs)
        for number in range(100):
            asker = Asker(str(number), seconds=0.05)
            jobs.ask(Request(asker.name, asker, 1, shareable=True))
        wait_for(lambda: sum(engine.jobs) == 100 * turn)  # noqa: B023
    assert max(engine.jobs[before:]) <= 60, "8 begin at once, in 0.05 s, and 0.3 s are allowed"


@pytest.mark.slow
def test_hanging_batch_does_not_shrink_the_next_jobs() -> None:
    """Its job took long, and others would not."""

    def hang(_ranges: Sequence[Range]) -> None:
        time.sleep(1.0)
        raise HungError("hung")

    engine = ScriptedEngine()
    jobs = Jobs(engine, 1, on_stuck=pytest.fail)
    for turn in range(1, 4):
        may_go = threading.Event()
        blocker = Asker("blocker", write=lambda _: waited(may_go))  # noqa: B023
        jobs.ask(Request("blocker", blocker, 1, shareable=False))
        wait_for(lambda: engine.at_once == 1)
        askers = [Asker("hanging", write=hang), *(Asker(str(number)) for number in range(39))]
        for asker in askers:
            jobs.ask(Request(asker.name, asker, 1, shareable=True))
        may_go.set()
        wait_for(lambda: sum(engine.jobs) == 41 * turn and not engine.at_once)  # noqa: B023
    assert engine.jobs == [1, 40] * 3


def test_hanging_thread_is_replaced_and_reported_once() -> None:
    threads = Threads("test", 1, limit_seconds=0.05)
    may_end, done = threading.Event(), threading.Event()
    told: list[float] = []
    threads.submit(lambda: waited(may_end), told.append)
    threads.submit(done.set, told.append)
    time.sleep(0.1)
    assert not done.is_set()
    threads.check_limits()
    threads.check_limits()
    assert done.wait(PATIENCE_SECONDS)
    assert len(told) == 1
    may_end.set()


def test_size_of_a_shared_job_follows_its_allowed_duration() -> None:
    size = SharedSize()
    size.measured(10, 0.1, 0.3)
    assert size.members == SHARED_MEMBERS, "a job that was not full and short says nothing"
    for _ in range(9):
        size.measured(size.members, size.members * 0.03, 0.3)
    assert size.members == 10, "0.3 s for batches of 0.03 s each"
    size.measured(10, 60.0, 0.3)
    size.measured(size.members, 60.0, 0.3)
    assert size.members == SharedSize.LEAST
    for _ in range(9):
        size.measured(size.members, size.members * 0.001, 0.3)
    assert size.members == SHARED_MEMBERS


def test_shared_job_is_short_unless_others_wait_long() -> None:
    clock = Clock(0.0)
    slots = Slots(clock=clock)

    def members(jobs: int) -> int:
        """The batches in the last of so many jobs, in which a batch takes 0.03 s."""
        count = 0
        for _ in range(jobs):
            count = len(chosen := slots.next(SHARED))
            slots.measured(count, count * 0.03)
            for each in chosen:
                slots.ask(each)
        return count

    for number in range(200):
        slots.ask(request(f"f{number}"))
    assert members(9) == 10, "0.3 s"
    clock.now = 20.0
    assert members(4) == 66, "a tenth of the 20 s for which others have waited"
