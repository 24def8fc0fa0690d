"""Who changed what: the entry goes into the transaction of the change, and old ones go."""

from __future__ import annotations

import textwrap
import uuid
from dataclasses import replace

from flumeng.control.zookeeper import ABSENT, ANY, Put, Remove, Store
from flumeng.control.zookeeper.transaction import Scale
from flumeng.platform.errors import ForbiddenError
from zkschema import paths, records

KEEP_AUDIT = 500
COMMAND_CHARACTERS = 8192
"""A longer command, such as one that names many journals, is cut."""
NAME_CHARACTERS = 60
MOST_LOOKS = 2000
"""So many entries are looked at in one portion."""


def room_bytes(scale: Scale) -> int:
    """The largest size of an audit entry in a transaction, in bytes."""
    return scale.most(paths.audit("x" * NAME_CHARACTERS))


def trim(store: Store) -> None:
    """Remove the entries that were created first, in a bounded portion. Their names, and the times
    in them, are chosen by their writers and do not count. Raises ForbiddenError, UnavailableError.
    """
    names = store.children(paths.audits())
    if len(names) < KEEP_AUDIT:
        return
    entries = [paths.audit(name) for name in names[:MOST_LOOKS]]
    known = zip(entries, store.read_each(entries), strict=True)
    created = sorted((found.created, str(path), path) for path, found in known if found)
    removals = [[Remove(path, ANY)] for _, _, path in created[: -KEEP_AUDIT + 1]]
    for refused in store.commit_each(removals):
        if isinstance(refused, ForbiddenError):
            raise refused


def put(entry: records.Audit) -> Put:
    """The entry's write; its name sorts by time and is never used twice."""
    short = replace(entry, command=textwrap.shorten(entry.command, COMMAND_CHARACTERS))
    return Put(paths.audit(entry.name(uuid.uuid4().hex[:8])), short, ABSENT)
