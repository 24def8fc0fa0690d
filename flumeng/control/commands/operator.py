"""Audited transactions: every change is committed together with an audit entry."""

from __future__ import annotations

import contextlib
import textwrap
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from flumeng.control.zookeeper import ABSENT, ANY, Put, Remove, Store, Versioned, Write
from flumeng.control.zookeeper.transaction import Scale, singly
from flumeng.platform.errors import ForbiddenError, UnavailableError
from zkschema import paths, records
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)

KEEP_AUDIT = 500
COMMAND_CHARACTERS = 8192
NAME_CHARACTERS = 60
MOST_LOOKS = 2000
"""The most entries that one call of ``trim_audit`` reads."""
LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Request:
    """A request that may be repeated: digests of its ``key`` and its ``body``. ``answer``: JSON,
    given with its last transaction."""

    key: str
    body: str
    answer: str | None = None


@dataclass(frozen=True)
class Operator:
    """The author of a change. ``now``: seconds since the epoch, for display only.
    ``settle_seconds``: how long to look for the entry of a change without a reply. ``request``: its
    digests and answer are kept in the entry."""

    store: Store
    author: str
    reason: str
    now: float
    settle_seconds: float = 8.0
    request: Request | None = None

    def entry(self, command: str) -> records.Audit:
        entry = records.Audit(who=self.author, command=command, reason=self.reason, time=self.now)
        if self.request is None:
            return entry
        return replace(entry, request=self.request.body, answer=self.request.answer)

    def commit(self, writes: Sequence[Write], command: str) -> None:
        """Commit ``writes`` with an audit entry, which shows the outcome after a lost reply. Raises
        as ``Store.commit`` does; an UnavailableError says whether the outcome is unknown."""
        with contextlib.suppress(UnavailableError):  # in a secured cluster only masters may
            trim_audit(self.store)
        if not self.store.connected:
            raise UnavailableError(
                "no connection to ZooKeeper now: the change was not sent; repeat the command"
            )
        own = audit_entry(self.entry(command), self.request.key if self.request else "")
        try:
            self.store.commit([*writes, own])
        except ForbiddenError:
            raise
        except UnavailableError as error:
            if not self._appears(own):
                raise UnavailableError(
                    f"{error}: the outcome is unknown; check it, and repeat the command if needed"
                ) from error

    def change(self, path: ZPath[R], current: Versioned[R], after: R, command: str) -> bool:
        """Write ``after`` in place of ``current``; return False when both are equal."""
        if after == current.value:
            return False
        self.commit([Put(path, after, current.version)], command)
        return True

    def commit_each(
        self,
        writes: Iterable[Put | Remove],
        command: Callable[[str], str],
        *,
        each: Sequence[Write] = (),
    ) -> None:
        """Commit independent writes in few transactions, each with all of ``each``. ``command``
        gets the names of the written znodes."""
        room = room_bytes(self.store.scale)
        for part in singly(self.store.scale, writes, each=each, room_bytes=room):
            self.commit([*each, *part], command(" ".join(write.path.name for write in part)))

    def _appears(self, own: Put) -> bool:
        """Return whether the entry appears in time; False proves nothing: a server may lag."""
        deadline = time.monotonic() + self.settle_seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(UnavailableError):
                if self.store.exists(own.path):
                    return True
            time.sleep(LOOK_SECONDS)
        return False


def room_bytes(scale: Scale) -> int:
    """Return the largest size of an audit entry in a transaction, in bytes."""
    return scale.most(paths.audit("x" * NAME_CHARACTERS))


def trim_audit(store: Store) -> None:
    """Keep fewer than ``KEEP_AUDIT`` entries, the newest by ZooKeeper's order of creation, since
    writers choose names and times. Raises ForbiddenError, UnavailableError."""
    names = store.children(paths.audits())
    if len(names) < KEEP_AUDIT:
        return
    entries = [paths.audit(name) for name in names[:MOST_LOOKS]]
    read = zip(entries, store.read_each(entries), strict=True)
    created = sorted((entry.created, str(path), path) for path, entry in read if entry)
    removals = [[Remove(path, ANY)] for _, _, path in created[: -KEEP_AUDIT + 1]]
    for refused in store.commit_each(removals):
        if isinstance(refused, ForbiddenError):
            raise refused


def audit_entry(entry: records.Audit, key: str = "") -> Put:
    """Return the write of an entry, under a unique name that sorts by time. It ends with ``key``,
    if that is given."""
    short = replace(entry, command=textwrap.shorten(entry.command, COMMAND_CHARACTERS))
    unique = uuid.uuid4().hex
    name = entry.name(f"{unique[:4]}-{key}" if key else unique[:8])
    return Put(paths.audit(name), short, ABSENT)
