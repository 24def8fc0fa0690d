"""Leases of flows of other sites: cursors ``SITE:FLOW`` that hold trimming for a bounded time, and
never for so long that senders of this site wait."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from flumeng.control.commands import lease_breaks
from flumeng.control.commands.cursors import Cursor
from flumeng.control.commands.lease_breaks import is_of_site
from flumeng.control.snapshot import leases
from flumeng.control.zookeeper import ABSENT, ANY, Check, Put, Remove, Store, Versioned, Write
from flumeng.control.zookeeper.transaction import singly
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.gateway_wire import LeaseAnswer, LeaseRequest
from flumeng.platform.errors import ConflictError, UnavailableError
from zkschema import paths
from zkschema.records import Ack, Gap, Lease

log = logging.getLogger(__name__)

FULL = "the journal was full, and its senders waited"
HELD_SHARE = 0.5
"""A full journal gives events up if flows here have read this share of what only another site has
not read."""


def cursor_name(site: str, reader: str) -> str:
    return f"{site}:{reader}"


class Leases:
    """Renews leases. Thread-safe: ZooKeeper's versions order the writes of all gateways.
    ``ahead_seconds``: of ZooKeeper's clock is this gateway's, as of its last write but one."""

    def __init__(self, store: Store, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._wall = wall
        self._renewed: dict[tuple[str, str], float] = {}
        self.ahead_seconds = 0.0

    def renew(self, here: str, caller: str, request: LeaseRequest) -> LeaseAnswer:
        """Move the cursor's acks up, and keep the events above. A missing cursor is made at the
        request's acks, with a new id. Requests with another id hear that their lease has ended,
        until they present this one: answers get lost, and old requests arrive late. The first
        request of a flow that was deleted and made again replaces the lease; later ones of the
        deleted flow change nothing. Raises UserError, ConflictError, UnavailableError."""
        flow, name = request.flow, cursor_name(caller, request.reader)
        held = self._store.read(paths.lease(flow, name))
        if held is not None and held.value.renewed == self._renewed.get((flow, name)):
            self.ahead_seconds = held.value.renewed - held.written
        now = self._renewed[flow, name] = self._wall()
        if request.end:
            self._end(flow, name, held, request.id)
            return LeaseAnswer(here, request.id)
        if held is None:
            cursor = Cursor.take(
                self._store,
                flow,
                name,
                keep_seconds=request.keep_seconds,
                begin=lambda: request.acks,
                reader=f"flow {request.reader} of site {caller}",
                made=request.made,
                wall=lambda: now,
            )
        else:
            remade = request.made != held.value.made and bool(request.made and held.value.made)
            if remade and request.id not in ("", held.value.holder):
                return LeaseAnswer(here, held.value.holder, ended=True, time=now)
            lease = replace(
                held.value,
                keep_seconds=request.keep_seconds,
                made=request.made or held.value.made,
                failover=request.failover,
            )
            if not request.id and (remade or held.value.keep_seconds == leases.ENDED_SECONDS):
                lease = replace(lease, holder=uuid.uuid4().hex, renewed=now)
                self._begin_again(flow, name, held, lease)
            elif lease != held.value:
                lease = replace(lease, renewed=now)
                self._store.write(paths.lease(flow, name), lease, held.version)
            cursor = Cursor(self._store, flow, name, lease, lambda: now)
        cursor.commit(request.acks)
        ended = request.id not in ("", cursor.holder)
        return LeaseAnswer(here, cursor.holder, ended=ended, time=now)

    def _begin_again(self, flow: str, name: str, held: Versioned[Lease], lease: Lease) -> None:
        """Remove the acks of a deleted reader, then its lease: another of that name begins at the
        floors."""
        path = paths.lease(flow, name)
        names = self._store.children(paths.cursor(flow, name))
        removals = (Remove(paths.ack(flow, name, journal), ANY) for journal in names)
        unchanged = Check(path, held.version)
        for some in singly(self._store.scale, removals, each=[unchanged]):
            self._store.commit([unchanged, *some])
        self._store.write(path, lease, held.version)
        log.info("flow %s: %s was made again, so its lease begins again", flow, name)

    def _end(self, flow: str, name: str, held: Versioned[Lease] | None, holder: str) -> None:
        """Let the lease expire, so that masters remove it with its cursor."""
        if held is not None and held.value.holder == holder:
            ended = replace(held.value, keep_seconds=leases.ENDED_SECONDS)
            self._store.write(paths.lease(flow, name), ended, held.version)
            log.info("flow %s: the reader of %s was deleted, so its lease ends", flow, name)

    def relieve(self, positions: Callable[[str], Mapping[str, Position]]) -> None:
        """Give up events that only other sites have not read, in journals that are full. Their
        readers find the gap. ``positions``: of a flow's journals. Called every few seconds."""
        cursors = leases.names(self._store)
        for flow in sorted({flow for flow, name in cursors if is_of_site(name)}):
            with suppress(ConflictError, UnavailableError):
                full = {name: at for name, at in positions(flow).items() if at.full}
                if full:
                    self._relieve(flow, full)

    def _relieve(self, flow: str, full: Mapping[str, Position]) -> None:
        names = self._store.children(paths.acks(flow))
        local = [name for name in names if not is_of_site(name)]
        for journal, position in full.items():
            acks = self._store.read_each([paths.ack(flow, name, journal) for name in local])
            # One event stays: a closed journal acked to its end is removed, with the gap in it.
            least = min([position.safe - 1, *map(_offset, acks)])
            for name in filter(is_of_site, names):
                ack = self._store.read(paths.ack(flow, name, journal))
                start = max(_offset(ack), position.floor)
                held = least - start
                if held >= HELD_SHARE * (position.safe - start) > 0:
                    lost = Gap(journal=journal, start=least - held, end=least)
                    self._give_up(flow, name, lost, ack)
                    log.warning(
                        "journal %s was full: %d events that %s had not read are given up",
                        *(journal, held, name),
                    )

    def _give_up(self, flow: str, name: str, lost: Gap, ack: Versioned[Ack] | None) -> None:
        """Move an ack over lost events, and record them, unless the cursor is removed meanwhile.
        The lease is not renewed by that."""
        lease = self._store.read(paths.lease(flow, name))
        if lease is None:
            return
        path = paths.ack(flow, name, lost.journal)
        moved: Write = (
            Put(path, Ack(epoch=0, offset=lost.end), ABSENT)
            if ack is None
            else Put(path, replace(ack.value, offset=lost.end), ack.version)
        )
        now = self._wall() - self.ahead_seconds
        broke = lease_breaks.new_break(lease.value, FULL, now, [lost])
        record = lease_breaks.recorded(
            self._store, flow, name, lambda before: lease_breaks.with_gaps(before, broke)
        )
        writes = [moved] if record is None else [moved, record]
        self._store.commit([Check(paths.lease(flow, name), lease.version), *writes])


def _offset(ack: object) -> int:
    """Return the offset; 0 before the first ack, and for an unreadable one, which holds all."""
    return ack.value.offset if isinstance(ack, Versioned) else 0
