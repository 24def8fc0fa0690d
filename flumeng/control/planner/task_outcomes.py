"""Outcomes of tasks that a plan takes from their owners.

1. A task whose owner found a higher epoch in the acks is *superseded*.
2. A task with nothing left to read has not failed, even if its node is down or reports a failure:
   it has *succeeded* if it ends, unless its flow is suspended or discards events.
3. A task has *failed* if its node reported a failure, or is not live when another node gets it.
4. All other tasks are *stopped*: an operator, or the plan, has taken them away.

Ingest tasks have no entry, nor do tasks that only change partitions. The history is bounded and
part of the plan, so the transaction that ends a task also writes its outcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flumeng.control.planner.placement_index import DRAINING
from flumeng.control.planner.plan_builder import PlanBuilder
from zkschema.records import COLLECT, INGEST, EndedTask, Plan, PlannedTask, cut

Change = tuple[str, PlannedTask, PlannedTask | None]
MOST = 100
WHY_CHARACTERS = 200
SUCCEEDED, SUPERSEDED, STOPPED, FAILED = "succeeded", "superseded", "stopped", "failed"


def outcomes(builder: PlanBuilder) -> list[EndedTask]:
    """Return the outcomes of the tasks that this plan ends, in order; at most the last ``MOST``."""
    changes = sorted(_ended(builder), key=lambda change: (len(change[0]), change[0]))
    return [_entry(builder, *change) for change in changes[-MOST:]]


def _ended(builder: PlanBuilder) -> Iterator[Change]:
    before = builder.flow.tasks
    for name, new in builder.changes.items() if before else ():
        old = before.find(name)
        if old is None or old.node is None or old.kind == INGEST:
            continue
        stays = new is not None and new.node == old.node
        renewed = new is not None and new.epoch != old.epoch and _seen(builder, name, old)
        if not stays or renewed:
            yield name, old, new


def _entry(builder: PlanBuilder, name: str, old: PlannedTask, new: PlannedTask | None) -> EndedTask:
    how, why = _judge(builder, name, old, new)
    return ended(name, old, how, why, time=builder.snapshot.now)


def _judge(
    builder: PlanBuilder, name: str, old: PlannedTask, new: PlannedTask | None
) -> tuple[str, str]:
    snapshot, flow = builder.snapshot, builder.flow
    seen = _seen(builder, name, old)
    if seen:
        return SUPERSEDED, f"its acks already have the higher epoch {seen}"
    idle = not any(snapshot.is_open(flow.name, partition) for partition in old.partitions)
    status = builder.flow.status_of(name, old, builder.snapshot.nodes)
    failure = status.error or "no reason given" if status and status.state == "failed" else ""
    if new is None:
        how, why = _at_the_end(builder, idle=idle)
        return (FAILED, failure) if failure and how == STOPPED and not idle else (how, why)
    owner = snapshot.nodes.get(old.node or "")
    if owner is None or not owner.live:
        if idle:
            return STOPPED, f"{old.node} is down, and nothing was left to read"
        return FAILED, f"node {old.node} is down"
    if failure and not idle:
        return FAILED, failure
    why = old.why or "it was to move to another node"
    waited_for = old.kind == COLLECT and old.state == DRAINING
    late = waited_for and not owner.has_released(flow.name, name)
    return STOPPED, f"{why}; node {owner.name} did not release it in time" if late else why


def _at_the_end(builder: PlanBuilder, *, idle: bool) -> tuple[str, str]:
    record = builder.flow.record
    if record.state == "suspended":
        return STOPPED, "the flow is suspended"
    if record.state == "deleted" and record.discard:
        return STOPPED, "the flow is deleted without waiting for its events"
    if idle:
        return SUCCEEDED, "it has read everything"
    return STOPPED, "other tasks read its partitions"


def _seen(builder: PlanBuilder, name: str, task: PlannedTask) -> int:
    """Return the higher epoch that the task's owner has found, or 0."""
    status = builder.flow.status_of(name, task, builder.snapshot.nodes)
    return status.epoch_seen if status and status.epoch_seen > status.epoch else 0


def ended(name: str, task: PlannedTask, how: str, why: str, *, time: float) -> EndedTask:
    assert task.node is not None
    why = cut(why, WHY_CHARACTERS)
    return EndedTask(task=name, node=task.node, epoch=task.epoch, how=how, why=why, time=time)


def history(plan: Plan, news: Sequence[EndedTask]) -> tuple[EndedTask, ...]:
    return (*plan.ended, *news)[-MOST:] if news else plan.ended
