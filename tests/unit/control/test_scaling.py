"""The number of collect tasks of a flow, from its measured lag and rates: each rule, and its
reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flumeng.control.planner.scaling import (
    KEPT,
    Decision,
    Limits,
    Sample,
    Standing,
    decide,
    recorded,
    standing,
)
from zkschema import codec
from zkschema.records import Partitions, Scaling

LIMITS = Limits(min=1, max=8, lag_seconds=60, batch_seconds=1, partitions=840)
SECONDS = 15


def seen(
    count: int,
    tasks: int,
    *,
    late: float = 0.0,
    behind: int = 0,
    arriving: float = 0.0,
    acked: float | None = None,
    begin: float = 1000.0,
) -> list[Sample]:
    """``count`` equal samples."""
    return [
        Sample(
            time=begin + SECONDS * number,
            behind=behind,
            seconds=late + LIMITS.batch_seconds,
            arriving=arriving,
            acked=arriving if acked is None else acked,
            tasks=tasks,
        )
        for number in range(count)
    ]


def late(count: int, tasks: int, arriving: float, acked: float, **more: float) -> list[Sample]:
    return seen(count, tasks, late=90, behind=100_000, arriving=arriving, acked=acked, **more)


def decided(
    samples: list[Sample],
    tasks: int,
    limits: Limits = LIMITS,
    *,
    since: float = 0.0,
    **known: float,
) -> Decision:
    return decide(samples, limits, Standing(tasks, since, **known))


def test_tasks_are_added_in_proportion_to_arrivals_and_backlog() -> None:
    """1,500 events/s come, 500 of them are done by each of two: 1,650 to have a tenth to spare, and
    167 to have done the backlog in ten minutes."""
    decision = decided(late(6, 2, arriving=1500, acked=1000), 2)
    assert (decision.kind, decision.tasks) == ("out", 4)
    late_by, rates = decision.why.split("; ")
    assert late_by == "the oldest of 100000 waiting events is 91 s old"
    assert rates == "1500 events/s arrive, and a task takes 500"
    assert decided(late(6, 2, arriving=2900, acked=1000), 2).tasks == 7
    assert decision.standing == Standing(4, 1075.0, rate=500.0, rate_at=1075.0, total_before=1000.0)


def test_never_more_than_the_limit_or_the_partitions() -> None:
    flood = late(6, 2, arriving=90_000, acked=1000)
    assert decided(flood, 2).tasks == 8
    assert decided(flood, 2, replace(LIMITS, partitions=5)).tasks == 5
    most = decided(late(6, 8, arriving=90_000, acked=1000), 8)
    assert (most.kind, most.tasks) == ("at most", 8)
    assert most.why.endswith("and no more tasks are allowed")
    few = decided(late(6, 3, arriving=90_000, acked=1000), 3, replace(LIMITS, partitions=3))
    assert (few.kind, few.why.rpartition("and ")[2]) == ("at most", "there are no more partitions")


def test_task_that_would_not_raise_the_throughput_is_left_out() -> None:
    """The fullest task sets the pace: of 16 partitions, five tasks read up to four as four do."""
    sixteen = replace(LIMITS, partitions=16)
    assert decided(late(6, 4, arriving=2200, acked=2000), 4, sixteen).tasks == 6
    assert decided(late(6, 6, arriving=2200, acked=2000), 6, sixteen).tasks == 8


def test_lag_of_less_than_a_minute_is_no_reason() -> None:
    """Druid's scaling may decide on too short a window."""
    spike = [*seen(60, 2, arriving=900), *late(4, 2, 2000, 1000, begin=1900.0)]
    assert decided(spike, 2, rate=500.0, rate_at=1000.0).kind == "steady"
    lasting = [*seen(60, 2, arriving=900), *late(5, 2, 2000, 1000, begin=1900.0)]
    assert decided(lasting, 2).kind == "out"


@pytest.mark.parametrize("place", [0, 2, 5])
def test_nothing_is_decided_while_a_task_is_unowned(place: int) -> None:
    samples = late(6, 2, arriving=3000, acked=1000)
    samples[place] = replace(samples[place], unsettled="task f/collect.1 is waiting")
    decision = decided(samples, 2)
    wanted = "unsettled" if place == 5 else "out" if place == 0 else "watching"
    assert (decision.kind, decision.tasks == 2) == (wanted, place != 0)
    if place == 5:
        assert decision.why == "task f/collect.1 is waiting"


def test_calm_with_an_unowned_task_in_it_is_no_calm() -> None:
    samples = seen(70, 4, arriving=100)
    assert decided(samples, 4).kind == "probe"
    samples[40] = replace(samples[40], unsettled="task f/collect.1 is waiting")
    assert decided(samples, 4).kind == "steady"


def test_decision_waits_for_a_minute_of_samples_after_a_change() -> None:
    samples = late(9, 2, arriving=3000, acked=1000)
    assert decided(samples, 2, since=samples[-5].time + 1).kind == "watching"
    assert decided(samples, 2, since=samples[-5].time).kind == "out"


def test_gap_in_the_samples_does_not_count_as_observed_time() -> None:
    """A process that was frozen has no samples of that time."""
    samples = late(6, 2, arriving=3000, acked=1000)
    woken = [replace(one, time=one.time + 900) for one in samples[3:]]
    assert decided(samples[:3] + woken, 2).kind == "watching"
    calm = seen(70, 4, arriving=100)
    woken = [replace(one, time=one.time + 61) for one in calm[30:]]
    assert decided(calm[:30] + woken, 4).kind == "steady"


def test_tasks_that_catch_up_are_left_alone() -> None:
    decision = decided(late(6, 2, arriving=800, acked=1000), 2)
    assert (decision.kind, decision.tasks) == ("catching up", 2)
    assert decision.why.endswith("the backlog will be done in 500 s")
    assert decided(late(6, 2, arriving=900, acked=1000), 2).kind == "out", "takes 1000 s"


def test_no_task_is_added_when_nothing_is_acked() -> None:
    decision = decided(late(6, 2, arriving=800, acked=0), 2, rate=700.0)
    assert (decision.kind, decision.tasks) == ("no progress", 2)
    assert decision.standing.rate == 700.0


def test_no_task_is_added_for_half_an_hour_after_one_without_gain() -> None:
    samples = late(6, 4, arriving=3000, acked=1050)
    later = [replace(one, time=one.time + 1800) for one in samples]
    decision = decided(later, 4, total_before=1000.0, since=500.0)
    assert (decision.kind, decision.tasks) == ("out", 8), "half an hour later it is tried again"
    decision = decided(samples, 4, total_before=1000.0, since=500.0)
    assert (decision.kind, decision.tasks) == ("no gain", 4)
    assert "4 tasks take 1050 events/s in all, and fewer took 1000" in decision.why
    gained = late(6, 4, arriving=3000, acked=1900)
    assert decided(gained, 4, total_before=1000.0, since=500.0).kind == "out"


def test_calm_quarter_of_an_hour_halves_the_tasks_at_most() -> None:
    calm = seen(62, 8, arriving=700)
    decision = decided(calm, 8, rate=500.0, rate_at=900.0)
    assert (decision.kind, decision.tasks) == ("in", 4)
    assert decision.why == "at most 700 events/s arrived in 15 minutes, and a task takes 500"
    assert decided(calm, 3, rate=500.0, rate_at=900.0).tasks == 2
    assert decided(calm[20:], 8, rate=500.0).kind == "steady", "ten minutes are not enough"
    assert decided(calm, 8, rate=500.0, since=1100.0).kind == "steady", "it is too new a number"


def test_highest_rate_of_the_last_quarter_hour_is_used() -> None:
    calm = seen(62, 8, arriving=700)
    burst = [replace(one, arriving=3100.0) for one in calm[20:26]]
    decision = decided([*calm[:20], *burst, *calm[26:]], 8, rate=500.0, rate_at=900.0)
    assert (decision.kind, decision.tasks) == ("needed", 8)


def test_step_out_is_not_followed_by_a_step_in_under_the_same_traffic() -> None:
    """After a step out the same traffic does not lead to a step in, at any rate."""
    for arriving in range(510, 3900, 10):
        out = decided(late(6, 1, arriving=arriving, acked=500), 1, replace(LIMITS, partitions=840))
        assert out.kind == "out"
        calm = seen(62, out.tasks, arriving=arriving, begin=2000.0)
        after = decide(calm, replace(LIMITS, partitions=840), replace(out.standing, since=1990.0))
        assert after.tasks >= 1.25 * arriving / 500 or after.kind == "needed"


def test_fewer_tasks_are_probed_when_the_rate_of_a_task_is_unknown_or_old() -> None:
    calm = seen(62, 3, arriving=700)
    assert decided(calm, 3).tasks == 2
    assert decided(calm, 3, rate=280.0, rate_at=1000.0).kind == "needed"
    long_after = [replace(one, time=one.time + 6 * 3600) for one in calm]
    decision = decided(long_after, 3, rate=280.0, rate_at=1000.0)
    assert (decision.kind, decision.tasks) == ("probe", 2)
    assert decided(calm, 1, replace(LIMITS, min=1)).kind == "at least"


def test_number_outside_of_changed_limits_is_corrected_at_once() -> None:
    nothing = seen(1, 6)
    assert decided(nothing, 6, replace(LIMITS, max=4)).tasks == 4
    assert decided(nothing, 1, replace(LIMITS, min=2)).tasks == 2
    assert decided(nothing, 6, replace(LIMITS, max=4)).kind == "limits"


def test_batch_that_gathers_events_is_not_late() -> None:
    """Files are written each minute, so an event may wait for a minute and three more."""
    files = replace(LIMITS, batch_seconds=60.0)
    assert decided(late(12, 2, arriving=3000, acked=1000), 2, files).kind == "steady"
    later = [replace(one, seconds=151.0) for one in late(12, 2, arriving=3000, acked=1000)]
    assert decided(later, 2, files).kind == "out"
    assert decided(later[:6], 2, files).kind == "watching", "a minute is one batch"


def test_changing_decisions_are_never_listed_as_kept() -> None:
    changes = {"out", "in", "probe", "limits"}
    assert not changes & KEPT.keys()


# -- the record of decisions


def decision(kind: str, tasks: int, rate: float = 0.0) -> Decision:
    return Decision(kind, tasks, f"because of {kind}", Standing(tasks, 0.0, rate))


def written(*steps: tuple[str, int, float]) -> Scaling | None:
    """The record after decisions: kind, number, and the seconds since the last write."""
    record: Scaling | None = None
    for number, (kind, tasks, quiet) in enumerate(steps):
        before = record.tasks if record else tasks
        new = recorded(record, decision(kind, tasks), before, float(number), quiet)
        record = new or record
    return record


def kinds(record: Scaling | None) -> list[str]:
    return [one.kind for one in record.decisions] if record else []


def test_decision_is_written_when_the_number_or_the_kind_changes() -> None:
    assert kinds(written(("steady", 2, 0), ("steady", 2, 900))) == ["steady"]
    assert kinds(written(("steady", 2, 0), ("out", 4, 1))) == ["steady", "out"]
    assert kinds(written(("steady", 2, 0), ("no gain", 2, 61))) == ["steady", "no gain"]
    assert kinds(written(("out", 3, 0), ("out", 4, 1), ("out", 6, 1))) == ["out", "out", "out"]


def test_decision_that_keeps_the_number_is_written_once_a_minute_at_most() -> None:
    assert kinds(written(("steady", 2, 0), ("unsettled", 2, 59))) == ["steady"]


def test_decisions_that_keep_the_number_do_not_push_out_changes() -> None:
    quiet = [(kind, 4, 61.0) for _ in range(30) for kind in ("steady", "unsettled")]
    record = written(("steady", 2, 0), ("out", 4, 0), *quiet)
    assert kinds(record) == ["out", *["steady", "unsettled"] * 5]
    many = [("out" if n % 2 else "in", 2 + n % 2, 0.0) for n in range(40)]
    assert len(kinds(written(("steady", 2, 0), *many))) == 11


def test_process_begins_with_the_last_decision() -> None:
    """Druid's scaling goes back to the minimum after a restart."""
    left = recorded(None, decision("out", 5, rate=480.0), 2, 1.0, 0.0)
    assert standing(left, 2, now=77.0) == Standing(5, 77.0, 480.0, 77.0)
    assert standing(None, 3, now=77.0) == Standing(3, 77.0)


def test_scaling_record_stays_small() -> None:
    long = Decision("out", 4, "x" * 5000, Standing(4, 0.0))
    record: Scaling | None = None
    for number in range(60):
        record = recorded(record, replace(long, tasks=number), number + 1, 1.0, 99.0)
    assert record is not None
    assert len(codec.encode(Partitions(scaling=record))) < 8192
