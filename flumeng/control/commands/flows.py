"""Changes of flows. Every change of a text makes a new revision; a rollback does too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from flumeng.config import check_flow
from flumeng.config.flow_names import is_part, parts_among, whole_of
from flumeng.control.commands import isolated_parts
from flumeng.control.commands.chains import why_not_deleted
from flumeng.control.commands.lookup import (
    expect_current,
    found_by_name,
    refuse_deleted,
    require_flow,
    require_revision,
)
from flumeng.control.commands.operator import Operator, room_bytes
from flumeng.control.commands.revisions import (
    Applied,
    NextRevision,
    groups,
    next_revisions,
    revision_writes,
)
from flumeng.control.commands.settings import without_chokes
from flumeng.control.commands.tombstones import tombstone_writes
from flumeng.control.zookeeper import Check, Put, ReadableStore, Versioned, Write, tree
from flumeng.control.zookeeper.transaction import portions
from flumeng.platform.errors import ConflictError, FlumengError, ForbiddenError, UserError
from zkschema import paths, records

FLOWS_AT_ONCE = 50
VERBS = {"running": "resume", "suspended": "pause", "stopped": "stop"}


def apply_flow(operator: Operator, text: str, *, expect_revision: int | None = None) -> Applied:
    """Apply one flow. Raises as ``apply_flows``, and ``SpecError``."""
    name = check_flow(text).flow
    made = apply_flows(operator, {name: text}, expect_revision=expect_revision)
    return next(result for result in chain.from_iterable(made) if result.flow == name)


def apply_flows(
    operator: Operator, texts: Mapping[str, str], *, expect_revision: int | None = None
) -> Iterator[list[Applied]]:
    """Make each valid text the current revision of its flow; a new flow starts to run. Isolated
    parts and readers ``after: filters`` change with their flow. ``expect_revision`` must be current
    (0: no such flow). A deleted flow's name is free once its last journal is removed. Yields the
    unchanged flows, then those of each transaction. Raises ``RefusedError`` before any write."""
    store = operator.store
    schema = tree.require_versioned(store)
    revisions = next_revisions(store, texts, expect_revision)
    unchanged = Check(paths.schema(), schema.version)  # its version determines a flow's folders
    _confirm(operator, [unchanged], revisions, "flow apply")
    yield [revision.applied for revision in revisions if not revision.changed]
    prepared = [
        (group, revision_writes(group, schema, operator.author, operator.reason, operator.now))
        for group in groups(revision for revision in revisions if revision.changed)
    ]
    room = room_bytes(store.scale)
    for part in portions(
        store.scale, prepared, lambda entry: entry[1], each=[unchanged], room_bytes=room
    ):
        revisions = [revision for group, _ in part for revision in group]
        names = ", ".join(f"{revision.flow} (revision {revision.number})" for revision in revisions)
        writes = chain.from_iterable(writes_of_group for _, writes_of_group in part)
        operator.commit([unchanged, *writes], f"flow apply {names}")
        yield [revision.applied for revision in revisions]


def rollback_flow(
    operator: Operator, flow: str, number: int, *, expect_revision: int | None = None
) -> Applied:
    """Make a revision with an older text. Raises as ``rollback_text`` and ``apply_flow``."""
    store = operator.store
    text = rollback_text(store, flow, number)
    why = f"rollback to revision {number}"
    schema = tree.require_versioned(store)
    revisions = next_revisions(store, {flow: text}, expect_revision)
    unchanged = Check(paths.schema(), schema.version)  # its version determines a flow's folders
    whole = next(revision for revision in revisions if revision.flow == flow)
    if whole.current is None:
        raise ConflictError(f"flow {flow} was deleted meanwhile")
    if any(revision.changed for revision in revisions):
        because = f"{why}: {operator.reason}" if operator.reason else why
        command = f"flow rollback {flow} {number} (revision {whole.number})"
        writes = revision_writes(revisions, schema, operator.author, because, operator.now)
        replace(operator, reason=because).commit([unchanged, *writes], command)
    _confirm(operator, [unchanged], revisions, "flow rollback")
    return whole.applied


def rollback_text(store: ReadableStore, flow: str, number: int) -> str:
    """Return the text of a revision. Raises ``UserError`` for an unknown flow or revision, and
    ``SpecError`` for a text that became invalid."""
    require_flow(store, flow)
    if is_part(flow):
        raise UserError(
            f"{flow} is an isolated part of flow {whole_of(flow)}: roll back the whole flow, "
            f"`flumeng flow rollback {whole_of(flow)} N`"
        )
    text = require_revision(store, flow, number).text
    check_flow(text)
    return text


def _confirm(
    operator: Operator, checks: Sequence[Write], revisions: Sequence[NextRevision], command: str
) -> None:
    """Clear the failed rollouts of flows that are applied at the revision they went back to."""
    kept = {r.flow: r.current for r in revisions if r.current and not r.changed}
    back = {flow: record for flow, record in kept.items() if record.value.went_back}
    for flow, record in back.items():
        entry = f"{command} {flow} (stays at revision {record.value.revision})"
        settled = Put(paths.flow(flow), replace(record.value, went_back=""), record.version)
        operator.commit([*checks, settled], entry)


def set_flow_state(
    operator: Operator, flow: str, state: str, *, expect_revision: int | None = None
) -> bool:
    """Set the state of the flow and its isolated parts; return whether it changed. ``suspended``:
    sources still write journals. ``stopped``: sources stop, and collectors finish the journals."""
    store = operator.store
    current = require_flow(store, flow)
    expect_current(flow, current, expect_revision)
    refuse_deleted(flow, current.value, f"it can no longer be {state}")
    every = {flow: current, **isolated_parts.parts_there(store, [flow])}
    writes = [
        Put(paths.flow(name), replace(record.value, state=state), record.version)
        for name, record in every.items()
        if record.value.state != state
    ]
    if writes:
        operator.commit(writes, f"flow {VERBS[state]} {flow}")
    return bool(writes)


@dataclass(frozen=True)
class StateOutcome:
    flow: str
    changed: bool
    error: FlumengError | None = None

    @property
    def document(self) -> dict[str, str | bool]:
        """The JSON of the command."""
        return {"flow": self.flow, "changed": self.changed, "error": str(self.error or "")}


def set_flow_states(operator: Operator, flows: Sequence[str], state: str) -> Iterator[StateOutcome]:
    """Set the states of flows in shared transactions; one flow's failure affects no other."""
    for start in range(0, len(flows), FLOWS_AT_ONCE):
        some = flows[start : start + FLOWS_AT_ONCE]
        try:
            yield from _set_together(operator, some, state)
        except FlumengError:
            for flow in some:
                try:
                    changed = set_flow_state(operator, flow, state)
                except FlumengError as error:
                    yield StateOutcome(flow, changed=False, error=error)
                else:
                    yield StateOutcome(flow, changed)


def _set_together(operator: Operator, flows: Sequence[str], state: str) -> list[StateOutcome]:
    """Set all states in one transaction. Raises ``ConflictError`` for a missing or deleted flow."""
    store = operator.store
    currents = found_by_name(store, paths.flow, flows)
    there: dict[str, Versioned[records.Flow]] = {}
    for flow, current in {**isolated_parts.parts_there(store, flows), **currents}.items():
        if not isinstance(current, Versioned) or current.value.state == "deleted":
            raise ConflictError(f"flow {flow} has to be changed alone")
        there[flow] = current
    changed = {flow: record for flow, record in there.items() if record.value.state != state}
    outcomes = [
        StateOutcome(flow, flow in changed or bool(parts_among(changed, flow))) for flow in flows
    ]
    if changed:
        writes = [
            Put(paths.flow(flow), replace(record.value, state=state), record.version)
            for flow, record in changed.items()
        ]
        named = " ".join(outcome.flow for outcome in outcomes if outcome.changed)
        operator.commit(writes, f"flow {VERBS[state]} {named}")
    return outcomes


def delete_flow(
    operator: Operator, flow: str, *, discard: bool = False, expect_revision: int | None = None
) -> bool:
    """Delete the flow and its isolated parts; masters drain it first unless ``discard``. Returns
    whether anything changed. Raises ``UserError`` for a part of an existing flow, ``ConflictError``
    for a flow that others read. Removes chokes at once, keeps the history in ``/tombstones``."""
    store = operator.store
    current = require_flow(store, flow)
    expect_current(flow, current, expect_revision)
    if is_part(flow) and store.exists(paths.flow(whole_of(flow))):
        raise UserError(
            f"{flow} is an isolated part of flow {whole_of(flow)}: apply that flow without it"
        )
    if why := why_not_deleted(store, flow):
        raise ConflictError(why)
    deleted = replace(current.value, state="deleted", discard=discard or current.value.discard)
    others = isolated_parts.parts_there(store, [flow])
    if deleted == current.value and not others:
        return False
    command = f"flow delete {flow}{' --discard' if discard else ''}"
    writes = [
        Put(paths.flow(flow), deleted, current.version),
        *isolated_parts.deletion(others, discard=deleted.discard),
        *without_chokes(store, flow=flow),
        *tombstone_writes(operator, flow),
    ]
    operator.commit(writes, command)
    return True


def deletion(flow: str, *, discard: bool) -> str:
    """Return a sentence on the fate of a flow that is deleted now."""
    if discard:
        return f"flow {flow} stops now, drops events not in its sinks, and is then deleted"
    return (
        f"flow {flow}: its sources stop now, its journals are fully collected, then it is "
        f"deleted (follow with `flumeng flow wait {flow} --gone`)"
    )


def hand_off(operator: Operator, flow: str, *, expect_revision: int | None = None) -> int:
    """Make the flow's tasks deliver at once; return the handoff's number. Raises ``ConflictError``
    for a paused or deleted flow."""
    current = require_flow(operator.store, flow)
    expect_current(flow, current, expect_revision)
    refuse_deleted(flow, current.value, "its accepted events are delivered anyway")
    if current.value.state == "suspended":
        raise ConflictError(
            f"flow {flow} is paused, so its tasks deliver nothing: `flumeng flow resume {flow}` "
            "first"
        )
    after = replace(current.value, handoff=current.value.handoff + 1)
    operator.commit([Put(paths.flow(flow), after, current.version)], f"flow handoff {flow}")
    return after.handoff


def keep_tap(operator: Operator, name: str, *, at: str | None, where: str | None) -> None:
    """Audit a tap before its first event. Raises ``ForbiddenError`` when the access list of
    ``/audit`` is outdated."""
    options = {"at": at, "where": where}
    words = [f" --{key} {value}" for key, value in options.items() if value is not None]
    command = f"flow tap {name}{''.join(words)}"
    try:
        operator.commit([], command)
    except ForbiddenError as error:
        raise ForbiddenError(
            "a tap needs an audit entry, and the access list of /audit does not let this "
            "certificate add one: an administrator has to run `flumeng schema verify --fix`"
        ) from error
