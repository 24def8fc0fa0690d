"""What gives a site back what it had before a push, from the entries that pushes left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from flumeng.control.zookeeper import ReadableStore, Versioned
from flumeng.fleet.site_copy import SiteCopy
from flumeng.platform.errors import UserError
from zkschema import paths
from zkschema.records import PushEntry

Before = Mapping[str, tuple[str | None, str | None]]
"""Key -> the value (None: not there), and the digest that pushes knew (None: it was not theirs)."""


def read_entries(store: ReadableStore, copy: SiteCopy) -> list[PushEntry]:
    """All that are kept, in order, from behind the last one that cannot be read.

    Raises ``UnavailableError``.
    """
    return read_history(store, copy)[0]


def read_history(store: ReadableStore, copy: SiteCopy) -> tuple[list[PushEntry], str]:
    """The same, and why those before cannot be told; empty when all can. Raises
    ``UnavailableError``."""
    wanted = [paths.push_entry(name) for name in copy.children(paths.push())]
    entries: list[PushEntry] = []
    why = ""
    for path, found in zip(wanted, store.read_each(wanted), strict=True):
        if isinstance(found, Versioned):
            entries.append(found.value)
        else:
            entries.clear()
            why = str(found) if found else f"{path} is not there"
    return entries, why


def before(entries: Iterable[PushEntry]) -> Before:
    """What was there before the first of these, which are in the order in which they were made."""
    found: dict[str, tuple[str | None, str | None]] = {}
    for entry in entries:
        for key, change in entry.changes.items():
            found.setdefault(key, (change.before, change.owned_before))
    return found


def of_pushes(entries: Sequence[PushEntry], pushes: Collection[str]) -> Sequence[PushEntry]:
    """The entries of these when nothing came after them, also when only half of one was done."""
    count = 0
    for entry in reversed(entries):
        if entry.source.push not in pushes:
            break
        count += 1
    return entries[len(entries) - count :]


def expect_readable(
    copy: SiteCopy, entries: Sequence[PushEntry], taken: Sequence[PushEntry]
) -> None:
    """Raises ``UserError`` when, of those that are ``taken`` from the ``entries`` that were read,
    the first may lie among those that could not be."""
    if len(taken) == len(entries) < len(copy.children(paths.push())):
        raise UserError(
            f"what its pushes changed cannot be told: an entry below {paths.push()} is damaged, or "
            "of a newer flumeng"
        )


def after_push(entries: Sequence[PushEntry], push: str, *, are_all: bool) -> Sequence[PushEntry]:
    """All that came after that push, also when it changed nothing here: by the ids, which sort in
    the order of pushes. ``are_all``: there never were others. Raises ``UserError`` when those that
    are kept do not go back so far."""
    ids = [entry.source.push for entry in entries]
    upto = [number for number, id_ in enumerate(ids) if id_ == push]
    upto = upto or [number for number, id_ in enumerate(ids) if id_ < push]
    if not upto and not are_all:
        raise UserError(f"its history does not go back to push {push}")
    return entries[upto[-1] + 1 if upto else 0 :]
