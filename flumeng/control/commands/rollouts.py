"""Commands for rollouts. Each change names its revision and does not affect a later one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from flumeng.config import SpecError, parse_flow
from flumeng.control.commands.lookup import expect_current, refuse_deleted, require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Check, Put, Store, Versioned, Write
from flumeng.platform.errors import ConflictError
from zkschema import paths, records
from zkschema.records import Flow, Plan

Verb = Literal["pause", "resume", "promote"]
CHANGES: Mapping[Verb, Callable[[Flow], Flow]] = {
    "pause": lambda flow: replace(flow, rollout_paused=flow.revision),
    "resume": lambda flow: replace(flow, rollout_paused=0),
    "promote": lambda flow: replace(flow, rollout_promoted=flow.revision, rollout_paused=0),
}
"""Pause: no further task gets the revision; failures still revert it. Promote: all tasks get it."""


def change_rollout(
    operator: Operator, flow: str, verb: Verb, *, expect_revision: int | None = None
) -> bool:
    """Pause, resume or promote a rollout; return whether that is a change. Raises ``ConflictError``
    when no rollout is under way."""
    current, _ = _under_way(operator.store, flow, expect_revision)
    command = f"flow rollout {verb} {flow} (revision {current.value.revision})"
    return operator.change(paths.flow(flow), current, CHANGES[verb](current.value), command)


def abort_rollout(operator: Operator, flow: str, *, expect_revision: int | None = None) -> int:
    """Return a flow to its previous revision; return its number. Raises as ``change_rollout``."""
    current, plan = _under_way(operator.store, flow, expect_revision)
    before = plan.value.revision
    why = f"{records.ABORTED} {operator.author}{f': {operator.reason}' if operator.reason else ''}"
    after = replace(current.value, revision=before, went_back=why)
    command = f"flow rollout abort {flow} (revision {current.value.revision}, back to {before})"
    writes: list[Write] = [
        Put(paths.flow(flow), after, current.version),
        Check(paths.plan(flow), plan.version),
    ]
    operator.commit(writes, command)
    return before


def _under_way(
    store: Store, flow: str, expect_revision: int | None
) -> tuple[Versioned[Flow], Versioned[Plan]]:
    current = require_flow(store, flow)
    expect_current(flow, current, expect_revision)
    refuse_deleted(flow, current.value, "its rollout is over")
    plan = store.read(paths.plan(flow))
    revision = current.value.revision
    if plan is None or not _rolls(store, flow, current.value, plan.value):
        raise ConflictError(
            f"no rollout of flow {flow} is under way: revision {revision} is current"
        )
    return current, plan


def _rolls(store: Store, flow: str, record: Flow, plan: Plan) -> bool:
    if plan.revision in (0, record.revision) or record.rollout_promoted == record.revision:
        return False
    text = store.read(paths.revision(flow, str(record.revision)))
    try:
        return text is not None and parse_flow(text.value.effective).rollout is not None
    except SpecError:
        return False
