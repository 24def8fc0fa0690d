"""What an operator can change: each change is one compare-and-set transaction on the store.

The command line, the web page and tests call the same functions. Each change leaves an entry in
``/audit`` within its own transaction: ``author`` is who, ``reason`` why, ``now`` when, in seconds
since the epoch, which is shown and never decided by. Nothing here decides what runs where: masters
do, from what is written here.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from flumeng.errors import ConflictError, UserError
from flumeng.spec import parse_flow
from flumeng.spec.problems import nearest
from flumeng.store import ABSENT, ANY, Put, Remove, Store, Versioned, Write, tree
from zkschema import bootstrap, paths, records

KEEP_REVISIONS = 50
KEEP_AUDIT = 500


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
    flow must not exist). The newest ``KEEP_REVISIONS`` are kept. Raises ``SpecError``,
    ``ConflictError``, ``UnavailableError``.
    """
    name = parse_flow(text).flow
    tree.require(store)
    current = store.read(paths.flow(name))
    _expect_revision(name, current, expect_revision)
    if current is None:
        number = 1
        writes: list[Write] = [Put(paths.flow(name), records.Flow(revision=number), ABSENT)]
        writes += [Put(folder, None, ABSENT) for folder in bootstrap.flow_folders(name)]
    else:
        if current.value.state == "deleted":
            raise ConflictError(f"flow {name} is being deleted: apply it again when it is gone")
        number = current.value.revision
        before = store.read(paths.revision(name, str(number)))
        if before is not None and before.value.text == text:
            return Applied(name, number, changed=False)
        number += 1
        writes = [Put(paths.flow(name), replace(current.value, revision=number), current.version)]
        writes += [
            Remove(paths.revision(name, old), ANY)
            for old in store.children(paths.revisions(name))
            if int(old) <= number - KEEP_REVISIONS
        ]
    revision = records.Revision(text=text, author=author, reason=reason, time=now)
    writes.append(Put(paths.revision(name, str(number)), revision, ABSENT))
    entry = records.Audit(
        who=author, command=f"flow apply {name} (revision {number})", reason=reason, time=now
    )
    _commit(store, writes, entry)
    return Applied(name, number, changed=True)


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

    Gives whether this call changed anything. Raises ``UserError`` for a flow that does not exist,
    ``ConflictError``, ``UnavailableError``.
    """
    current = require_flow(store, flow)
    _expect_revision(flow, current, expect_revision)
    wanted = replace(current.value, state="deleted", discard=discard or current.value.discard)
    if wanted == current.value:
        return False
    command = f"flow delete {flow}{' --discard' if discard else ''}"
    entry = records.Audit(who=author, command=command, reason=reason, time=now)
    _commit(store, [Put(paths.flow(flow), wanted, current.version)], entry)
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


def _expect_revision(
    flow: str, current: Versioned[records.Flow] | None, expected: int | None
) -> None:
    actual = current.value.revision if current else 0
    if expected is not None and expected != actual:
        state = f"is at revision {actual}" if current else "does not exist"
        raise ConflictError(f"flow {flow} {state}, not at revision {expected}: look at it again")


def _commit(store: Store, writes: list[Write], entry: records.Audit) -> None:
    """Commit with an audit entry; its name sorts by time and is never used twice."""
    for old in store.children(paths.audits())[: -KEEP_AUDIT + 1]:
        with contextlib.suppress(ConflictError):  # another operator's command removed it
            store.remove(paths.audit(old), ANY)
    moment = datetime.fromtimestamp(entry.time, timezone.utc)
    name = f"{moment:%Y%m%dT%H%M%S.%f}-{uuid.uuid4().hex[:8]}"
    store.commit([*writes, Put(paths.audit(name), entry, ABSENT)])
