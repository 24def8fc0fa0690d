"""Days of traffic before a model of collect tasks, to evaluate the scaling.

A task does so many events per second, shared out evenly over the partitions that it reads. When
the number of tasks changes, nothing is known for a while, and only partitions that did not move are
read. A partition is a queue, so how late its oldest event is follows exactly from its arrivals.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil, cos, pi
from random import Random

from flumeng.control.planner.scaling import (
    CALM_SECONDS,
    SAMPLE_SECONDS,
    Decision,
    Limits,
    Sample,
    Standing,
    decide,
)

DAY = 86_400
STEP = 5
SAMPLE = int(SAMPLE_SECONDS)
START_SECONDS = 40
"""Seconds from a change of the number until all tasks run."""
RATE = 1000.0
"""Events per second of one task."""
PARTITIONS = 32
LIMITS = Limits(min=1, max=8, lag_seconds=60.0, batch_seconds=1.0, partitions=PARTITIONS)


@dataclass(frozen=True)
class Trouble:
    """A fault from second ``begin`` to ``end``:

    ``burst`` (arrivals times ``factor``), ``slow`` (each task at ``factor`` of its rate), ``bound``
    (all tasks together at most at the rate of ``factor`` tasks), ``broker`` (a third of the
    partitions is away), ``restart`` (of all processes with a memory).
    """

    kind: str
    begin: int
    end: int
    factor: float = 1.0


@dataclass(frozen=True)
class Day:
    """``peak`` and ``valley`` are events per second at noon and at midnight."""

    seed: int = 1
    peak: float = 5500.0
    valley: float = 700.0
    noise: float = 0.1
    troubles: tuple[Trouble, ...] = ()
    limits: Limits = LIMITS
    days: int = 1

    def during(self, kind: str, second: int) -> Trouble | None:
        found = (one for one in self.troubles if one.kind == kind)
        return next((one for one in found if one.begin <= second < one.end), None)


@dataclass
class Outcome:
    """``changes``: second and decision. ``turns``: how often in followed out, or out in.

    ``late`` are the seconds in which the oldest event was older than allowed, ``longest`` the
    longest stretch of them. ``least_task_seconds`` is the need with knowledge of the coming load.
    """

    changes: list[tuple[int, Decision]] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    late: int = 0
    longest: int = 0
    task_seconds: int = 0
    least_task_seconds: int = 0

    @property
    def turns(self) -> int:
        out = [one.kind == "out" for _, one in self.changes if one.kind != "limits"]
        return sum(a != b for a, b in itertools.pairwise(out))


def troubled(seed: int) -> Day:
    """A day with every kind of fault, at times from the seed."""
    rng = Random(seed)

    def at(seconds: int) -> tuple[int, int]:
        begin = rng.randrange(DAY - seconds)
        return begin, begin + seconds

    bursts = (Trouble("burst", *at(rng.randrange(120, 1800)), rng.uniform(2, 3)) for _ in range(3))
    return Day(
        seed,
        peak=rng.uniform(2000, 5000),
        troubles=(
            *bursts,
            Trouble("broker", *at(1800)),
            Trouble("slow", *at(3600), rng.uniform(0.2, 0.6)),
            Trouble("restart", *at(STEP)),
            Trouble("restart", *at(STEP)),
        ),
    )


def run_day(day: Day, watch: Callable[[Sample, Decision, Standing], None] | None = None) -> Outcome:
    """The day with the scaling at work; ``watch`` is called with each decision and its inputs."""
    outcome, late_for = Outcome(), 0
    queues = _Queues(day)
    standing = Standing(day.limits.min, 0.0)
    samples: deque[Sample] = deque(maxlen=int(CALM_SECONDS / SAMPLE) + 2)
    for second in range(0, DAY * day.days, STEP):
        queues.step(second, standing.tasks)
        late_for = late_for + STEP if queues.age > day.limits.late_seconds else 0
        outcome.late += STEP if late_for else 0
        outcome.longest = max(outcome.longest, late_for)
        outcome.task_seconds += STEP * standing.tasks
        outcome.least_task_seconds += STEP * _least(day, queues.arriving)
        if day.during("restart", second):
            standing = replace(standing, since=float(second), rate_at=second, total_before=0.0)
            samples.clear()
        if second % SAMPLE:
            continue
        samples.append(queues.sample(second, standing.tasks))
        decision = decide(samples, day.limits, standing)
        if watch:
            watch(samples[-1], decision, standing)
        outcome.kinds.add(decision.kind)
        if decision.tasks != standing.tasks:
            outcome.changes.append((second, decision))
        standing = decision.standing
    return outcome


def _least(day: Day, arriving: float) -> int:
    return day.limits.enough(arriving / RATE, day.limits.min)


class _Queues:
    """The partitions, and the tasks that read them. ``age`` is that of the oldest event."""

    def __init__(self, day: Day) -> None:
        self._day = day
        self._rng = Random(day.seed)
        self._come = [[0.0] for _ in range(day.limits.partitions)]
        """The number of events that had arrived at the partition after each step."""
        self._done = [0.0] * day.limits.partitions
        self._oldest = [0] * day.limits.partitions
        self._tasks = 0
        self._before = 0
        self._started = 0
        self._since = (0.0, 0.0)
        self.arriving = 0.0
        self.age = 0.0

    def step(self, second: int, tasks: int) -> None:
        if tasks != self._tasks:
            self._before, self._tasks = self._tasks or tasks, tasks
            self._started = second + START_SECONDS
        self.arriving = self._arrives(second)
        away = self._away(second)
        open_ = [n for n in range(len(self._come)) if n not in away]
        for number, come in enumerate(self._come):
            share = 0.0 if number in away else self.arriving / len(open_)
            come.append(come[-1] + share * STEP)
        for number, most in self._work(second, away):
            self._done[number] = min(self._come[number][-1], self._done[number] + most)
        self.age = float(max(map(self._age, range(len(self._come)))))

    def sample(self, second: int, tasks: int) -> Sample:
        come, done = sum(one[-1] for one in self._come), sum(self._done)
        before, self._since = self._since, (come, done)
        unsettled = "tasks start" if second < self._started else ""
        unsettled = unsettled or ("partitions are unknown" if self._away(second) else "")
        return Sample(
            time=float(second),
            behind=int(come - done),
            seconds=self.age,
            arriving=(come - before[0]) / SAMPLE,
            acked=(done - before[1]) / SAMPLE,
            tasks=tasks,
            unsettled=unsettled,
        )

    def _arrives(self, second: int) -> float:
        day = self._day
        curve = (1 - cos(2 * pi * second / DAY)) / 2
        burst = day.during("burst", second)
        rate = day.valley + (day.peak - day.valley) * curve
        return rate * (burst.factor if burst else 1.0) * max(0.0, self._rng.gauss(1, day.noise))

    def _away(self, second: int) -> range:
        partitions = self._day.limits.partitions
        return range(partitions // 3 if self._day.during("broker", second) else 0)

    def _work(self, second: int, away: range) -> Iterator[tuple[int, float]]:
        """The number of events of each partition that can be processed in this step."""
        slow, bound = self._day.during("slow", second), self._day.during("bound", second)
        tasks, partitions = self._tasks, len(self._come)
        whole = RATE * STEP * (slow.factor if slow else 1.0)
        if bound:
            whole = min(whole, RATE * STEP * bound.factor / tasks)
        starting = second < self._started
        stay = ceil(partitions * min(tasks, self._before) / max(tasks, self._before))
        for task in range(tasks):
            own = [n for n in range(task, partitions, tasks) if n not in away]
            waiting = [n for n in own if self._come[n][-1] > self._done[n]]
            for number in waiting:
                if not starting or number < stay:
                    yield number, whole / len(waiting)

    def _age(self, number: int) -> int:
        come, done = self._come[number], self._done[number]
        oldest = self._oldest[number]
        while oldest < len(come) - 1 and come[oldest] <= done:
            oldest += 1
        self._oldest[number] = oldest
        return (len(come) - 1 - oldest) * STEP if come[-1] > done else 0
