"""What autoscaling makes of days of traffic, by the model of
``tests.testkit.simulation.traffic``."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from tests.testkit.simulation.traffic import Day, Outcome, run_day, troubled

DAYS = 20


def run(days: int = DAYS) -> dict[str, object]:
    """Per day, for days with the daily curve alone and for days with bursts, a dead broker, a slow
    sink and restarts: turns, changes, late minutes, hours of tasks over the least possible."""
    curves = [
        run_day(Day(seed, peak=2500.0 + 900 * (seed % 5), noise=0.05 * (seed % 5)))
        for seed in range(days)
    ]
    troubles = [run_day(troubled(seed)) for seed in range(days)]
    return {"days": days, **_figures("curve", curves), **_figures("troubled", troubles)}


def _figures(name: str, outcomes: Iterable[Outcome]) -> dict[str, object]:
    some = list(outcomes)
    return {
        f"{name}_turns": round(mean(one.turns for one in some), 1),
        f"{name}_turns_most": max(one.turns for one in some),
        f"{name}_changes": round(mean(len(one.changes) for one in some), 1),
        f"{name}_late_minutes": round(mean(one.late for one in some) / 60, 1),
        f"{name}_late_minutes_longest": round(max(one.longest for one in some) / 60, 1),
        f"{name}_task_hours": round(mean(one.task_seconds for one in some) / 3600, 1),
        f"{name}_task_hours_least": round(mean(one.least_task_seconds for one in some) / 3600, 1),
    }
