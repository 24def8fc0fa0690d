"""One replica of a replicated journal, as its primary or as a follower.

It executes the steps of ``flumeng.journal.replication``: on disk, by messages to other nodes, and
by proposals to the node process, which accesses ZooKeeper. The membership record in ZooKeeper makes
it the primary. Calls come from the group commit, the links and the worker; a lock orders them. Code
that holds the lock waits only for the local disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from flumeng.journal.log.checkpoint import term_by_time
from flumeng.journal.log.delegated_log import DelegatedLog
from flumeng.journal.log.errors import DataLossError, HeldError, JournalFailedError, NotServedError
from flumeng.journal.log.frame import FrameHeader, Payload, identity
from flumeng.journal.log.journal_cipher import KeyReference
from flumeng.journal.log.replica_journal import ReplicaJournal
from flumeng.journal.log.segment import Window
from flumeng.journal.replicas.replica_lag import ReplicaLag
from flumeng.journal.replicas.replica_on_disk import ReplicaOnDisk
from flumeng.journal.replication import follower, primary
from flumeng.journal.replication.follower import Follower
from flumeng.journal.replication.membership import Membership, node_of
from flumeng.journal.replication.messages import Begin, Frames, Refused, ToFollower, ToPrimary
from flumeng.journal.replication.primary import Primary
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError, UserError

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 2.0


class Transport(Protocol):
    """Sends messages to other replicas and proposals for ZooKeeper. Never blocks."""

    def post(self, node: str, journal: ReplicatedJournal, message: ToFollower) -> None: ...
    def proposal(self, journal: str, version: int, membership: Membership) -> None: ...
    def took(self, nbytes: int) -> None:
        """Report the size of appended events, for the throttle."""

    def alive_at(self, node: str) -> float:
        """Return when the node last answered, by the monotonic clock; -inf if never."""


class ReplicatedJournal(DelegatedLog):
    """A ``Log`` and an ``Appendable``. With ``closes`` it accepts no events, even as the primary.
    After close or remove it ignores messages: its descriptors may be other files. A damaged
    follower accepts nothing; a damaged primary continues until another replica leads."""

    def __init__(
        self,
        journal: ReplicaJournal,
        transport: Transport,
        *,
        closes: bool = False,
        clock: Callable[[], float] = time.monotonic,
        least_term: Callable[[], int] = term_by_time,
    ) -> None:
        self.id = journal.id
        self._needs_in_sync = 1
        self._disk = ReplicaOnDisk(journal)
        self._transport = transport
        self._lock = threading.RLock()
        self.listeners = journal.listeners
        self.closes = closes
        self._clock = clock
        self._least_term = least_term
        self._done = False
        self._role: Follower | Primary = self._disk.as_replica
        self._membership: Membership | None = None
        self._version = self._created = -1
        self._lag = ReplicaLag()
        self._asked_at = 0.0
        self._lost_lead = False
        self.superseded = False
        self._suspected: ReplicaJournal | None = None
        self.older = ""
        """Why this replica may lack events of another in-sync replica, or an empty string."""
        self._primary_is_there = False
        self._wake: Callable[[], None] = lambda: None

    @property
    def _journal(self) -> ReplicaJournal:  # type: ignore[override]
        return self._disk.journal

    @property
    def damaged(self) -> str:
        return self._disk.damaged

    # The replication protocol.

    @property
    def leads(self) -> bool:
        return isinstance(self._role, Primary)

    @property
    def replica_id(self) -> str:
        return self._journal.replica.id

    @property
    def lineage(self) -> str:
        return self._journal.replica.lineage

    @property
    def lags(self) -> Mapping[str, int]:
        """The events that each replica on another node lacks; known to the primary only."""
        role = self._role
        if not isinstance(role, Primary):
            return {}
        return {node: role.log.end - peer.end for node, peer in role.peers.items()}

    def require_in_sync(self, replicas: int) -> None:
        """Accept events only while that many replicas are in sync."""
        with self._lock:
            self._needs_in_sync = replicas
            if isinstance(self._role, Primary):
                self._do_primary(replace(self._role, min_in_sync=self._min_in_sync), [])

    def set_membership(self, membership: Membership, version: int, created: int) -> None:
        """Apply ZooKeeper's membership record, unless older; ``created`` identifies the znode."""
        with self._lock:
            if self._done:
                return
            if created != self._created:
                self._created, self._version = created, -1
                self._begin_again()
            if version < self._version:
                return
            self._membership, self._version = membership, version
            if isinstance(self._role, Primary):
                self._do_primary(*primary.changed(self._role, membership, version))
            self.superseded = node_of(membership.primary) != node_of(self.replica_id)
            if self.superseded:
                self._wake()
            self._lead_if_chosen()

    def _begin_again(self) -> None:
        """Become a follower, as at a start: the versions of a recreated record start over."""
        if isinstance(self._role, Primary):
            log.warning("journal %s: its record was recreated; it waits to lead again", self.id)
            if self._journal.sound:
                self._disk.sync()
            self._role = self._disk.as_replica

    def receive(self, node: str, message: ToPrimary) -> None:
        with self._lock:
            self._lag.received(node, self._clock())
            if isinstance(self._role, Primary) and not self._done:
                self._do_primary(*primary.received(self._role, node, message))

    def take(
        self,
        message: ToFollower,
        frames: list[pa.Buffer],
        state: Mapping[str, object],
        key: KeyReference | None = None,
    ) -> list[ToPrimary]:
        """Execute a primary's message; return answers. Raises HeldError, CorruptError, OSError."""
        with self._lock:
            if self._done:
                return []
            if isinstance(self._role, Primary):
                if message.term <= self._role.term:
                    return [Refused(self._role.term)]
                self._step_down()
            if self.damaged or self._disk.has_failed:
                self._primary_is_there = bool(self.damaged)
                return []
            replica = self._role
            assert isinstance(replica, Follower)
            if isinstance(message, Begin):
                if key is not None and message.term >= replica.term:
                    self.cipher.adopt(key)
                if not replica.matched or message.term > replica.term:
                    self._disk.sync()
                step = follower.begin(replica, message)
            elif isinstance(message, Frames):
                step = follower.take(replica, message)
            else:
                step = follower.reset(replica, message)
            return self._do_replica(*step, frames, state)

    def tick(self, now: float) -> None:
        """Do periodic work: remove late replicas from the in-sync set, repeat messages and
        proposals, and retry a failed disk. Raises FlumengError, OSError."""
        with self._lock:
            if self._done:
                return
            # An appending primary's failure is detected and handled by its group commit.
            failed = self._disk.has_failed and not self.damaged
            if failed and (self.closes or not self.leads) and self._disk.reopen(now):
                self._role = self._disk.as_replica
            role = self._role
            if not isinstance(role, Primary):
                if now - self._asked_at > ASK_AGAIN_SECONDS:
                    self._lead_if_chosen()
                return
            for node in role.peers:
                if self._lag.is_late(role, node, now, self._transport.alive_at(node)):
                    self._step(primary.late, node)
                elif self._lag.lacks_an_answer(role, node, now):
                    self._step(primary.resend, node)
                elif self._lag.lacks_news(role, node, now):
                    self._step(primary.send_checkpoint, node)
            if role.asked and now - self._asked_at > ASK_AGAIN_SECONDS:
                self._step(primary.retry_change)

    def is_catching_up(self, node: str) -> bool:
        """Return whether this primary's replica on ``node`` is neither in sync nor joining."""
        role = self._role
        if not isinstance(role, Primary):
            return False
        peer = role.peers.get(node)
        return peer is not None and peer.replica not in role.counted

    def reconnected(self, node: str) -> bool:
        """Repeat messages to ``node``; return whether this is a primary with a replica there."""
        with self._lock:
            self._step(primary.resend, node)
            return isinstance(self._role, Primary) and node in self._role.peers

    def frames(self, start: int, end: int) -> Iterator[Window]:
        """Yield written frames for a ``Frames`` message, synced or not."""
        return self._noticed(self._journal.written_frames(start, end))

    def read_frames(self, start: int, end: int) -> Iterator[Window]:
        """As ``Journal.read_frames``; UnavailableError when another replica should be read."""
        return self._noticed(self._journal.read_frames(start, end))

    def _noticed(self, windows: Iterator[Window]) -> Iterator[Window]:
        try:
            yield from windows
        except CorruptError as error:
            if not self.leads:
                raise NotServedError(
                    f"journal {self.id}: this replica is damaged or no primary, read another"
                ) from error
            if isinstance(error, DataLossError):
                raise
            self.mark_damaged(str(error))
            if self._others_in_sync:
                raise UnavailableError(
                    f"{error}; this replica is damaged, and another one in sync must lead"
                ) from error
            raise

    def mark_damaged(self, why: str) -> None:
        with self._lock:
            if self.damaged or self._done:
                return
            self._disk.damaged = why
        others = "another one must lead" if self._others_in_sync else "no other one is in sync"
        others = others if self.leads else "its primary recreates it, if there is one"
        log.error("the replica of journal %s here is damaged; %s: %s", self.id, others, why)

    def scrub(self) -> Iterator[Window]:
        """Read and verify all synced data. After a failure ``is_suspect`` holds; a second one in a
        row marks the replica as damaged. Raises OSError, UserError for a newer format."""
        journal = self._journal
        is_second, self._suspected = self.is_suspect, None
        try:
            yield from journal.scrub()
        except CorruptError as error:
            with self._lock:
                if self._journal is not journal or self._disk.has_failed:
                    return  # it was cut meanwhile, or has to be reopened
                if is_second:
                    self.mark_damaged(str(error))
                else:
                    self._suspected = journal

    @property
    def is_suspect(self) -> bool:
        return self._suspected is self._journal

    @property
    def is_older(self) -> bool:
        """Whether another replica should lead, because this one may lack events."""
        return bool(self.older) and self._others_in_sync

    @property
    def is_alone(self) -> bool:
        membership = self._membership
        return membership is not None and membership.in_sync == (self.replica_id,)

    @property
    def _others_in_sync(self) -> bool:
        membership = self._membership
        return membership is not None and len(membership.in_sync) > 1

    def end_of(self, frame: pa.Buffer) -> int:
        return FrameHeader.unpack(frame, 0, identity(self.id)).end

    def part_of(self, message: Frames, start: int, end: int) -> Frames:
        role = self._role
        current = isinstance(role, Primary) and role.term == message.term
        return message._replace(
            start=start,
            end=end,
            terms=role.log.terms(start, end) if current else message.terms,
            checkpoint=role.checkpoint if isinstance(role, Primary) and current else 0,
            acked=role.acked if isinstance(role, Primary) and current else 0,
        )

    @property
    def source_state_at_floor(self) -> Mapping[str, object]:
        return self._journal.source_state_at_floor

    def cut(self, end: int) -> int:
        """Remove events from ``end`` on, where another node ended the journal; return how many."""
        with self._lock:
            with self._disk.writing():
                gone = self._disk.cut(end)
            self._role = self._disk.as_replica
            return gone

    def _step(self, step: Callable[..., primary.Step], *arguments: object) -> None:
        if isinstance(self._role, Primary) and not self._done:
            self._do_primary(*step(self._role, *arguments))

    def _lead_if_chosen(self) -> None:
        """If ZooKeeper names this replica: become the primary in a later term, or propose that
        term. Called repeatedly, since a proposal may be lost or the disk full."""
        replica, membership = self._role, self._membership
        if isinstance(replica, Primary) or self._lost_lead or membership is None:
            return
        if membership.primary != replica.id or self.is_older or self._disk.has_failed:
            return
        self._asked_at = self._clock()
        if membership.term > replica.term:
            self._lead(replica, membership, self._version)
        else:
            current = replace(membership, term=replica.term)
            restarted = current.restarted(self._least_term())
            self._transport.proposal(self.id, self._version, restarted)

    def _lead(self, replica: Follower, membership: Membership, version: int) -> None:
        self._disk.lead(membership.term, membership.lineage, closes=self.closes)
        held, checkpoint = self._journal.held, self._journal.replica.checkpoint
        log.info("journal %s is primary here: term %d, seq %d", self.id, membership.term, held.end)
        started = primary.started(
            replica.id, held, checkpoint, membership, version, min_in_sync=self._min_in_sync
        )
        self._lag.begin()
        self._do_primary(*started)

    @property
    def _min_in_sync(self) -> int:
        return 1 if self._journal.closed else self._needs_in_sync

    def _step_down(self) -> None:
        log.warning("journal %s: another replica leads; pending events get no answer", self.id)
        self._lost_lead = not self.closes
        self.superseded = True
        if self._journal.sound:
            self._disk.sync()
        self._role = self._disk.as_replica
        self._wake()

    def _do_primary(self, state: Primary, actions: list[primary.Action]) -> None:
        before, self._role = self._role, state
        for action in actions:
            if isinstance(action, primary.Change):
                self._asked_at = self._clock()
                self._transport.proposal(self.id, action.version, action.membership)
            else:
                self._transport.post(action.node, self, action.message)
        if state.over:
            self._step_down()
            return
        self._journal.advance(state.checkpoint)
        took = isinstance(before, Primary) and before.takes
        if (before.checkpoint, took) != (state.checkpoint, state.takes):
            self._wake()

    def _do_replica(
        self,
        state: Follower,
        actions: list[follower.Action],
        frames: list[pa.Buffer],
        source_state: Mapping[str, object],
    ) -> list[ToPrimary]:
        """Do a follower's actions; return the replies. After errors its state is read from disk."""
        replies: list[ToPrimary] = []
        wrote = False
        try:
            with self._disk.writing():
                for action in actions:
                    if isinstance(action, follower.Reply):
                        replies.append(action.message)
                    else:
                        state = self._carry_out(state, action, frames, source_state)
                        wrote |= isinstance(action, follower.Write)
                if wrote:
                    self._disk.sync()
        except (FlumengError, OSError):
            self._role = self._disk.as_replica
            raise
        self._role = state
        if wrote:
            self._disk.wrote()
            self._role, answers = follower.synced(state, self._journal.next_seq)
            replies += [answer.message for answer in answers if isinstance(answer, follower.Reply)]
        return replies

    def _carry_out(
        self,
        state: Follower,
        action: follower.Action,
        frames: list[pa.Buffer],
        source_state: Mapping[str, object],
    ) -> Follower:
        if isinstance(action, follower.Fence):
            self._journal.fence(action.term)
        elif isinstance(action, follower.Cut):
            self._disk.cut(action.end)
        elif isinstance(action, follower.Restart):
            self._disk.restart(action.floor, action.lineage, source_state)
        elif isinstance(action, follower.Write):
            self._disk.append(action, frames)
        elif isinstance(action, follower.Keep):
            self._journal.advance(action.checkpoint)
            self._journal.trim(action.acked)
            return follower.trimmed(state, self._journal.floor)
        return state

    # The log, for group commits, servers and stores.

    def append(self, batch: pa.RecordBatch, state: Mapping[str, object] | None = None) -> int:
        return self.append_encoded(self.encode(batch, state))

    def encode(self, batch: pa.RecordBatch, state: Mapping[str, object] | None = None) -> Payload:
        return Payload.encode(batch, state)

    def append_encoded(self, payload: Payload) -> int:
        """As ``Journal.append_encoded``. Raises HeldError before this replica is the primary, or
        with too few in-sync replicas; JournalFailedError once another one is the primary."""
        with self._lock:
            role = self._require_lead()
            if not role.takes:
                few = (
                    f"{len(role.membership.in_sync)} replicas in sync, {role.min_in_sync} are "
                    "needed"
                )
                raise HeldError(f"journal {self.id}: {few}", few)
            seq = self._journal.append_encoded(payload)
            if self._journal.next_seq > role.log.end:
                self._do_primary(*primary.appended(role, self._journal.next_seq))
                self._transport.took(payload.message.size)
            return seq

    def sync(self) -> int:
        """Sync this replica and return its end; ``confirms`` covers the other replicas."""
        end = self._journal.next_seq
        self._disk.sync()
        with self._lock:
            self._step(primary.synced, end)
        return end

    def confirms(self, end: int) -> bool:
        """Return whether enough replicas are in sync and all have the events below ``end``; False
        before this replica leads. Raises JournalFailedError when another one is the primary."""
        with self._lock:
            try:
                role = self._require_lead()
            except HeldError:
                return False
            return role.takes and role.answered >= end

    def on_confirmed(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._wake = wake
            if self.superseded:  # it was superseded before the callback was set
                wake()

    def _require_lead(self) -> Primary:
        role = self._role
        if isinstance(role, Primary):
            return role
        if self._lost_lead or self.superseded:
            raise JournalFailedError(f"journal {self.id}: another replica is the primary")
        why = self.older if self.is_older else "ZooKeeper has not confirmed it"
        why = f"not the primary yet: {why}"
        raise HeldError(f"journal {self.id}: {why}", why)

    def maintain(self) -> None:
        """Do periodic work on disk. Raises JournalFailedError when another replica is the primary,
        so that senders notice early."""
        if self.superseded:
            self._require_lead()
        self._journal.maintain()
        self._trimmed()

    def trim(self, ack: int) -> None:
        self._journal.trim(ack)
        self._trimmed()

    def _trimmed(self) -> None:
        with self._lock:
            self._step(primary.trimmed, self._journal.acked, self._journal.floor)

    def close_for_appends(self) -> int:
        with self._lock:
            if not isinstance(self._role, Primary):
                raise UserError(f"journal {self.id} is not closed: this replica is not the primary")
            end = self._journal.close_for_appends()
            self._step(primary.synced, end)
            self.require_in_sync(self._needs_in_sync)
            return end

    def close(self) -> None:
        with self._lock:
            self._done = True
            self._disk.close()

    def remove(self) -> None:
        with self._lock:
            self._done = True
            self._disk.remove()

    def set_aside_damaged(self) -> Path | None:
        """Rename a damaged replica, as evidence, and return the path. None while it leads or may be
        the last one: usable, and the chosen primary or without a primary's message since."""
        with self._lock:
            membership = self._membership
            chosen = membership is not None and membership.primary == self.replica_id
            needed = self._journal.sound and (chosen or not self._primary_is_there)
            if not self.damaged or self._done or self.leads or needed:
                return None
            return self.set_aside()

    def set_aside(self) -> Path:
        """Rename a damaged replica's directory and return its path. Raises OSError."""
        with self._lock:
            aside = self._disk.set_aside()
            self._done = True
            return aside

    @property
    def closed(self) -> bool:
        return self._journal.closed or self._lost_lead or self.superseded

    @property
    def restless(self) -> bool:
        return self._journal.restless or self.superseded
