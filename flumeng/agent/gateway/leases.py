"""Leases of flows of other sites: cursors ``SITE:FLOW`` that hold trimming for a bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable

from flumeng.control.commands.cursors import Cursor
from flumeng.control.zookeeper import Store
from flumeng.journal.serving.gateway_wire import LeaseAnswer, LeaseRequest
from zkschema import paths
from zkschema.records import Lease


def cursor_name(site: str, reader: str) -> str:
    return f"{site}:{reader}"


class Leases:
    """Renews leases. Thread-safe: ZooKeeper's versions order the writes of all gateways."""

    def __init__(self, store: Store, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._wall = wall

    def renew(self, here: str, caller: str, request: LeaseRequest) -> LeaseAnswer:
        """Move the cursor's acks up, and keep the events above. A missing cursor is made at the
        request's acks. Raises UserError, ConflictError, UnavailableError."""
        flow, name = request.flow, cursor_name(caller, request.reader)
        held = self._store.read(paths.lease(flow, name))
        lease = Lease(
            holder=request.id,
            reader=f"flow {request.reader} of site {caller}",
            keep_seconds=request.keep_seconds,
            renewed=self._wall(),
        )
        if held is not None and (held.value.holder, held.value.keep_seconds) == (
            request.id,
            request.keep_seconds,
        ):
            cursor = Cursor(self._store, flow, name, lease, self._wall)
        else:
            cursor = Cursor.take(
                self._store,
                flow,
                name,
                keep_seconds=request.keep_seconds,
                begin=lambda: request.acks,
                reader=lease.reader,
                wall=self._wall,
            )
        cursor.commit(request.acks)
        return LeaseAnswer(here, cursor.holder, ended=held is None and bool(request.id))
