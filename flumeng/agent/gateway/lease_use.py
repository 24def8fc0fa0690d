"""Measures leases of other sites, for their readers and for metrics: used shares of time and of
room, kept events and bytes, breaks. Journals' servers are asked again after ``ASKED_SECONDS``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import msgspec

from flumeng.control.commands import lease_breaks
from flumeng.control.commands.lease_breaks import is_of_site
from flumeng.control.queries import cursors, fan_out, journals, lag
from flumeng.control.queries.acks import Positions
from flumeng.control.queries.cursors import CursorRow
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot import journal_registry
from flumeng.control.zookeeper import Store
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.account import Account
from flumeng.journal.serving.gateway_wire import Broken, LeaseAnswer, LeaseRequest
from flumeng.platform.errors import FlumengError
from flumeng.platform.metrics import table
from flumeng.platform.metrics.table import Reading
from zkschema.records import Break, Gap

log = logging.getLogger(__name__)

ASKED_SECONDS = 10.0


class LeaseUse:
    """Thread-safe. ``wall``: seconds since the epoch by ZooKeeper's clock, as leases have it."""

    def __init__(
        self,
        store: Store,
        ask: journals.Ask = journals.ask_worker,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._ask = ask
        self._wall = wall
        self._lock = threading.Lock()
        self._rows: Mapping[tuple[str, str], CursorRow] = {}
        self._breaks: Mapping[tuple[str, str], Break] = {}
        self._asked_at = float("-inf")

    def refresh(self) -> None:
        """Look at all leases of other sites. Called every few seconds. Raises FlumengError."""
        now = time.monotonic()
        if now - self._asked_at < ASKED_SECONDS:
            return
        self._asked_at = now
        cache = ReadCache.of(self._store)
        of_sites = cursors.of_sites(cache)
        accounts: fan_out.Answers[Account] = {}
        if of_sites:
            flows = {flow for flow, _ in of_sites}
            own = [each for each in journal_registry.journals(cache).values() if each.flow in flows]
            nodes = sorted({journal.primary for journal in own})
            accounts, _ = fan_out.ask_ingest(cache, nodes, self._ask)
        rows = cursors.rows(
            cache, Positions(accounts), lag.newest(accounts), self._wall(), of_sites
        )
        breaks = {
            (flow, name): broke
            for flow in sorted({flow for flow, _ in of_sites})
            for name, broke in lease_breaks.of_flow(cache, flow).items()
        }
        with self._lock:
            self._rows = {(row.flow, row.cursor): row for row in rows}
            self._breaks = breaks

    def described(
        self,
        answer: LeaseAnswer,
        request: LeaseRequest,
        cursor: str,
        positions: Callable[[], Mapping[str, Position]],
    ) -> LeaseAnswer:
        """Return the answer with what the lease holds and what it has lost."""
        with self._lock:
            row = self._rows.get((request.flow, cursor))
        if row is not None:
            answer = msgspec.structs.replace(
                answer, room=row.room or 0.0, events=row.lag or 0, bytes=row.bytes or 0
            )
        broke = lease_breaks.of_flow(self._store, request.flow).get(cursor)
        if broke is not None and broke.made != request.made and broke.made and request.made:
            return answer  # of a deleted flow of that name
        if broke is not None and (broke.away or _is_forgotten(broke, answer)):
            with suppress(FlumengError):  # repeated by the next request
                broke = self._returned(request, cursor, broke, positions(), answer)
        return answer if broke is None else msgspec.structs.replace(answer, broke=self._told(broke))

    def _returned(
        self,
        request: LeaseRequest,
        cursor: str,
        broke: Break,
        positions: Mapping[str, Position],
        answer: LeaseAnswer,
    ) -> Break:
        """Replace the gaps of a reader that has returned by those that it finds. Without any, the
        break is forgotten once the reader knows that the lease had ended."""
        after = self._as_found(request, broke, positions) if broke.away else broke
        kept = None if _is_forgotten(after, answer) else after
        write = lease_breaks.recorded(self._store, request.flow, cursor, lambda _: kept)
        if write is not None:
            self._store.commit([write])
        return after

    def _as_found(
        self, request: LeaseRequest, broke: Break, positions: Mapping[str, Position]
    ) -> Break:
        gone = [gap for gap in broke.gaps if gap.journal not in positions]
        found = [
            Gap(journal=name, start=request.acks.get(name, 0), end=at.floor)
            for name, at in sorted(positions.items())
            if request.acks.get(name, 0) < at.floor
        ]
        after = lease_breaks.new_break(broke, broke.why, broke.time, [*gone, *found])
        more = broke.events > lease_breaks.events_of(broke.gaps)
        return replace(after, at_least=more or not broke.newest)

    def _told(self, broke: Break) -> Broken:
        gaps = tuple((gap.journal, gap.start, gap.end) for gap in broke.gaps)
        ago = max(0.0, self._wall() - broke.time)
        return Broken(broke.id, broke.why, ago, broke.events, gaps, broke.at_least)

    def readings(self) -> Iterator[Reading]:
        """Yield metrics of each lease."""
        with self._lock:
            rows, breaks = dict(self._rows), dict(self._breaks)
        for (flow, cursor), row in rows.items():
            labels = (*cursor.split(":", 1), flow)
            yield table.LEASE_TIME.of(row.time or 0.0, *labels)
            yield table.LEASE_ROOM.of(row.room or 0.0, *labels)
            yield table.LEASE_EVENTS.of(row.lag or 0, *labels)
            yield table.LEASE_BYTES.of(row.bytes or 0, *labels)
        for flow, cursor in rows.keys() | breaks.keys():
            if is_of_site(cursor):
                lost = breaks[flow, cursor].events if (flow, cursor) in breaks else 0
                yield table.LEASE_LOST.of(lost, *cursor.split(":", 1), flow)


def _is_forgotten(broke: Break, answer: LeaseAnswer) -> bool:
    return not (broke.away or broke.events or broke.at_least or answer.ended)
