"""Days of traffic before the scaling: it stays within its limits, is calm, and lags are short.

``FLUMENG_SCALING_SEEDS=n`` looks at that many days of each kind.
"""

from __future__ import annotations

import itertools
import os

import pytest

from flumeng.control.planner.scaling import Decision, Sample, Standing
from tests.testkit.simulation.traffic import DAY, Day, Trouble, run_day, troubled

SEEDS = range(int(os.environ.get("FLUMENG_SCALING_SEEDS", "4")))
TURNS_A_DAY = 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_day_without_trouble_is_late_for_minutes_and_rarely_scales(seed: int) -> None:
    day = Day(seed, peak=2500.0 + 900 * (seed % 5), noise=0.05 * (seed % 5))
    outcome = run_day(day)
    assert outcome.turns <= TURNS_A_DAY
    assert outcome.longest <= 300
    assert outcome.late <= 1200
    assert outcome.task_seconds <= 1.35 * outcome.least_task_seconds


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_lag_that_more_tasks_can_end_ends_soon(seed: int) -> None:
    """Bursts come all at once, so that half an hour is needed to get over one at most."""
    begin = 3600 * (2 + 5 * (seed % 4))
    burst = Trouble("burst", begin, begin + 1200, 2.5)
    outcome = run_day(Day(seed, peak=2400, troubles=(burst,)))
    assert outcome.longest <= 1800
    assert outcome.turns <= TURNS_A_DAY + 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_scaling_rules_hold_under_random_trouble(seed: int) -> None:
    day = troubled(seed)

    def watch(sample: Sample, decision: Decision, standing: Standing) -> None:
        assert day.limits.min <= decision.tasks <= day.limits.max
        assert decision.tasks == decision.standing.tasks
        assert decision.why
        if sample.unsettled:
            assert decision.tasks == standing.tasks
        if decision.tasks < standing.tasks:
            assert sample.time - standing.since >= 900

    outcome = run_day(day, watch)
    assert outcome.turns <= TURNS_A_DAY + 2 * len(day.troubles)


@pytest.mark.slow
def test_slow_sink_that_gains_nothing_by_tasks_is_scaled_out_slowly() -> None:
    bound = Trouble("bound", 6 * 3600, 8 * 3600, 1.5)
    day = Day(peak=2400, troubles=(bound,))
    outcome = run_day(day)
    steps = [at for at, _ in outcome.changes if bound.begin <= at < bound.end]
    assert "no gain" in outcome.kinds
    assert all(after - before >= 1800 for before, after in itertools.pairwise(steps))


@pytest.mark.slow
def test_restart_of_everything_changes_no_number_of_tasks() -> None:
    """Druid's scaling goes back to the minimum."""
    noon = DAY // 2
    before = [at for at, _ in run_day(Day()).changes]
    restarted = run_day(Day(troubles=(Trouble("restart", noon, noon + 5),)))
    near = [at for at, _ in restarted.changes if noon <= at < noon + 1800]
    assert near == [at for at in before if noon <= at < noon + 1800]
    assert [at for at, _ in restarted.changes if at < noon] == [at for at in before if at < noon]
