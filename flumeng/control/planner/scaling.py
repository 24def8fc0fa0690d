"""Scales a flow's collect tasks by its lag. Pure: times are of the samples, on one monotonic clock.
The flow's discovery task samples, decides and proposes; masters apply the number and remember
nothing. Every decision has a reason, also one that keeps the number. Rules:

1. No change, except into the limits, while a task is unowned, starting or failed, or a partition's
   end is unknown: such a sample does not show the capacity of the tasks.
2. Scale *out* when events were late by half the limit for a minute (or two batches) and the tasks
   will not catch up soon. The new number: arrivals and backlog, divided by a busy task's rate.
3. Do not scale out when nothing is acked, or for half an hour after an addition that brought no
   gain: then the sink or the source is slow.
4. Scale *in*, by half at most, only after a calm quarter of an hour with an unchanged number, if
   its peak rate leaves the remaining tasks a fifth to spare.
5. Partitions are shared by number, and the fullest task sets the pace: of 16, five tasks do no more
   than four, and six do a third more.
6. A task's throughput shows only while it is busy. When it is unknown, or six hours old and too low
   for rule 4, one task less is tried, which reveals the rate if that is too few.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil

from zkschema.records import PROBLEM_CHARACTERS, Scaling, ScalingDecision, cut

SAMPLE_SECONDS = 15.0
LATE_SECONDS = 60.0
"""Tasks are added only after events were late for this long, and for twice ``batch_seconds``."""
CALM_SECONDS = 900.0
CATCH_UP_SECONDS = 600.0
PATIENCE_SECONDS = 900.0
"""No task is added for a backlog that clears within this time."""
RATE_SECONDS = 6 * 3600.0
GAIN_SECONDS = 1800.0
"""After an addition that brought no gain, the next one is tried after this time."""
GAIN = 1.1
SPARE_OUT, SPARE_IN = 1.1, 1.25
"""Factors of throughput over need after scaling out and in; the gap prevents flapping."""
GAP_SECONDS = 60.0
"""A longer pause between two samples makes the window incomplete."""
KEPT = {
    "unsettled": "a task has no owner, starts or has failed, or a partition's end is unknown",
    "watching": "too few samples since the beginning, or since the last change",
    "steady": "events are not late, but the lag was not low for long enough to remove tasks",
    "catching up": "the backlog will soon be done",
    "no progress": "nothing is acked, so more tasks would not help",
    "no gain": "the tasks added last did not raise the total throughput",
    "at most": "the flow has as many tasks as are allowed, or as it has partitions",
    "at least": "the flow has as few tasks as are allowed",
    "needed": "fewer tasks could not keep up",
}
"""The kinds of decisions that keep the number of tasks, with their meaning."""
KEPT_CHANGES = 10
KEPT_OTHERS = 10
WRITE_SECONDS = 60.0
"""Least time between written decisions that keep the number; only a new kind is written."""


@dataclass(frozen=True)
class Sample:
    """A sample of the flow. Rates are per second since the previous one; ``behind`` events wait,
    the oldest for ``seconds``. ``unsettled``: why the sample must not be used."""

    time: float
    behind: int
    seconds: float
    arriving: float
    acked: float
    tasks: int
    unsettled: str = ""


@dataclass(frozen=True)
class Limits:
    """Limits from the flow's text. ``partitions``: the number of open partitions."""

    min: int
    max: int
    lag_seconds: float
    batch_seconds: float
    partitions: int

    @property
    def late_seconds(self) -> float:
        return max(self.lag_seconds, 3 * self.batch_seconds)

    @property
    def most(self) -> int:
        return max(self.min, min(self.max, self.partitions))

    def clamp(self, tasks: int) -> int:
        return max(self.min, min(tasks, self.max))

    def worth(self, tasks: int) -> float:
        """Return how many equally full tasks do as much: the fullest task sets the pace."""
        return self.partitions / ceil(self.partitions / tasks) if self.partitions else 1.0

    def enough(self, worth: float, least: int) -> int:
        """Return the fewest tasks that do this work, at least ``least``, at most ``most``."""
        able = (tasks for tasks in range(least, self.most) if self.worth(tasks) >= worth)
        return next(able, self.most)

    def late(self, sample: Sample) -> float:
        return max(0.0, sample.seconds - self.batch_seconds)

    @property
    def window_seconds(self) -> float:
        return max(LATE_SECONDS, 2 * self.batch_seconds)


@dataclass(frozen=True)
class Standing:
    """The last decided number of tasks and its start. ``rate``: events per second of a busy task,
    measured at ``rate_at``, or 0. ``total_before``: throughput before an addition, or 0."""

    tasks: int
    since: float
    rate: float = 0.0
    rate_at: float = 0.0
    total_before: float = 0.0


@dataclass(frozen=True)
class Decision:
    """A decision. Kinds ``out``, ``in``, ``probe`` (one less) and ``limits`` change the number."""

    kind: str
    tasks: int
    why: str
    standing: Standing


def decide(samples: Sequence[Sample], limits: Limits, standing: Standing) -> Decision:
    """Decide on the number of tasks at the time of the last sample; ``samples``: oldest first."""
    tasks = standing.tasks
    allowed = limits.clamp(tasks)
    now = samples[-1]
    if allowed != tasks:
        why = f"between {limits.min} and {limits.max} tasks are allowed"
        return _change("limits", allowed, why, now, replace(standing, total_before=0.0))
    if now.unsettled:
        return Decision("unsettled", tasks, now.unsettled, standing)
    recent = _window(samples, limits.window_seconds, standing.since)
    if not recent:
        why = f"too few samples: {limits.window_seconds:g} s with {_count(tasks)} are needed"
        return Decision("watching", tasks, why, standing)
    if min(map(limits.late, recent)) >= limits.late_seconds / 2:
        return _out(recent, limits, standing)
    return _in(samples, limits, standing)


def _out(recent: Sequence[Sample], limits: Limits, standing: Standing) -> Decision:
    now, tasks = recent[-1], standing.tasks
    arriving, acked = _mean(recent)
    rate = acked / limits.worth(tasks)
    late = f"the oldest of {now.behind} waiting events is {now.seconds:.0f} s old"
    if acked <= 0:
        why = f"{late}, and nothing is acked: more tasks would not help"
        return Decision("no progress", tasks, why, standing)
    gain = acked - arriving
    if gain > 0:  # towards the end some tasks have nothing left to do
        rate = max(rate, standing.rate)
    standing = replace(standing, rate=rate, rate_at=now.time)
    if gain > 0 and now.behind / gain <= PATIENCE_SECONDS:
        why = f"{late}; the backlog will be done in {now.behind / gain:.0f} s"
        return Decision("catching up", tasks, why, standing)
    if limits.worth(tasks) >= limits.worth(limits.most):
        bounded = limits.partitions >= limits.max
        why = "no more tasks are allowed" if bounded else "there are no more partitions"
        return Decision("at most", tasks, f"{late}, and {why}", standing)
    before = standing.total_before
    if before and acked < GAIN * before and now.time - standing.since < GAIN_SECONDS:
        why = (
            f"{late}; {_count(tasks)} take {acked:.0f} events/s in all, and fewer took "
            f"{before:.0f}: the sink or the source is slow"
        )
        return Decision("no gain", tasks, why, standing)
    need = SPARE_OUT * arriving + now.behind / CATCH_UP_SECONDS
    more = next(n for n in range(tasks, limits.most + 1) if limits.worth(n) > limits.worth(tasks))
    target = limits.enough(need / rate, more)
    why = f"{late}; {arriving:.0f} events/s arrive, and a task takes {rate:.0f}"
    return _change("out", target, why, now, replace(standing, total_before=acked))


def _in(samples: Sequence[Sample], limits: Limits, standing: Standing) -> Decision:
    now, tasks = samples[-1], standing.tasks
    if tasks <= limits.min:
        return Decision("at least", tasks, f"at least {limits.min} are required", standing)
    calm = _window(samples, CALM_SECONDS, standing.since)
    if not calm or max(map(limits.late, calm)) > limits.late_seconds / 4:
        why = f"events are not late, but the lag was not low for {CALM_SECONDS / 60:g} minutes"
        return Decision("steady", tasks, why, standing)
    peak = max(
        _mean(_since(calm[: end + 1], sample.time - limits.window_seconds))[0]
        for end, sample in enumerate(calm)
    )
    arrived = f"at most {peak:.0f} events/s arrived in {CALM_SECONDS / 60:g} minutes"
    still = replace(standing, total_before=0.0)
    rate = standing.rate
    needed = limits.enough(SPARE_IN * peak / rate, limits.min) if rate else tasks
    if needed < tasks:
        why = f"{arrived}, and a task takes {rate:.0f}"
        return _change("in", max(needed, ceil(tasks / 2)), why, now, still)
    if not rate or now.time - standing.rate_at > RATE_SECONDS:
        why = f"{arrived}; the throughput of a busy task is unknown: one task less is tried"
        return _change("probe", tasks - 1, why, now, still)
    return Decision("needed", tasks, f"{arrived}, and a task takes {rate:.0f}", standing)


def _change(kind: str, tasks: int, why: str, now: Sample, standing: Standing) -> Decision:
    return Decision(kind, tasks, why, replace(standing, tasks=tasks, since=now.time))


def _window(samples: Sequence[Sample], seconds: float, since: float) -> Sequence[Sample]:
    """Return the samples of the last ``seconds``; empty if these are incomplete or unsettled, or
    the number of tasks changed meanwhile."""
    now = samples[-1].time
    recent = _since(samples, now - seconds)
    pairs = itertools.pairwise(recent)
    whole = now - recent[0].time >= seconds - 1.5 * SAMPLE_SECONDS and now - since >= seconds
    holes = any(after.time - before.time > GAP_SECONDS for before, after in pairs)
    unsettled = any(sample.unsettled for sample in recent)
    return recent if whole and not holes and not unsettled else ()


def _since(samples: Sequence[Sample], time: float) -> Sequence[Sample]:
    return [sample for sample in samples if sample.time >= time]


def _mean(samples: Sequence[Sample]) -> tuple[float, float]:
    count = len(samples)
    return sum(s.arriving for s in samples) / count, sum(s.acked for s in samples) / count


def _count(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def standing(record: Scaling | None, planned: int, now: float) -> Standing:
    """Return the state of a process that starts now, from the last decision or ``planned``."""
    if record is None:
        return Standing(planned, now)
    return Standing(record.tasks, now, record.rate, now)


def recorded(
    record: Scaling | None, decision: Decision, before: int, time: float, quiet_seconds: float
) -> Scaling | None:
    """Return the record with the decision, or None when it needs no write. ``before``: the previous
    number; ``time``: since the epoch; ``quiet_seconds``: since the last write."""
    decisions = record.decisions if record else ()
    changes = decision.tasks != before or record is None
    is_new = not decisions or decisions[-1].kind != decision.kind
    if not changes and (quiet_seconds < WRITE_SECONDS or not is_new):
        return None
    new = ScalingDecision(
        time=time,
        kind=decision.kind,
        before=before,
        tasks=decision.tasks,
        why=cut(decision.why, PROBLEM_CHARACTERS),
    )
    return Scaling(
        tasks=decision.tasks, rate=decision.standing.rate, decisions=_latest((*decisions, new))
    )


def _latest(decisions: tuple[ScalingDecision, ...]) -> tuple[ScalingDecision, ...]:
    """Return the last changes and, limited separately, the last other decisions."""
    changes = [n for n, entry in enumerate(decisions) if entry.before != entry.tasks]
    others = [n for n, entry in enumerate(decisions) if entry.before == entry.tasks]
    kept = chain(changes[-KEPT_CHANGES:], others[-KEPT_OTHERS:])
    return tuple(decisions[number] for number in sorted(kept))
