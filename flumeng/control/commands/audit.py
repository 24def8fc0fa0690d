"""The audit: an entry in the transaction of each change; old entries are removed."""

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
NAME_CHARACTERS = 60
MOST_LOOKS = 2000
"""Entries that one call of ``trim`` reads."""


def room_bytes(scale: Scale) -> int:
    """The largest size of an audit entry in a transaction, in bytes."""
    return scale.most(paths.audit("x" * NAME_CHARACTERS))


def trim(store: Store) -> None:
    """Remove the entries created first. Their names and times are chosen by writers and do not
    count. Raises ForbiddenError, UnavailableError."""
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
    """The write of an entry under a unique name that sorts by time."""
    short = replace(entry, command=textwrap.shorten(entry.command, COMMAND_CHARACTERS))
    return Put(paths.audit(entry.name(uuid.uuid4().hex[:8])), short, ABSENT)
