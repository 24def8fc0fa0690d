"""Who changed what: the audit; the revisions of a flow, and what is different between two."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from flumeng.errors import UserError
from flumeng.operations.flows import require_flow, require_revision
from flumeng.store import Store, tree
from zkschema import paths


@dataclass(frozen=True)
class RevisionRow:
    revision: int
    author: str
    reason: str
    time: float
    current: bool


@dataclass(frozen=True)
class AuditRow:
    """One operator command, or what masters did by themselves; ``time`` in seconds since the
    epoch."""

    time: float
    who: str
    command: str
    reason: str


@dataclass(frozen=True)
class Difference:
    """``diff`` is a unified diff of the two texts, empty when they are the same."""

    flow: str
    old: int
    new: int
    diff: str


def history(store: Store, flow: str) -> list[RevisionRow]:
    """The revisions that are kept, oldest first. Raises ``UserError`` without such a flow."""
    current = require_flow(store, flow).value.revision
    numbers = _kept(store, flow)
    found = store.read_many([paths.revision(flow, str(number)) for number in numbers])
    return [
        RevisionRow(
            number,
            revision.value.author,
            revision.value.reason,
            revision.value.time,
            number == current,
        )
        for number, revision in zip(numbers, found, strict=True)
        if revision is not None
    ]


def audit(store: Store, most: int) -> list[AuditRow]:
    """The newest ``most`` entries that are kept, oldest first. Raises ``UserError`` without a
    cluster."""
    tree.require(store)
    names = store.children(paths.audits())[-most:]
    found = store.read_many([paths.audit(name) for name in names])
    return [
        AuditRow(entry.value.time, entry.value.who, entry.value.command, entry.value.reason)
        for entry in found
        if entry is not None
    ]


def difference(
    store: Store, flow: str, old: int | None = None, new: int | None = None
) -> Difference:
    """From revision ``old`` (the one before the current) to ``new`` (the current one).

    Raises ``UserError`` when the flow or a revision is not there.
    """
    current = require_flow(store, flow).value.revision
    if old is None:
        before = [number for number in _kept(store, flow) if number < current]
        if not before:
            raise UserError(f"flow {flow} has one revision only: there is nothing to compare")
        old = before[-1]
    new = current if new is None else new
    lines = difflib.unified_diff(
        require_revision(store, flow, old).text.splitlines(),
        require_revision(store, flow, new).text.splitlines(),
        f"{flow} revision {old}",
        f"{flow} revision {new}",
        lineterm="",
    )
    return Difference(flow, old, new, "\n".join(lines))


def _kept(store: Store, flow: str) -> list[int]:
    return sorted(int(number) for number in store.children(paths.revisions(flow)))
