"""Notes the last answer of a site, for the case that no other follows: ``flumeng site failover``
shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from flumeng.control.zookeeper import ANY, Store, Versioned
from flumeng.journal.serving.gateway_wire import FlowPositions
from flumeng.platform.errors import ConflictError, ForbiddenError
from zkschema import paths
from zkschema.records import Contact

NOTE_SECONDS = 10.0
MOST = 2000
"""Journals in a record: those with the most unread events."""


class Contacts:
    """The contact of one flow. Its time is that of the znode's last write."""

    def __init__(
        self, flow: str, store: Store, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = paths.contact(flow)
        self._store = store
        self._clock = clock
        self._noted_at = float("-inf")
        self._unread: Mapping[str, tuple[int, int]] | None = None

    def note(self, found: FlowPositions, acks: Mapping[str, int]) -> None:
        """Write the record, at most every ``NOTE_SECONDS``. Journals whose server is away keep
        their last bounds. Raises UnavailableError."""
        if self._clock() - self._noted_at < NOTE_SECONDS:
            return
        unread = {name: at for name, at in self._before().items() if name in found.away}
        for name, at in found.positions.items():
            if at.safe != acks.get(name, at.floor):
                unread[name] = (at.floor, at.safe)
        largest = sorted(unread, key=lambda name: acks.get(name, unread[name][0]) - unread[name][1])
        self._unread = unread
        record = Contact(
            unread={name: unread[name] for name in largest[:MOST]}, more=len(largest[MOST:])
        )
        with suppress(ConflictError, ForbiddenError):  # another one wrote it; an old access list
            self._store.write(self._path, record, ANY)
        self._noted_at = self._clock()

    def _before(self) -> Mapping[str, tuple[int, int]]:
        if self._unread is None:
            (found,) = self._store.read_each([self._path])
            self._unread = found.value.unread if isinstance(found, Versioned) else {}
        return self._unread
