"""Pause, resume, promote or abort a rollout. Each change names its revision and does not affect a
later one."""

from __future__ import annotations

from dataclasses import replace

from flumeng.config import SpecError, parse_flow
from flumeng.control.commands.lookup import expect_current, refuse_deleted, require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Check, Put, Store, Versioned, Write
from flumeng.platform.errors import ConflictError
from zkschema import paths, records
from zkschema.records import Flow, Plan


def pause_rollout(operator: Operator, flow: str, *, expect_revision: int | None = None) -> bool:
    """Let no further task take the revision; returns whether that is a change. A failing task still
    takes the flow back. Raises ``ConflictError`` when no rollout is under way."""
    current, _ = _under_way(operator.store, flow, expect_revision)
    wanted = replace(current.value, rollout_paused=current.value.revision)
    return _write(operator, flow, current, wanted, "pause")


def resume_rollout(operator: Operator, flow: str, *, expect_revision: int | None = None) -> bool:
    """Go on with a paused rollout; raises as ``pause_rollout``."""
    current, _ = _under_way(operator.store, flow, expect_revision)
    wanted = replace(current.value, rollout_paused=0)
    return _write(operator, flow, current, wanted, "resume")


def promote_rollout(operator: Operator, flow: str, *, expect_revision: int | None = None) -> bool:
    """Let all tasks take the revision now; raises as ``pause_rollout``."""
    current, _ = _under_way(operator.store, flow, expect_revision)
    wanted = replace(current.value, rollout_promoted=current.value.revision, rollout_paused=0)
    return _write(operator, flow, current, wanted, "promote")


def abort_rollout(operator: Operator, flow: str, *, expect_revision: int | None = None) -> int:
    """Go back to the revision before; returns its number. Raises as ``pause_rollout``."""
    current, plan = _under_way(operator.store, flow, expect_revision)
    before = plan.value.revision
    why = f"{records.ABORTED} {operator.author}{f': {operator.reason}' if operator.reason else ''}"
    wanted = replace(current.value, revision=before, went_back=why)
    command = f"flow rollout abort {flow} (revision {current.value.revision}, back to {before})"
    writes: list[Write] = [
        Put(paths.flow(flow), wanted, current.version),
        Check(paths.plan(flow), plan.version),
    ]
    operator.commit(writes, command)
    return before


def _under_way(
    store: Store, flow: str, expect_revision: int | None
) -> tuple[Versioned[Flow], Versioned[Plan]]:
    """The flow and its plan. Raises ``ConflictError`` when no rollout is under way."""
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


def _write(
    operator: Operator, flow: str, current: Versioned[Flow], wanted: Flow, verb: str
) -> bool:
    if wanted == current.value:
        return False
    command = f"flow rollout {verb} {flow} (revision {current.value.revision})"
    operator.commit([Put(paths.flow(flow), wanted, current.version)], command)
    return True
