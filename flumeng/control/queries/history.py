"""The audit, the revisions of a flow, and the difference between two revisions."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from flumeng.control.commands.lookup import found_by_name, require_flow, require_revision
from flumeng.control.queries import timestamps
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import ReadableStore, Unreadable, Versioned
from flumeng.platform.errors import UserError
from zkschema import paths, records


@dataclass(frozen=True)
class RevisionRow:
    """A revision. ``deleted``: author, time, reason of the deletion; the last row has ``text``."""

    revision: int
    author: str
    reason: str
    time: float
    current: bool
    deleted: str = ""
    text: str = ""


@dataclass(frozen=True)
class AuditRow:
    """An entry of the audit; ``time`` is in seconds since the epoch."""

    time: float
    who: str
    command: str
    reason: str


@dataclass(frozen=True)
class Difference:
    """Two revisions compared; ``diff``: a unified diff, empty for equal texts."""

    flow: str
    old: int
    new: int
    diff: str


def history(store: ReadableStore, flow: str) -> list[RevisionRow]:
    """Return the kept revisions, oldest first, also of a deleted flow."""
    if flow not in store.children(paths.flows()) and flow in store.children(paths.tombstones()):
        (past,) = store.read_each([paths.tombstone(flow)])
        if isinstance(past, Unreadable):
            raise past.error
        if past is not None:
            return _past(past.value)
    current = require_flow(store, flow).value.revision
    numbers = _kept(store, flow)
    revisions = found_by_name(store, lambda name: paths.revision(flow, name), map(str, numbers))
    return [
        _revision(int(name), revision, current=int(name) == current)
        for name, revision in revisions.items()
        if revision is not None
    ]


def _past(tombstone: records.Tombstone) -> list[RevisionRow]:
    because = f": {tombstone.reason}" if tombstone.reason else ""
    deleted = f"by {tombstone.who}, {timestamps.utc(tombstone.time)} UTC{because}"
    *before, last = [
        RevisionRow(r.number, r.author, r.reason, r.time, current=False, deleted=deleted)
        for r in tombstone.revisions
    ] or [RevisionRow(0, "", "", 0.0, current=False, deleted=deleted)]
    return [*before, replace(last, text=tombstone.text)]


def _revision(
    number: int, record: Versioned[records.Revision] | Unreadable, *, current: bool
) -> RevisionRow:
    if isinstance(record, Unreadable):
        return RevisionRow(number, "", f"cannot be read: {record}", 0.0, current)
    revision = record.value
    return RevisionRow(number, revision.author, revision.reason, revision.time, current)


def audit(store: ReadableStore, most: int) -> list[AuditRow]:
    """Return the newest ``most`` entries, oldest first."""
    cache = ReadCache.of(store)
    names = cache.children(paths.audits())[-most:]
    entries = cache.read_each([paths.audit(name) for name in names])
    return [_entry(entry) for entry in entries if entry is not None]


def _entry(record: Versioned[records.Audit] | Unreadable) -> AuditRow:
    if isinstance(record, Unreadable):
        return AuditRow(0.0, "", "", f"cannot be read: {record}")
    entry = record.value
    return AuditRow(entry.time, entry.who, entry.command, entry.reason)


def current_text(store: ReadableStore, flow: str) -> str:
    """Return the text of the flow's current revision; empty if it cannot be read."""
    record = found_by_name(store, paths.flow, [flow])[flow]
    if not isinstance(record, Versioned):
        return ""
    (found,) = store.read_each([paths.revision(flow, str(record.value.revision))])
    return found.value.text if isinstance(found, Versioned) else ""


def text_difference(store: ReadableStore, flow: str, text: str) -> str:
    """Return a unified diff from the flow's current text to ``text``, empty for equal texts."""
    return _unified(current_text(store, flow), text, f"{flow} now", f"{flow} then")


def difference(
    store: ReadableStore, flow: str, old: int | None = None, new: int | None = None
) -> Difference:
    """Compare ``old`` (default: the previous) with ``new`` (the current). Raises ``UserError``."""
    current = require_flow(store, flow).value.revision
    if old is None:
        before = [number for number in _kept(store, flow) if number < current]
        if not before:
            raise UserError(f"flow {flow} has one revision only: there is nothing to compare")
        old = before[-1]
    new = current if new is None else new
    diff = _unified(
        require_revision(store, flow, old).text,
        require_revision(store, flow, new).text,
        f"{flow} revision {old}",
        f"{flow} revision {new}",
    )
    return Difference(flow, old, new, diff)


def _unified(old: str, new: str, old_name: str, new_name: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), old_name, new_name, lineterm=""
    )
    return "\n".join(lines)


def _kept(store: ReadableStore, flow: str) -> list[int]:
    names = store.children(paths.revisions(flow))
    return sorted(int(number) for number in names if number.isdigit())
