"""How tasks have ended: a bounded history in the plan of their flow, and so in the transaction that
ends them. A master that was killed has either written both or nothing."""

from __future__ import annotations

from collections.abc import Sequence

from zkschema.records import EndedTask, Plan, PlannedTask, cut

MOST = 100
WHY_CHARACTERS = 200
SUCCEEDED, SUPERSEDED, STOPPED, FAILED = "succeeded", "superseded", "stopped", "failed"


def ended(name: str, task: PlannedTask, how: str, why: str, *, time: float) -> EndedTask:
    """The entry of a bounded length, of a task that had an owner."""
    assert task.node is not None
    why = cut(why, WHY_CHARACTERS)
    return EndedTask(task=name, node=task.node, epoch=task.epoch, how=how, why=why, time=time)


def history(plan: Plan, news: Sequence[EndedTask]) -> tuple[EndedTask, ...]:
    """The newest entries, the newest of all last."""
    return (*plan.ended, *news)[-MOST:] if news else plan.ended
