"""What a flow's discovery task leaves of its decisions about the number of tasks: for masters the
number, for its successor what is known, for people the last decisions with their reasons. Pure.
"""

from __future__ import annotations

from itertools import chain

from flumeng.control.planner.scaling import Decision, Standing
from zkschema.records import PROBLEM_CHARACTERS, Scaling, ScalingDecision, cut

KEPT_CHANGES = 10
KEPT_OTHERS = 10
WRITE_SECONDS = 60.0
"""Decisions that leave the number are written this far apart, and only when their kind is new."""


def standing(record: Scaling | None, planned: int, now: float) -> Standing:
    """Where a process begins at ``now`` of its own clock: with the number that was decided on last,
    or that of the tasks that are ``planned``. What was known before is as if it were new."""
    if record is None:
        return Standing(planned, now)
    return Standing(record.tasks, now, record.rate, now)


def recorded(
    record: Scaling | None, decision: Decision, before: int, time: float, quiet_seconds: float
) -> Scaling | None:
    """The record with the decision in it; None when there is nothing to be written.

    ``before`` is the number until now, ``time`` seconds since the epoch, and ``quiet_seconds`` for
    how long nothing was written, by a clock that only ever grows.
    """
    known = record.decisions if record else ()
    changes = decision.tasks != before or record is None
    is_new = not known or known[-1].kind != decision.kind
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
        tasks=decision.tasks, rate=decision.standing.rate, decisions=_latest((*known, new))
    )


def _latest(decisions: tuple[ScalingDecision, ...]) -> tuple[ScalingDecision, ...]:
    """The last of both sorts, so that many quiet days push no change out of sight."""
    changes = [n for n, one in enumerate(decisions) if one.before != one.tasks]
    others = [n for n, one in enumerate(decisions) if one.before == one.tasks]
    kept = chain(changes[-KEPT_CHANGES:], others[-KEPT_OTHERS:])
    return tuple(decisions[number] for number in sorted(kept))
