"""Decisions of a flow's discovery task about its number of collect tasks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.config import TaskRange
from zkschema.records import Partitions


@dataclass(frozen=True)
class DecisionRow:
    """``before`` equals ``tasks`` when nothing changed. ``time``: seconds since the epoch;
    ``kind``: see ``flumeng.control.planner.scaling``."""

    time: float
    kind: str
    before: int
    tasks: int
    why: str


@dataclass(frozen=True)
class ScalingRow:
    """``tasks``: the last proposal, 0 before any; ``rate``: events per second and task, 0 when
    unknown. The last decision comes first."""

    min: int
    max: int
    lag_seconds: float
    tasks: int
    rate: float
    decisions: tuple[DecisionRow, ...]


def row(wanted: object, found: Partitions | None) -> ScalingRow | None:
    """None for a fixed number of tasks. ``found``: what the discovery task has written."""
    if not isinstance(wanted, TaskRange):
        return None
    said = found.scaling if found else None
    decisions = said.decisions if said else ()
    return ScalingRow(
        min=wanted.min,
        max=wanted.max,
        lag_seconds=wanted.lag_seconds,
        tasks=said.tasks if said else 0,
        rate=said.rate if said else 0.0,
        decisions=tuple(
            DecisionRow(one.time, one.kind, one.before, one.tasks, one.why)
            for one in reversed(decisions)
        ),
    )
