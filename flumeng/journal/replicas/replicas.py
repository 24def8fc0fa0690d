"""The replicated journals of an ingest worker: those it writes, and replicas of other nodes'
journals. The node's first worker holds the replicas, and serves those that become primaries."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from flumeng.events.journal_names import is_journal
from flumeng.journal.log.disk import Disk
from flumeng.journal.log.errors import DeniedError
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.replica import Replica, set_aside
from flumeng.journal.log.replica_journal import ReplicaJournal
from flumeng.journal.log.segment import Window
from flumeng.journal.replicas.links import Links, Throttle
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.journal.replication import messages
from flumeng.journal.replication.membership import Membership, node_of
from flumeng.journal.replication.messages import ToFollower, ToPrimary
from flumeng.journal.serving import replica_wire
from flumeng.journal.serving.access import Peer
from flumeng.journal.serving.replica_wire import Envelope
from flumeng.journal.serving.wire import FRAMES_SCHEMA, frames_of
from flumeng.platform.backoff import RetryTimer
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError, UserError
from flumeng.platform.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

Message = dict[str, Any]
"""A message to the node process over the pipe."""

LOOK_SECONDS = 0.5
BYTES_PER_SECOND = 8 << 20
AGAIN_SECONDS = 10.0
"""Seconds from the end of a scrub until the journals that failed it are read again."""
_SET_ASIDE = "replica %s is damaged and kept as %s; its primary recreates it, if there is one: %s"


class Replicas:
    """The replicated journals of one process. Thread-safe."""

    def __init__(
        self,
        node: str,
        replicas: Path | None = None,
        disk: Disk | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open all replicas in the directory. Raises OSError."""
        self.journals: Mapping[str, ReplicatedJournal] = {}
        self.send: Callable[[Message], None] = lambda _: None
        self._node, self._replicas, self._disk = node, replicas, disk or Disk()
        self._clock = clock
        self._lock = threading.RLock()
        self._records: dict[str, tuple[Membership, int, int]] = {}
        self._addresses: Mapping[str, str] = {}
        self._proposals: dict[str, Message] = {}
        self._changed = threading.Event()
        self._stopping = False
        self._throttle = Throttle()
        self._scrubber = Scrubber(lambda: list(self.journals.values()))
        self._links = Links(lambda name: self._addresses.get(name, ""), self._throttle)
        self._refusals = RateLimitedLog(log)
        self._failures: dict[str, RateLimitedLog] = {}
        self._stored: set[str] = set()
        self._to_begin: set[str] = set()
        """Journals whose replica here is damaged; their primaries are asked to begin again."""
        self._backoffs: dict[str, RetryTimer] = {}
        """By journal: delays a new replica after damage, since a bad disk may damage it too."""
        if replicas is not None:
            replicas.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path in Journal.find(replicas):
                self._open(path)

    def _open(self, path: Path) -> None:
        """Open a replica; a damaged one is renamed, and the primary makes another."""
        try:
            try:
                self.add(ReplicaJournal.load(path, disk=self._disk), closes=True)
            except CorruptError as error:
                log.error(_SET_ASIDE, path.name, set_aside(path), error)
                return
        except (FlumengError, OSError) as error:
            log.error("replica %s is not used until a restart: %s", path.name, error)
        else:
            self._stored.add(path.name)

    @property
    def replicas(self) -> dict[str, str]:
        """The ids of all opened replicas in the directory by journal, also of damaged ones."""
        with self._lock:
            return {name: self.journals[name].replica_id for name in sorted(self._stored)}

    @property
    def ends(self) -> dict[str, int]:
        with self._lock:
            return {name: self.journals[name].next_seq for name in sorted(self._stored)}

    def start(self, send: Callable[[Message], None]) -> None:
        self.send = send
        threading.Thread(target=self._run, name="replicas", daemon=True).start()
        self._scrubber.start()

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()
        self._scrubber.stop()
        self._links.close()
        with self._lock:
            stored = [self.journals[name] for name in self._stored]
        for journal in stored:
            try:
                journal.close()
            except FlumengError as error:
                log.error("replica %s is not closed cleanly: %s", journal.id, error)

    def add(self, opened: ReplicaJournal, *, closes: bool = False) -> ReplicatedJournal:
        journal = ReplicatedJournal(opened, self, closes=closes)
        with self._lock:
            self.journals = {**self.journals, journal.id: journal}
            record = self._records.get(journal.id)
        if record is not None:
            journal.set_membership(*record)
        return journal

    def forget(self, name: str) -> None:
        with self._lock:
            self.journals = {key: value for key, value in self.journals.items() if key != name}
            self._records.pop(name, None)
            self._stored.discard(name)
            self._to_begin.discard(name)
            self._backoffs.pop(name, None)
        self._links.forget(name)

    def set_memberships(self, message: Mapping[str, Any]) -> None:
        """Apply a message of the node process: memberships of journals, and addresses of nodes."""
        self._addresses = message["addresses"]
        for name, document in message["journals"].items():
            version, created = int(document["version"]), int(document["created"])
            record = (Membership.from_message(document), version, created)
            with self._lock:
                self._records[name] = record
            journal = self.journals.get(name)
            if journal is not None:
                try:
                    journal.set_membership(*record)
                except (FlumengError, OSError) as error:
                    log.error("journal %s cannot act on its new record: %s", name, error)

    def _set_aside_if_damaged(self, name: str, journal: ReplicatedJournal) -> None:
        """Rename a damaged replica, unless it leads or may be the last one. Raises OSError."""
        if not journal.damaged or journal.leads:
            return
        with self._lock:
            if name not in self._stored:
                return
            self._to_begin.add(name)
        aside = journal.set_aside_damaged()
        if aside is None:
            return
        with self._lock:
            self.journals = {n: replica for n, replica in self.journals.items() if n != name}
            self._stored.discard(name)
            self._backoffs.setdefault(name, RetryTimer()).begin(self._clock())
        log.error(_SET_ASIDE, name, aside, journal.damaged)

    def drop(self, name: str) -> None:
        journal = self.journals.get(name)
        if name not in self.replicas:
            return
        self.forget(name)
        if journal is not None:
            journal.remove()
        log.info("replica %s is deleted: this node no longer holds it", name)

    # Sending, for the protocol.

    def proposal(self, journal: str, version: int, membership: Membership) -> None:
        change = {"version": version, **membership.as_message()}
        with self._lock:
            self._proposals[journal] = {"type": "proposal", "journal": journal, **change}
        self._changed.set()

    def post(self, node: str, journal: ReplicatedJournal, message: ToFollower) -> None:
        self._links.send(node, journal, message)

    def took(self, nbytes: int) -> None:
        self._throttle.took(nbytes, self._clock())

    def alive_at(self, node: str) -> float:
        return self._links.alive_at(node)

    def _run(self) -> None:
        while not self._stopping:
            self._changed.wait(LOOK_SECONDS)
            self._changed.clear()
            with self._lock:
                proposals, self._proposals = self._proposals, {}
            for proposal in proposals.values():
                self.send(proposal)
            now = self._clock()
            for name, journal in self.journals.items():
                self._try(f"journal {name}: periodic work failed", journal.tick, now)
                self._try(
                    f"replica {name} is damaged and cannot be set aside",
                    *(self._set_aside_if_damaged, name, journal),
                )

    def _try(self, failure: str, work: Callable[..., None], *arguments: Any) -> None:
        """Do periodic work; log a failure at most once a minute, with a traceback if unexpected."""
        try:
            work(*arguments)
        except Exception as error:
            rare = self._failures.setdefault(failure, RateLimitedLog(log))
            unexpected = not isinstance(error, (FlumengError, OSError))
            rare.warning("%s, and is tried again: %s", failure, error, exc_info=unexpected)

    # Messages of primaries elsewhere to the replicas here.

    def serve_replicas(self, peer: Peer, reader: Any, writer: Any) -> None:
        begun = False
        while not self._stopping:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            metadata = chunk.app_metadata.to_pybytes()
            if metadata == replica_wire.PING:
                answers = [pa.py_buffer(metadata), *self._unmatched()]
            else:
                envelope = replica_wire.decode(metadata)
                replies = self._answers(peer, envelope, chunk.data)
                answers = [
                    replica_wire.buffer(Envelope(envelope.journal, answer)) for answer in replies
                ]
            for answer in answers:
                if not begun:
                    writer.begin(FRAMES_SCHEMA)
                    begun = True
                writer.write_metadata(answer)

    def _unmatched(self) -> list[pa.Buffer]:
        with self._lock:
            terms = {n: self._records[n][0].term for n in self._to_begin if n in self._records}
        return [
            replica_wire.buffer(Envelope(n, messages.Unmatched(term, "")))
            for n, term in terms.items()
        ]

    def _answers(self, peer: Peer, envelope: Envelope, data: Any) -> list[ToPrimary]:
        message = envelope.message
        if not isinstance(message, messages.Begin | messages.Frames | messages.Reset):
            raise UserError("only primaries of journals may send messages to replicas")
        try:
            membership = self._require_held(envelope.journal)
            if message.term < membership.term:
                return [messages.Refused(membership.term)]
            _require_primary(peer, envelope.journal, message, membership)
            frames = list(frames_of(data, "a primary")) if data is not None and len(data) else []
            journal = self.journals.get(envelope.journal) or self._make(envelope)
            if journal is None:  # it was lost since
                return [messages.Unmatched(message.term, "")]
            return journal.take(message, frames, envelope.state or {}, envelope.key)
        except (FlumengError, OSError) as error:
            self._refusals.warning("replica %s refuses a message: %s", envelope.journal, error)
            return []

    def _require_held(self, name: str) -> Membership:
        """Return a journal's membership. Raises DeniedError unless it includes this node."""
        membership, *_ = self._records.get(name, (None,))
        if membership is None or self._node not in membership.nodes:
            raise DeniedError(f"no record here yet of a replica of {name[:100]} on this node")
        return membership

    def _make(self, envelope: Envelope) -> ReplicatedJournal | None:
        """Make the replica for a Begin, None for others. Raises UserError, UnavailableError."""
        name, message = envelope.journal, envelope.message
        if not isinstance(message, messages.Begin):
            return None
        if self._replicas is None or not is_journal(name):
            raise UserError(f"no journal {name[:100]!r} can have a replica here")
        with self._lock:
            if name in self.journals:
                return self.journals[name]
            if name in self._backoffs and not self._backoffs[name].is_due(self._clock()):
                raise UnavailableError(
                    f"replica of journal {name}: a damaged one is replaced a little later"
                )
            replica = Replica.new(self._node, message.lineage)
            opened = ReplicaJournal.make(
                self._replicas,
                name,
                replica,
                base=message.log.floor,
                state=envelope.state or {},
                disk=self._disk,
            )
            self._stored.add(name)
            self._to_begin.discard(name)
            log.info("made a replica of journal %s, from seq %d on", name, message.log.floor)
            return self.add(opened, closes=True)


def _require_primary(peer: Peer, name: str, message: ToFollower, membership: Membership) -> None:
    """Raise DeniedError for another lineage, or a certificate not of the primary's node."""
    if isinstance(message, messages.Begin) and message.lineage != membership.lineage:
        raise DeniedError(f"journal {name} has lineage {membership.lineage}, not {message.lineage}")
    if peer.identity and peer.identity.name != node_of(membership.primary):
        raise DeniedError(f"{peer.identity} is not the primary of journal {name}")


class Scrubbed(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def is_suspect(self) -> bool: ...

    def scrub(self) -> Iterator[Window]: ...


@dataclass
class Scrubber:
    journals: Callable[[], Sequence[Scrubbed]]
    pass_seconds: float = 3600.0
    again_seconds: float = AGAIN_SECONDS
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)

    def start(self) -> None:
        threading.Thread(target=self._run, name="scrubber", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def scrub(self) -> Iterator[float]:
        """Read all in random order, suspects twice; yield the seconds to wait after each part."""
        journals = self.journals()
        for journal in random.sample(journals, len(journals)):
            yield from _look_at(journal)
        if suspects := [journal for journal in journals if journal.is_suspect]:
            yield self.again_seconds
            for journal in suspects:
                yield from _look_at(journal)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            for seconds in self.scrub():
                if self._stopping.wait(seconds):
                    return
            self._stopping.wait(began + self.pass_seconds - time.monotonic())


def _look_at(journal: Scrubbed) -> Iterator[float]:
    try:
        for window in journal.scrub():
            yield window.buffer.size / BYTES_PER_SECOND
    except (FlumengError, OSError) as error:
        log.warning("journal %s cannot be scrubbed now: %s", journal.id, error)
    except Exception:
        log.exception("journal %s cannot be scrubbed", journal.id)
