"""Selects the push entries to undo, and the values from before these pushes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from flumeng.control.zookeeper import ReadableStore, Versioned
from flumeng.fleet.site_copy import SiteCopy
from flumeng.platform.errors import UserError
from zkschema import paths
from zkschema.records import PushEntry

Before = Mapping[str, tuple[str | None, str | None]]
"""Value (None: absent) and digest (None: not owned) by key."""


def read_entries(store: ReadableStore, copy: SiteCopy) -> list[PushEntry]:
    """Return the kept entries in order, only those after the last unreadable one."""
    return read_history(store, copy)[0]


def read_history(store: ReadableStore, copy: SiteCopy) -> tuple[list[PushEntry], str]:
    """Return the entries as ``read_entries``, and why older ones cannot be read, or ""."""
    entry_paths = [paths.push_entry(name) for name in copy.children(paths.push())]
    entries: list[PushEntry] = []
    why = ""
    for path, entry in zip(entry_paths, store.read_each(entry_paths), strict=True):
        if isinstance(entry, Versioned):
            entries.append(entry.value)
        else:
            entries.clear()
            why = str(entry) if entry else f"{path} is missing"
    return entries, why


def before(entries: Iterable[PushEntry]) -> Before:
    """Return the values from before the first of these entries, which are in order."""
    values: dict[str, tuple[str | None, str | None]] = {}
    for entry in entries:
        for key, change in entry.changes.items():
            values.setdefault(key, (change.before, change.owned_before))
    return values


def of_pushes(entries: Sequence[PushEntry], pushes: Collection[str]) -> Sequence[PushEntry]:
    """Return the newest entries, as far back as all of them are of these pushes."""
    count = 0
    for entry in reversed(entries):
        if entry.source.push not in pushes:
            break
        count += 1
    return entries[len(entries) - count :]


def expect_readable(
    copy: SiteCopy, entries: Sequence[PushEntry], taken: Sequence[PushEntry]
) -> None:
    """Raise ``UserError`` when an entry to undo may be among unreadable ones."""
    if len(taken) == len(entries) < len(copy.children(paths.push())):
        raise UserError(
            f"the changes of the site's pushes cannot be read: an entry below {paths.push()} is "
            "damaged, or of a newer flumeng: see `flumeng push history SITE`"
        )


def after_push(entries: Sequence[PushEntry], push: str, *, are_all: bool) -> Sequence[PushEntry]:
    """Return all entries after that push by their ids, which sort by time; ``are_all``: no entries
    were dropped. Otherwise raises ``UserError`` when the kept entries begin after that push."""
    ids = [entry.source.push for entry in entries]
    upto = [number for number, id_ in enumerate(ids) if id_ == push]
    upto = upto or [number for number, id_ in enumerate(ids) if id_ < push]
    if not upto and not are_all:
        raise UserError(f"the site's history does not go back to push {push}")
    return entries[upto[-1] + 1 if upto else 0 :]
