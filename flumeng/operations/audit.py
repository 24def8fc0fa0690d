"""Who changed what: the entry goes into the transaction of the change, and old ones go."""

from __future__ import annotations

import contextlib
import textwrap
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

from flumeng.errors import ConflictError, ForbiddenError, UnavailableError
from flumeng.store import ABSENT, ANY, Put, Store, Write
from flumeng.store.transaction import Scale
from zkschema import paths, records

KEEP_AUDIT = 500
COMMAND_CHARACTERS = 8192
"""A longer command, such as one that names many journals, is cut."""
NAME_CHARACTERS = 60
SETTLE_SECONDS = 8.0
LOOK_SECONDS = 0.1


def commit(store: Store, writes: Sequence[Write], entry: records.Audit) -> None:
    """All of ``writes`` and the entry, or nothing.

    When no answer comes, the entry tells whether it was done. Raises ConflictError, TooLargeError
    for what no server takes, and UnavailableError when the outcome is not known in time.
    """
    with contextlib.suppress(ForbiddenError):  # in a secured cluster only masters may
        trim(store)
    own = put(entry)
    try:
        store.commit([*writes, own])
    except ForbiddenError:
        raise
    except UnavailableError as error:
        if not _appears(store, own):
            raise UnavailableError(
                f"{error}: it is not known whether it was done; look, and repeat the command"
            ) from error


def room_bytes(scale: Scale) -> int:
    """What an entry takes of a transaction at most."""
    return scale.most(paths.audit("x" * NAME_CHARACTERS))


def trim(store: Store) -> None:
    """Remove what is too old. Raises ForbiddenError, UnavailableError."""
    for old in store.children(paths.audits())[: -KEEP_AUDIT + 1]:
        with contextlib.suppress(ConflictError):  # another one removed it
            store.remove(paths.audit(old), ANY)


def _appears(store: Store, own: Put) -> bool:
    """Whether the entry is seen in time. A server may lag: not to see it proves nothing."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(UnavailableError):
            if store.exists(own.path):
                return True
        time.sleep(LOOK_SECONDS)
    return False


def put(entry: records.Audit) -> Put:
    """The entry's write; its name sorts by time and is never used twice."""
    short = replace(entry, command=textwrap.shorten(entry.command, COMMAND_CHARACTERS))
    return Put(paths.audit(entry.name(uuid.uuid4().hex[:8])), short, ABSENT)
