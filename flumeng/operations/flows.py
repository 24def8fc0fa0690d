"""Changes of flows. A flow's text only ever changes by a new revision, also when it goes back."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flumeng.errors import ConflictError, UserError
from flumeng.operations import audit
from flumeng.operations.settings import without_chokes
from flumeng.spec import parse_flow
from flumeng.spec.problems import nearest
from flumeng.state import journal_registry
from flumeng.store import ABSENT, ANY, Check, Put, Remove, Store, Versioned, Write, tree
from zkschema import bootstrap, paths, records

KEEP_REVISIONS = 50
VERBS = {"running": "resume", "suspended": "pause", "stopped": "stop"}


@dataclass(frozen=True)
class Applied:
    """What became of an apply: the flow's revision now, and whether this call made it."""

    flow: str
    revision: int
    changed: bool


def apply_flow(
    store: Store,
    text: str,
    *,
    author: str,
    reason: str,
    now: float,
    expect_revision: int | None = None,
) -> Applied:
    """Make ``text`` the current revision of the flow that it names; a new flow starts to run.

    Unchanged text changes nothing. ``expect_revision`` is the revision that must be current (0: the
    flow must not exist). The newest ``KEEP_REVISIONS`` are kept, and the one that a rollout goes
    back to. A name is free again once no journal is left of the flow that had it: the new flow
    would deliver what they hold, under epochs that begin anew. Raises ``SpecError``,
    ``ConflictError``, ``UnavailableError``.
    """
    name = parse_flow(text).flow
    schema = tree.require_versioned(store)
    current = store.read(paths.flow(name))
    expect_current(name, current, expect_revision)
    if current is not None:
        revision = records.Revision(text=text, author=author, reason=reason, time=now)
        return _revise(store, name, current, revision, f"flow apply {name}")
    number = next_revision(store, name, text, None)
    folders = bootstrap.flow_folders(name, schema.value.version)
    writes: list[Write] = [
        Check(paths.schema(), schema.version),  # so these are the folders that a flow has
        Put(paths.flow(name), records.Flow(revision=number), ABSENT),
        *(Put(folder, None, ABSENT) for folder in folders),
    ]
    revision = records.Revision(text=text, author=author, reason=reason, time=now)
    writes.append(Put(paths.revision(name, str(number)), revision, ABSENT))
    command = f"flow apply {name} (revision {number})"
    entry = records.Audit(who=author, command=command, reason=reason, time=now)
    audit.commit(store, writes, entry)
    return Applied(name, number, changed=True)


def rollback_flow(
    store: Store,
    flow: str,
    number: int,
    *,
    author: str,
    reason: str,
    now: float,
    expect_revision: int | None = None,
) -> Applied:
    """Make a new revision with the text of revision ``number``; its reason says so.

    Raises as ``apply_flow``, and ``UserError`` when the flow or that revision is not there.
    """
    current = require_flow(store, flow)
    expect_current(flow, current, expect_revision)
    text = require_revision(store, flow, number).text
    parse_flow(text)
    why = f"rollback to revision {number}"
    revision = records.Revision(
        text=text, author=author, reason=f"{why}: {reason}" if reason else why, time=now
    )
    return _revise(store, flow, current, revision, f"flow rollback {flow} {number}")


def set_flow_state(
    store: Store,
    flow: str,
    state: str,
    *,
    author: str,
    reason: str,
    now: float,
    expect_revision: int | None = None,
) -> bool:
    """Want the flow ``running``, ``suspended`` or ``stopped``; gives whether that is a change.

    Suspended: its collect tasks are let go, its sources go on into the journals. Stopped: its
    sources stop, what they accepted is collected to its end. Raises ``UserError`` for a flow that
    does not exist, ``ConflictError``, ``UnavailableError``.
    """
    current = require_flow(store, flow)
    expect_current(flow, current, expect_revision)
    refuse_deleted(flow, current.value, f"it cannot become {state} any more")
    if current.value.state == state:
        return False
    entry = records.Audit(
        who=author, command=f"flow {VERBS[state]} {flow}", reason=reason, time=now
    )
    wanted = replace(current.value, state=state)
    audit.commit(store, [Put(paths.flow(flow), wanted, current.version)], entry)
    return True


def delete_flow(
    store: Store,
    flow: str,
    *,
    author: str,
    reason: str,
    now: float,
    discard: bool = False,
    expect_revision: int | None = None,
) -> bool:
    """Want the flow gone; masters drain it first, or with ``discard`` drop what is not collected.

    Its chokes go at once: its sources stop, and the next flow of that name is another one.
    Gives whether this call changed anything. Raises ``UserError`` for a flow that does not exist,
    ``ConflictError``, ``UnavailableError``.
    """
    current = require_flow(store, flow)
    expect_current(flow, current, expect_revision)
    wanted = replace(current.value, state="deleted", discard=discard or current.value.discard)
    if wanted == current.value:
        return False
    command = f"flow delete {flow}{' --discard' if discard else ''}"
    entry = records.Audit(who=author, command=command, reason=reason, time=now)
    writes = [Put(paths.flow(flow), wanted, current.version), *without_chokes(store, flow=flow)]
    audit.commit(store, writes, entry)
    return True


def require_flow(store: Store, flow: str) -> Versioned[records.Flow]:
    """The flow's record. Raises ``UserError`` with the nearest name when there is none."""
    tree.require(store)
    known = store.children(paths.flows())
    found = store.read(paths.flow(flow)) if flow in known else None
    if found is None:
        hint = nearest(flow, known) if known else "there are no flows yet"
        raise UserError(f'there is no flow "{flow}"; {hint}')
    return found


def require_revision(store: Store, flow: str, number: int) -> records.Revision:
    """One kept revision. Raises ``UserError`` that names those that are there."""
    found = store.read(paths.revision(flow, str(number)))
    if found is None:
        kept = _kept(store, flow)
        those = f"those from {kept[0]} to {kept[-1]} are" if kept else "none is"
        hint = "" if kept else ": see `flumeng schema verify`"
        raise UserError(f"flow {flow} has no revision {number}: {those} kept{hint}")
    return found.value


def expect_current(
    flow: str, current: Versioned[records.Flow] | None, expected: int | None
) -> None:
    """Raises ``ConflictError`` when the flow is not at this revision; 0 is one that is absent."""
    actual = current.value.revision if current else 0
    if expected is not None and expected != actual:
        state = f"is at revision {actual}" if current else "does not exist"
        raise ConflictError(f"flow {flow} {state}, not at revision {expected}: look at it again")


def refuse_deleted(flow: str, record: records.Flow, advice: str) -> None:
    """Raises ``ConflictError`` for a flow that is to go."""
    if record.state == "deleted":
        raise ConflictError(f"flow {flow} is being deleted: {advice}")


def next_revision(
    store: Store, flow: str, text: str, current: Versioned[records.Flow] | None
) -> int:
    """The revision that an apply of ``text`` makes; the current one when that is its text.

    Raises ``ConflictError`` when it may not be applied now.
    """
    if current is None:
        _refuse_leftovers(store, flow)
        return 1
    refuse_deleted(flow, current.value, "apply it again when it is gone")
    before = store.read(paths.revision(flow, str(current.value.revision)))
    if before is not None and before.value.text == text:
        return current.value.revision
    return max([current.value.revision, *_kept(store, flow)]) + 1


def _revise(
    store: Store,
    flow: str,
    current: Versioned[records.Flow],
    revision: records.Revision,
    command: str,
) -> Applied:
    """The next revision of a flow that is there, unless its text is the current one."""
    number = next_revision(store, flow, revision.text, current)
    if number == current.value.revision:
        return Applied(flow, number, changed=False)
    plan = store.read(paths.plan(flow))
    run_by_all = plan.value.revision if plan else 0
    record = replace(current.value, revision=number, went_back="")
    writes: list[Write] = [
        Put(paths.flow(flow), record, current.version),
        Put(paths.revision(flow, str(number)), revision, ABSENT),
    ]
    writes += [
        Remove(paths.revision(flow, str(old)), ANY)
        for old in _kept(store, flow)
        if old <= number - KEEP_REVISIONS and old != run_by_all
    ]
    entry = records.Audit(
        who=revision.author,
        command=f"{command} (revision {number})",
        reason=revision.reason,
        time=revision.time,
    )
    audit.commit(store, writes, entry)
    return Applied(flow, number, changed=True)


def _kept(store: Store, flow: str) -> list[int]:
    return sorted(int(name) for name in store.children(paths.revisions(flow)))


def _refuse_leftovers(store: Store, flow: str) -> None:
    known = journal_registry.journals(store).values()
    holders = sorted({journal.node for journal in known if journal.flow == flow})
    if holders:
        raise ConflictError(
            f"{', '.join(holders)} still has journals of a flow {flow} that was deleted: apply it "
            "again when they are gone, or under another name"
        )
