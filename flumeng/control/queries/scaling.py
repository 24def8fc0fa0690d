"""What became of a flow's number of collect tasks, where its discovery task decides about it: the
last decisions, each with its reason. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.config import TaskRange
from zkschema.records import Partitions


@dataclass(frozen=True)
class DecisionRow:
    """``before`` and ``tasks`` are the same where the number was left as it is. ``time`` is in
    seconds since the epoch; ``kind`` one of the words in ``flumeng.control.planner.scaling``."""

    time: float
    kind: str
    before: int
    tasks: int
    why: str


@dataclass(frozen=True)
class ScalingRow:
    """``tasks`` is the number that was proposed last, 0 before any was; ``rate`` how many events
    per second a task was seen to take, 0 when unknown. The last decision comes first."""

    min: int
    max: int
    lag_seconds: float
    tasks: int
    rate: float
    decisions: tuple[DecisionRow, ...]


def row(wanted: object, found: Partitions | None) -> ScalingRow | None:
    """None for a flow whose number of tasks is not decided about. ``wanted`` is what its place says
    of the number, ``found`` what its discovery task has written."""
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
