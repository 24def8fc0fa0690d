"""The Flight server of a process's journals: their positions, and ranges as raw frames.

Frames are sent whole, one per row, so their checksums also protect the transfer; encrypted ones are
decrypted before. Readers get nothing above a journal's ``safe``. Flight cannot bound the threads of
calls, so reads beyond a limit are refused, and watches are answered once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from flumeng.journal.log import reading
from flumeng.journal.log.contract import Log, Position
from flumeng.journal.log.errors import DeniedError, NotServedError
from flumeng.journal.log.progress_history import ProgressSample
from flumeng.journal.log.segment import Window
from flumeng.journal.serving import wire
from flumeng.journal.serving.access import Access, Granted, Peer, granted_nothing
from flumeng.journal.serving.account import Account
from flumeng.journal.serving.replica_wire import REPLICA
from flumeng.journal.serving.service import NO_ACTIONS, Actions, Service
from flumeng.journal.serving.taps import Places, Taps
from flumeng.journal.serving.watch import Watch, WatchRequest, parse_request
from flumeng.journal.serving.windows import aligned, batch_of
from flumeng.journal.serving.wire import Ticket
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.security.credentials import Keystore

ACCOUNT_SECONDS = 0.5
"""Maximum seconds for reading the oldest events of journals."""
PEER_SHARE = 0.75
"""Maximum share of the reads and watches for one authenticated peer."""


class Replicas(Protocol):
    """Replicas of other nodes' journals in this process."""

    def serve_replicas(self, peer: Peer, reader: Any, writer: Any) -> None:
        """Serve one connection of a primary, until it ends."""

    @property
    def ends(self) -> Mapping[str, int]: ...


class JournalServer(Service):
    """Serves journals until ``stop``. Its threads call ``journals``, ``counters``, ``acked`` (the
    ack of the journal's own flow) and ``minute_ago``; the mapping of journals is replaced, never
    changed. A watch beyond ``watches_at_once`` gets a single answer, a read beyond
    ``reads_at_once`` is refused; a call without progress for ``still_seconds`` does not count.
    Raises UserError when the address or the credentials cannot be used."""

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        journals: Callable[[], Mapping[str, Log]],
        counters: Callable[[], list[dict[str, Any]]] = list,
        acked: Callable[[Log], int] = lambda journal: journal.acked,
        minute_ago: Callable[[str], ProgressSample | None] = lambda _journal: None,
        may_tap: Callable[[str], bool] = lambda _flow: True,
        granted: Granted = granted_nothing,
        keystore: Keystore | None = None,
        replicas: Replicas | None = None,
        actions: Actions = NO_ACTIONS,
        watches_at_once: int = 64,
        reads_at_once: int = 64,
        still_seconds: float = 120.0,
    ) -> None:
        self._journals = journals
        self._actions = actions
        self._replicas = replicas
        self._acked = acked
        self._minute_ago = minute_ago
        self._taps = Taps(may_tap)
        self._answers: Mapping[str, Callable[[Peer], object]] = {
            wire.POSITIONS: self._positions,
            wire.ACCOUNTS: lambda _: self._accounts(),
            wire.REPLICAS: lambda _: replicas.ends if replicas else {},
            wire.COUNTERS: lambda _: counters(),
        }
        self._watches: set[Watch] = set()
        self._watching = Places(watches_at_once, still_seconds, each=PEER_SHARE)
        self._reading = Places(reads_at_once, still_seconds, each=PEER_SHARE)
        super().__init__(host, port, keystore, granted)

    def end(self) -> None:
        super().end()
        for watch in list(self._watches):
            watch.end()

    def act(self, peer: Peer, context: Any, action: str, body: bytes) -> Iterator[bytes]:
        if action == wire.WATCH:
            peer.require(wire.WATCH)
            return self._watch(peer, context, parse_request(body))
        answer = self._answers.get(action)
        if answer is None and action not in self._actions:
            names = ", ".join([*self._answers, *self._actions, wire.WATCH])
            raise UserError(f"there is no action {action!r}, only {names}")
        peer.require(action)
        answered = self._actions[action](body) if answer is None else answer(peer)
        return iter([msgspec.json.encode(answered)])

    def read(
        self, peer: Peer, access: Access, ticket: bytes
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        request = wire.parse_ticket(ticket)
        access.require_read(peer, request)
        return wire.FRAMES_SCHEMA, _batches(self._windows(peer, request), self.ended)

    def exchange(self, peer: Peer, reader: Any, writer: Any) -> None:
        peer.require(REPLICA)
        if self._replicas is None:
            raise UserError("this process holds no replicas")
        self._replicas.serve_replicas(peer, reader, writer)

    def _windows(self, peer: Peer, ticket: Ticket) -> Iterator[Window]:
        if ticket.tapped:
            self._taps.admit(ticket.journal)
        journal = self._journals().get(ticket.journal)
        if journal is None:
            raise NotServedError(f"journal {ticket.journal} is not served by this node")
        if ticket.tapped:
            return self._taps.windows(journal, ticket.start, ticket.end)
        windows = self._counted(peer, journal.read_frames(ticket.start, ticket.end))
        return aligned(windows, journal.id, ticket.start) if ticket.aligned else windows

    def _watch(self, peer: Peer, context: Any, request: WatchRequest) -> Iterator[bytes]:
        unseen = [name for name in request.journals if not peer.sees(name)]
        if unseen:
            raise DeniedError(f"{peer.identity} may not watch the journal {unseen[0]}")
        watch, ended = Watch(self._journals, request), self.ended
        self._watches.add(watch)  # before the check, so that a stopping server ends it
        lasting = not ended.is_set() and self._watching.take(watch, peer.key)
        try:
            for answer in watch.answers(once=not lasting, gone=context.is_cancelled):
                yield msgspec.json.encode(answer)
                if lasting:
                    self._watching.moved(watch)
        finally:
            self._watches.discard(watch)
            self._watching.leave(watch)

    def _positions(self, peer: Peer) -> dict[str, Position]:
        return {
            name: Position.of(journal)
            for name, journal in self._journals().items()
            if peer.sees(name)
        }

    def _accounts(self) -> dict[str, Account]:
        journals, until = self._journals(), time.monotonic() + ACCOUNT_SECONDS
        return {
            name: _account(
                journal,
                self._acked(journal),
                self._minute_ago(name),
                reads=time.monotonic() < until,
            )
            for name, journal in journals.items()
        }

    def _counted(self, peer: Peer, windows: Iterator[Window]) -> Iterator[Window]:
        if not self._reading.take(windows, peer.key):
            most = self._reading.count
            raise UnavailableError(f"{most} reads run here already, or too many are yours")
        try:
            for window in windows:
                yield window
                self._reading.moved(windows)
        finally:
            self._reading.leave(windows)


def _batches(windows: Iterator[Window], ended: threading.Event) -> Iterator[pa.RecordBatch]:
    for window in windows:
        if ended.is_set():
            raise UnavailableError("the journal server is stopping")
        yield batch_of(window)


def _account(journal: Log, acked: int, past: ProgressSample | None, *, reads: bool) -> Account:
    """Return a journal's account; with ``reads``, read the oldest unacked event for its time."""
    safe, readable = journal.safe, journal.readable
    return Account(
        term=journal.term,
        durability=journal.durability,
        floor=journal.floor,
        acked=acked,
        safe=safe,
        bytes=journal.bytes,
        max_bytes=journal.limits.max_bytes,
        lost=journal.lost,
        waits_at=readable if readable < safe else None,
        closed=journal.closed,
        oldest_unacked_us=received_us(journal, acked) if reads and acked < readable else None,
        acked_minute_ago=past.acked if past else None,
        safe_minute_ago=past.safe if past else None,
        lags=journal.lags,
        sizes=journal.sizes,
        problem=journal.cipher.problem,
    )


def received_us(journal: Log, seq: int) -> int | None:
    try:
        frames = (frame for window in journal.read_frames(seq, seq + 1) for frame in window)
        for _, batch in reading.cut(frames, journal.id, seq, seq + 1):
            return int(batch.column("ts")[0].value)
    except (FlumengError, OSError):
        pass
    return None
