"""Who changed what: the entry goes into the transaction of the change, and old ones go."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence

from flumeng.errors import ConflictError
from flumeng.store import ABSENT, ANY, Put, Store, Write
from zkschema import paths, records

KEEP_AUDIT = 500


def commit(store: Store, writes: Sequence[Write], entry: records.Audit) -> None:
    """All of ``writes`` and the entry, or nothing. Raises ConflictError, UnavailableError."""
    for old in store.children(paths.audits())[: -KEEP_AUDIT + 1]:
        with contextlib.suppress(ConflictError):  # another operator's command removed it
            store.remove(paths.audit(old), ANY)
    store.commit([*writes, put(entry)])


def put(entry: records.Audit) -> Put:
    """The entry's write; its name sorts by time and is never used twice."""
    return Put(paths.audit(entry.name(uuid.uuid4().hex[:8])), entry, ABSENT)
