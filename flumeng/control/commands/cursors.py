"""The cursor of an external reader: acks that one reader at a time moves. Every write includes the
cursor's lease, at the version that names the reader, so only the reader that took it last moves the
acks. The lease also limits how long journals keep unread events."""

from __future__ import annotations

import getpass
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

from flumeng.control.commands.chains import has_journals
from flumeng.control.commands.lookup import require_flow, require_revision
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Check,
    Put,
    Remove,
    Store,
    Version,
    Versioned,
    Write,
)
from flumeng.control.zookeeper.transaction import singly
from flumeng.platform.errors import ConflictError, UserError
from zkschema import paths
from zkschema.records import Ack, Flow, Lease

ATTEMPTS = 5
KEEP_SECONDS = 86_400.0


def require_readable(store: Store, flow: str) -> Versioned[Flow]:
    """Return a flow's record. Raises UserError when it is missing, deleted or has no journals."""
    record = require_flow(store, flow)
    if record.value.state == "deleted":
        raise UserError(f"flow {flow} is being deleted")
    if not has_journals(require_revision(store, flow, record.value.revision).effective):
        raise UserError(f"flow {flow} has no journals: read the input of its source instead")
    return record


class Cursor:
    """A reader's acks in a flow's journals. ``existed``: before ``take``. Not thread-safe."""

    def __init__(
        self, store: Store, flow: str, name: str, lease: Lease, wall: Callable[[], float]
    ) -> None:
        self._store = store
        self._flow = flow
        self._name = name
        self._lease = lease
        self._wall = wall
        self.existed = True

    @classmethod
    def take(
        cls,
        store: Store,
        flow: str,
        name: str,
        *,
        keep_seconds: float | None,
        begin: Callable[[], Mapping[str, int]],
        reader: str = "",
        made: str = "",
        wall: Callable[[], float] = time.time,
    ) -> Cursor:
        """Take the cursor from its reader; a new one begins at the offsets of ``begin``.
        ``keep_seconds`` None: unchanged. ``reader``: by default this process. ``made``: see
        ``Lease``. Raises UserError when a flow has that name, or the flow cannot be read;
        ConflictError, UnavailableError, and errors of ``begin``."""
        record = require_readable(store, flow)
        if store.exists(paths.flow(name)):
            raise UserError(f"a flow is named {name} already: rename the cursor")
        process = f"{getpass.getuser()}@{socket.gethostname()} (process {os.getpid()})"
        lease = Lease(
            holder=uuid.uuid4().hex,
            reader=reader or process,
            keep_seconds=KEEP_SECONDS if keep_seconds is None else keep_seconds,
            renewed=wall(),
            made=made,
        )
        cursor = cls(store, flow, name, lease, wall)
        for attempt in range(ATTEMPTS):
            try:
                held = store.read(paths.lease(flow, name))
                if held is not None:
                    if keep_seconds is None:
                        cursor._lease = replace(lease, keep_seconds=held.value.keep_seconds)
                    store.write(paths.lease(flow, name), cursor._lease, held.version)
                else:
                    cursor._make(begin(), Check(paths.flow(flow), record.version))
                    cursor.existed = False
                return cursor
            except ConflictError:
                if attempt == ATTEMPTS - 1:
                    raise
                record = require_readable(store, flow)
        raise AssertionError("the last attempt returns or raises")

    @property
    def holder(self) -> str:
        """The id of this reader's lease."""
        return self._lease.holder

    def offsets(self) -> dict[str, int]:
        """Return the acks; everything below is read. Raises CorruptError, UnavailableError."""
        names = self._store.children(paths.cursor(self._flow, self._name))
        acks = self._store.read_many([paths.ack(self._flow, self._name, name) for name in names])
        return {
            name: ack.value.offset for name, ack in zip(names, acks, strict=True) if ack is not None
        }

    def commit(self, offsets: Mapping[str, int]) -> None:
        """Move acks up to ``offsets``, never back; remove acks of removed journals. Raises
        ConflictError when the cursor was taken or removed; UnavailableError when the outcome is
        unknown: call it again."""
        for attempt in range(ATTEMPTS):
            held = self._held()
            try:
                self._write(held, self._changes(offsets))
                return
            except ConflictError:  # an ack or the lease has changed: look again
                if attempt == ATTEMPTS - 1:
                    raise

    def renew(self) -> None:
        """Keep unread events for another ``keep_seconds``. Raises as ``commit``."""
        self.commit({})

    def _held(self) -> Versioned[Lease]:
        held = self._store.read(paths.lease(self._flow, self._name))
        if held is None:
            raise ConflictError(
                f"the cursor {self._name} of flow {self._flow} was removed by an operator, or "
                f"because it was not renewed for {self._lease.keep_seconds:g} s (keepSeconds); "
                "restart the reader to recreate it"
            )
        if held.value.holder != self._lease.holder:
            raise ConflictError(
                f"the cursor {self._name} of flow {self._flow} was taken by {held.value.reader}: "
                "two readers cannot share one"
            )
        return held

    def _changes(self, offsets: Mapping[str, int]) -> list[Write]:
        if not offsets:
            return []
        folder = paths.cursor(self._flow, self._name)
        names = sorted({*offsets, *self._store.children(folder)})
        acks = self._store.read_many([paths.ack(self._flow, self._name, name) for name in names])
        journals = self._store.read_each([paths.journal(name) for name in names])
        writes: list[Write] = []
        for name, ack, journal in zip(names, acks, journals, strict=True):
            path, offset = paths.ack(self._flow, self._name, name), offsets.get(name, 0)
            if ack is None and journal is not None and offset:
                writes.append(Put(path, Ack(epoch=0, offset=offset), ABSENT))
            elif ack is not None and ack.value.offset < offset:
                writes.append(Put(path, replace(ack.value, offset=offset), ack.version))
            elif ack is not None and journal is None and name not in offsets:
                writes.append(Remove(path, ack.version))
        return writes

    def _write(self, held: Versioned[Lease], writes: list[Write]) -> None:
        lease = replace(held.value, renewed=self._wall())
        path, version = paths.lease(self._flow, self._name), held.version
        scale, each = self._store.scale, [Put(path, lease, version)]
        for some in list(singly(scale, writes, each=each)) or [[]]:
            version = self._store.commit([Put(path, lease, version), *some])[0]

    def _make(self, offsets: Mapping[str, int], unchanged: Check) -> None:
        """Create the cursor; the lease comes last, so that an interrupted attempt is repeated."""
        folder = paths.cursor(self._flow, self._name)
        there = self._store.exists(folder)
        left = set(self._store.children(folder)) if there else set()
        # Without its folder a lease holds nothing, and what was read of it may be outdated.
        first = Check(folder, Version(0)) if there else Put(folder, None, ABSENT)
        writes: list[Write] = [first]
        for name, offset in offsets.items():
            path = paths.ack(self._flow, self._name, name)
            writes.append(Put(path, Ack(epoch=0, offset=offset), ANY if name in left else ABSENT))
        writes.append(Put(paths.lease(self._flow, self._name), self._lease, ABSENT))
        for some in singly(self._store.scale, writes, each=[unchanged]):
            self._store.commit([unchanged, *some])
