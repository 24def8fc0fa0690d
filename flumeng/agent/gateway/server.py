"""The Flight server of a gateway. Frames pass through as the journals' servers send them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa

from flumeng.agent.gateway.broken_leases import BrokenLeases
from flumeng.agent.gateway.congestion import prefer_bbr
from flumeng.agent.gateway.flow_filters import FlowFilters
from flumeng.agent.gateway.flow_watch import FlowWatch
from flumeng.agent.gateway.lease_use import LeaseUse
from flumeng.agent.gateway.leases import Leases, cursor_name
from flumeng.agent.gateway.limits import Limits, lowest_rate
from flumeng.agent.gateway.local_journals import LocalJournals
from flumeng.config.policy import Policy, Subscriber
from flumeng.config.policy_file import PolicyFile
from flumeng.connectors.api.ranged import Reach
from flumeng.control.commands.cursors import require_readable
from flumeng.control.zookeeper import Store
from flumeng.events.journal_names import flow_of
from flumeng.journal.log.errors import DeniedError, NotServedError
from flumeng.journal.serving import filtered_wire, wire
from flumeng.journal.serving.access import ALL_FLOWS, Access, Peer
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.gateway_wire import (
    FiltersRequest,
    LeaseRequest,
    PositionsRequest,
    parse,
)
from flumeng.journal.serving.service import Service
from flumeng.journal.serving.taps import Places
from flumeng.journal.serving.windows import batch_of, behind, end_of
from flumeng.platform.connection_pool import ConnectionPool
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.metrics import table
from flumeng.platform.metrics.table import Reading
from flumeng.platform.security.credentials import Credentials, Keystore
from zkschema import paths

READ_SECONDS = 60.0
"""Time limit of a read from a journal's server, with the pauses of the far reader."""
CHECK_SECONDS = 5.0
"""How long a flow counts as readable after a check."""
WAITS_AT_ONCE = 64
READS_AT_ONCE = 512
"""A reader has eight in each of its processes."""
STILL_SECONDS = 120.0
PEER_SHARE = 0.75
PIECE_SECONDS = 0.25
EVERYTHING = Subscriber((ALL_FLOWS,))

_idle: ConnectionPool[str, JournalClient] = ConnectionPool()


class GatewayServer(Service):
    """Serves other sites until ``stop``. A request beyond ``WAITS_AT_ONCE`` is answered at once, a
    read beyond ``READS_AT_ONCE`` is refused. Raises UserError as ``Service``."""

    def __init__(
        self,
        host: str,
        port: int,
        store: Store,
        watch: FlowWatch,
        *,
        policy: Policy | PolicyFile,
        filters: FlowFilters,
        keystore: Keystore | None = None,
        local: LocalJournals | None = None,
    ) -> None:
        self._store = store
        self._local = local
        self._watch = watch
        self._leases = Leases(store)
        self._use = LeaseUse(store, wall=lambda: time.time() - self._leases.ahead_seconds)
        self._broken = BrokenLeases(store)
        self._policy = policy
        self._limits = Limits()
        self._filters = filters
        self._sent: Counter[tuple[str, str]] = Counter()
        self._running = 0
        self._counting = threading.Lock()
        self._checked: dict[str, tuple[float, str]] = {}
        self._waiting = Places(WAITS_AT_ONCE, STILL_SECONDS, each=PEER_SHARE)
        self._reading = Places(READS_AT_ONCE, STILL_SECONDS, each=PEER_SHARE)
        super().__init__(host, port, keystore, policy.granted)

    def _open(self, port: int, own: Credentials | None) -> Any:
        server = super()._open(port, own)
        prefer_bbr(server.port)
        return server

    def readings(self) -> Iterator[Reading]:
        """Yield the gateway's metrics. Thread-safe."""
        with self._counting:
            sent, running = dict(self._sent), self._running
        yield table.GATEWAY_READS.of(running)
        for (site, flow), count in sent.items():
            yield table.GATEWAY_SENT.of(count, site, flow)
        yield from self._use.readings()

    def relieve(self) -> None:
        """See ``Leases``."""
        self._leases.relieve(lambda flow: self._watch.positions("", flow).positions)
        self._use.refresh()

    def act(self, peer: Peer, context: Any, action: str, body: bytes) -> Iterator[bytes]:
        del context
        answers = {
            wire.FLOW_POSITIONS: self._positions,
            wire.FLOW_FILTERS: self._flow_filters,
            wire.LEASE: self._lease,
        }
        if action not in answers:
            raise UserError(
                f"there is no action {action!r} at a gateway, only {', '.join(answers)}"
            )
        _require_subscriber(peer)
        peer.require(action)
        return iter([msgspec.json.encode(answers[action](peer, body))])

    def read(
        self, peer: Peer, access: Access, ticket: bytes
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        request = wire.parse_ticket(ticket)
        if request.tapped:
            raise UserError("a gateway serves no taps")
        _require_subscriber(peer)
        access.require_read(peer, request)
        schema = filtered_wire.CHUNK_SCHEMA if request.filters else wire.FRAMES_SCHEMA
        return schema, self._frames(peer, request)

    def _positions(self, peer: Peer, body: bytes) -> object:
        request = parse(PositionsRequest, body)
        here = _require_source(request.source, self._require(peer, request.flow))
        call = object()
        waits = self._waiting.take(call, peer.key)
        try:
            seconds = request.wait_seconds if waits else 0.0
            answer = self._watch.positions(here, request.flow, request.seen, seconds)
        finally:
            self._waiting.leave(call)
        if request.filtered:
            name = self._filters.current(request.flow)
            answer = msgspec.structs.replace(answer, filters=name)
        caller = peer.identity.name if peer.identity else request.site
        broken = self._broken.of(request.flow, caller, answer.positions)
        return msgspec.structs.replace(answer, broken=broken)

    def _flow_filters(self, peer: Peer, body: bytes) -> object:
        request = parse(FiltersRequest, body)
        here = self._require(peer, request.flow)
        return self._filters.answer(here, request.flow, request.filters)

    def _lease(self, peer: Peer, body: bytes) -> object:
        request = parse(LeaseRequest, body)
        here = _require_source(request.source, self._require(peer, request.flow))
        caller = peer.identity.name if peer.identity else request.site
        if caller != request.site:
            raise DeniedError(f"your certificate is for the site {caller}, not {request.site}")
        foreign = [name for name in request.acks if flow_of(name) != request.flow]
        if foreign:
            raise UserError(f"{foreign[0]} is no journal of flow {request.flow}")
        answer = self._leases.renew(here, caller, request)
        cursor = cursor_name(caller, request.reader)
        return self._use.described(
            answer, request, cursor, lambda: self._watch.positions(here, request.flow).positions
        )

    def _require(self, peer: Peer, flow: str) -> str:
        """Return this site's name. Raises DeniedError, and UserError for an unreadable flow."""
        if not peer.may_read(flow):
            raise DeniedError(_denial(peer, flow))
        checked_at, site = self._checked.get(flow, (0.0, ""))
        if time.monotonic() - checked_at < CHECK_SECONDS:
            return site
        cluster = self._store.read(paths.cluster())
        if cluster is None or not cluster.value.site:
            raise UserError(
                "the gateway's cluster has no name among sites: run there `flumeng site name NAME`"
            )
        require_readable(self._store, flow)
        self._checked[flow] = time.monotonic(), cluster.value.site
        return cluster.value.site

    def _frames(self, peer: Peer, ticket: wire.Ticket) -> Iterator[pa.RecordBatch]:
        reach = self._watch.reach(ticket.journal)
        if reach is None:
            flow = flow_of(ticket.journal)
            self._watch.positions(self._require(peer, flow), flow)  # begins to watch it
            reach = self._watch.reach(ticket.journal)
        if reach is None:
            raise NotServedError(f"the server of journal {ticket.journal} does not answer")
        call = object()
        if not self._reading.take(call, peer.key):
            raise UnavailableError(
                f"{READS_AT_ONCE} reads run at this gateway, or too many are yours"
            )
        of = (peer.identity.name if peer.identity else "", flow_of(ticket.journal))
        site, ended = of[0] or ticket.choke.site, self.ended
        self._count(of, running=1)
        try:
            with self._limits.stream(site, self._granted(peer), ended):
                for batch in self._batches(ticket, reach):
                    for part in pieces(batch, lowest_rate(self._granted(peer), ticket.choke)):
                        granted = self._granted(peer)
                        self._limits.take(site, part.nbytes, granted, ticket.choke, ended)
                        granted = self._granted(peer)  # as it is after the wait
                        if not replace(peer, flows=frozenset(granted.flows)).may_read(of[1]):
                            raise DeniedError(_denial(peer, of[1]))
                        if ended.is_set():
                            raise UnavailableError("the gateway is stopping")
                        yield part
                        self._reading.moved(call)
                        self._count(of, sent=part.nbytes)
        finally:
            self._reading.leave(call)
            self._count(of, running=-1)

    def _granted(self, peer: Peer) -> Subscriber:
        """Return the rights and limits of a caller now; in an open cluster it has all."""
        return self._policy.subscriber(peer.identity.name) if peer.identity else EVERYTHING

    def _batches(self, ticket: wire.Ticket, reach: Reach) -> Iterator[pa.RecordBatch]:
        """Yield the frames, from the journal's files if these are here, else from its server; or
        the events behind filters."""
        if ticket.filters:
            with _client(reach.address) as client:
                yield from self._filters.chunks(client, ticket)
            return
        journal, start, seq = ticket.journal, ticket.start, ticket.start
        if self._local is not None:
            for window in self._local.windows(journal, reach, start, ticket.end):
                cuts = ticket.aligned and seq == start
                sent = behind(window, journal, start) if cuts else window
                seq = end_of(window, journal)
                if sent is not None:
                    yield batch_of(sent)
        if seq < ticket.end:
            aligned = ticket.aligned or seq > start
            with _client(reach.address) as client:
                yield from client.copy(journal, seq, ticket.end, aligned=aligned)

    def _count(self, of: tuple[str, str], *, sent: int = 0, running: int = 0) -> None:
        with self._counting:
            self._sent[of] += sent
            self._running += running


def pieces(frames: pa.RecordBatch, rate: int) -> Iterator[pa.RecordBatch]:
    """Cut frames into batches of about ``PIECE_SECONDS`` at ``rate`` bytes/s; 0: one batch."""
    at_once = frames.num_rows
    if rate and frames.nbytes > rate * PIECE_SECONDS:
        at_once = max(1, int(at_once * rate * PIECE_SECONDS / frames.nbytes))
    for start in range(0, frames.num_rows, max(1, at_once)):
        yield frames.slice(start, at_once)


def _require_subscriber(peer: Peer) -> None:
    """Raise DeniedError for other certificates of the cluster: they are of no use beyond it."""
    if peer.identity is not None and peer.identity.role != "subscriber":
        raise DeniedError(f"a gateway serves subscribers, not {peer.identity}")


def _denial(peer: Peer, flow: str) -> str:
    return (
        f"the gateway's policy file does not let {peer.identity} read the flow {flow}: name it in "
        "`subscribers` there"
    )


def _require_source(source: str, here: str) -> str:
    """Return this site's name. Raises UserError when the request is for another site."""
    if source not in ("", here):
        raise UserError(f"this gateway is of site {here}, not {source}: correct its address")
    return here


@contextmanager
def _client(address: str) -> Iterator[JournalClient]:
    """Provide a client of a journal server; it is reused unless the read fails."""
    client = _idle.take(address) or JournalClient(address, READ_SECONDS)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _idle.keep(address, client)
