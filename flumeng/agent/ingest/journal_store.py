"""A worker's journals on this node's disk: those that take events, and those that are only served.

A journal that cannot be opened stays as it is, and its flow gets no other in its place: that would
hide the damage, and a tail source would read everything again.

Each worker has a directory of its own, ``journals/NUMBER``. The first worker also serves what
workers left that the node has no more; it closes those journals for appends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from flumeng.agent.ingest.batch import NO_EVENTS
from flumeng.agent.ingest.earlier_journals import EarlierJournals
from flumeng.agent.ingest.shared_room import SharedRoom
from flumeng.agent.ingest.source_states import SourceStates
from flumeng.agent.ingest.worker_group import ALONE, WorkerGroup
from flumeng.events.journal_names import flow_of, is_journal, maker_of, new_id
from flumeng.journal.log.checkpoint import Durability
from flumeng.journal.log.contract import Log
from flumeng.journal.log.disk import TimedDisk
from flumeng.journal.log.encryption import Keyring
from flumeng.journal.log.errors import JournalFailedError
from flumeng.journal.log.inspection import inspect, state_after
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.journal_cipher import KeyReference
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.log.replica import Replica, set_aside
from flumeng.journal.log.replica import exists as is_replica
from flumeng.journal.log.replica_journal import ReplicaJournal
from flumeng.journal.replicas.replicas import Replicas
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.platform.errors import CorruptError, FlumengError, UnavailableError, UserError

log = logging.getLogger(__name__)

PREDECESSOR_SECONDS = 10.0
"""How long another process, which is ending, may hold the journals when this one starts."""

_RETRY_SECONDS = 0.1


class Ended(NamedTuple):
    """Another copy has become the primary of a journal of ours, and ended it at ``end``; ``gone``
    when nobody has its events any more."""

    end: int
    gone: bool


class JournalStore:
    """Blocking, for any thread. ``journals`` is replaced and never changed.

    A journal that is taken belongs to the flow that writes it until it is given back. ``sources``
    is where sources go on that is in no journal.
    """

    def __init__(
        self,
        data: Path,
        node: str,
        group: WorkerGroup = ALONE,
        max_bytes: int | None = None,
        opened: Callable[[], None] = lambda: None,
        *,
        replicas: Replicas | None = None,
    ) -> None:
        """Open everything that is ours in the node's data directory.

        ``max_bytes`` bounds what all journals of the node hold on disk; a worker has an equal part
        of it. ``opened`` is called after each journal. ``replicas`` knows those that are
        replicated. Raises UserError when that cannot be used.
        """
        self.journals: Mapping[str, Log] = {}
        self._lock = threading.RLock()
        self.disk = TimedDisk()
        self.replicas = replicas or Replicas(node)
        self.earlier = EarlierJournals(lambda: self.journals, self.replicas)
        self._journals = data / "journals"
        self._node = node
        self._group = group
        self._taken: set[str] = set()
        self._limited: set[str] = set()  # what was taken once, and so knows what to retain
        self._early_acks: dict[str, int] = {}
        self._broken: set[str] = set()
        self._ended: Mapping[str, Ended] = {}
        self._room = SharedRoom(
            None if max_bytes is None else max_bytes // group.size,
            lambda: self.journals,
            lambda: self._taken,
        )
        try:
            self._journals.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._journals.chmod(0o700)  # perhaps somebody else made it
            self.sources = SourceStates(data / "sources" / str(group.number))
            found = [path.name for place in self._places() for path in Journal.find(place)]
        except OSError as error:
            raise UserError(f"cannot use the directory {data}: {error.strerror}") from error
        patience = time.monotonic() + PREDECESSOR_SECONDS
        for name in found:
            if not is_journal(name):
                log.warning("the directory %s is no journal; it is left alone", name)
                continue
            try:
                self._open(name, patience)
            except FlumengError as error:
                log.error("journal %s is not served: %s", name, error)
                self._broken.add(name)
            opened()

    def take(
        self,
        flow: str,
        durability: Durability = "disk",
        limits: Limits | None = None,
        keyring: Keyring | None = None,
    ) -> Log:
        """The journal for the events of a flow: its open one, or a new one, which goes on from the
        source state of the last. One of another durability, or that is not encrypted with the first
        key of ``keyring``, takes no more. Not for one flow twice at once.

        Raises CorruptError while one of the flow's journals is damaged, KeyMissingError while
        nobody can read one, UnavailableError while nobody knows where one ends, OSError, UserError.
        """
        key_id = keyring.current.id if keyring else None
        with self._lock:
            for name in sorted(self._broken):
                if flow_of(name) == flow:
                    self._open_anew(name)
                    self._broken.discard(name)
            self._require_ended(flow)
            own = [j for j in self.journals.values() if flow_of(j.id) == flow and self._is_own(j)]
            self._require_readable(flow, keyring)
            usable = []
            for journal in own:
                if journal.closed or journal.id in self._taken:
                    continue
                fits = (journal.durability, journal.cipher.key_id) == (durability, key_id)
                if not fits:
                    journal.close_for_appends()
                elif self.earlier.refuses(journal):
                    self._catch_up(journal)
                elif self._prepare(journal, limits):
                    usable.append(journal)
                else:
                    journal.close_for_appends()
            if usable:
                self._taken.add(usable[0].id)
                return usable[0]
        journal = self._create(
            flow, own, durability, keyring
        )  # aside: a thousand flows may start at once
        with self._lock:
            self.journals = {**self.journals, journal.id: journal}
            self._prepare(journal, limits)
            self._taken.add(journal.id)
            return journal

    def give_back(self, journal: Log, *, failed: bool = False) -> None:
        """Nobody writes it any more. One that has failed is opened anew when it is next taken."""
        with self._lock:
            self._taken.discard(journal.id)
            if failed:
                self._early_acks.setdefault(journal.id, journal.acked)
                self._broken.add(journal.id)
                journal.close()
            else:
                self._catch_up(journal)
            self._give_up(journal.id)

    def close_of(self, flow: str) -> None:
        """Close for appends what is the flow's and not taken: its events go elsewhere."""
        with self._lock:
            for name, journal in self.journals.items():
                own = flow_of(name) == flow and self._is_own(journal)
                if own and name not in self._taken and not journal.closed:
                    self._close(name)

    def close_all_but(self, flows: Collection[str]) -> None:
        """Close for appends what belongs to other flows, or to no worker, and is not taken."""
        with self._lock:
            for name, journal in self.journals.items():
                wanted = flow_of(name) in flows and self._is_own(journal)
                if name not in self._taken and not journal.closed and not wanted:
                    self._close(name)

    def _close(self, name: str) -> None:
        journal = self.journals[name]
        try:
            end = journal.close_for_appends()
            self._catch_up(journal)
        except (FlumengError, OSError) as error:
            log.error("journal %s is not closed: %s", name, error)
        else:
            log.info("journal %s is closed at seq %d", name, end)

    def trim(self, name: str, ack: int) -> None:
        """Of a journal that is not taken; whoever took it trims it.

        What an open one is to retain is known when it is taken, or closed: then it is trimmed. The
        node says an ack once: one that comes too early is kept.
        """
        with self._lock:
            if name in self._broken or name in self._taken:
                self._keep_ack(name, ack)
                return
            journal = self.journals.get(name)
            if journal is None:
                return
            self._keep_ack(name, ack)
            if journal.closed or name in self._limited:
                self._catch_up(journal)

    def _require_readable(self, flow: str, keyring: Keyring | None) -> None:
        """Events that nobody could read would be as good as lost: the flow goes on when it can read
        those that it has. What another host has taken waits by itself."""
        for name, journal in self.journals.items():
            if flow_of(name) == flow and name not in self._taken and not _is_copy(journal):
                journal.cipher.use(keyring)

    def _prepare(self, journal: Log, limits: Limits | None) -> bool:
        """Before it takes events. False when it has lost some that readers saw: it would give their
        seqs to others."""
        journal.limits = limits or Limits()
        journal.room = self._room.left
        self._limited.add(journal.id)
        try:
            self._catch_up(journal)
        except CorruptError as error:
            log.error("%s; it takes no more events", error)
            return False
        return True

    def _keep_ack(self, name: str, ack: int) -> None:
        self._early_acks[name] = ack

    def _catch_up(self, journal: Log) -> None:
        ack = self._early_acks.pop(journal.id, None)
        if ack is not None:
            older = self.earlier.was_refused(journal.id)
            journal.trim(min(ack, journal.safe) if older else ack)

    def remove(self, name: str) -> None:
        """Delete a closed journal; one that is not there is deleted already.

        The source state of a flow's last journal is kept.
        """
        with self._lock:
            journal = self.journals.get(name)
            if journal is not None and journal.closed:
                self._remove(name, journal)

    def _remove(self, name: str, journal: Log) -> None:
        self._keep_state(journal)
        self._forget(name)
        journal.remove()
        log.info("journal %s is removed", name)

    def _keep_state(self, journal: Log) -> None:
        if not _is_copy(journal):
            self.sources.keep(flow_of(journal.id), journal.state)

    def _forget(self, name: str) -> None:
        self.journals = {key: value for key, value in self.journals.items() if key != name}
        self._limited.discard(name)
        self._early_acks.pop(name, None)
        self._broken.discard(name)
        self.replicas.forget(name)

    @property
    def path(self) -> Path:
        """Where the journals lie."""
        return self._journals

    @property
    def broken(self) -> int:
        """How many journals could not be opened, or have failed since."""
        return len(self._broken)

    def forget(self, flow: str) -> None:
        """The flow is gone: one of the same name starts afresh."""
        with self._lock:
            self.sources.forget(flow)

    def close(self) -> None:
        with self._lock:
            for journal in self.journals.values():
                try:
                    journal.close()
                except (FlumengError, OSError) as error:
                    log.error("journal %s: %s", journal.id, error)

    def _open(self, name: str, patience: float = 0.0) -> None:
        while True:
            try:
                journal = self._opened(self._path(name))
            except UserError:  # in use by another process
                if time.monotonic() >= patience:
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                self.journals = {**self.journals, name: journal}
                return

    def _opened(self, path: Path) -> Log:
        if is_replica(path):
            return self.replicas.add(ReplicaJournal.load(path, disk=self.disk))
        return Journal.open(path, disk=self.disk)

    def serve_led(self) -> None:
        """Serve the copies of which one has become the primary, as long as they are that."""
        with self._lock:
            copies = self.replicas.journals
            led = {name: copy for name, copy in copies.items() if copy.closes and copy.leads}
            own = {name: one for name, one in self.journals.items() if not _is_copy(one)}
            self.journals = {**own, **led}

    def give_up_superseded(self, ended: Mapping[str, Ended]) -> None:
        """What the other copy does not have was answered to nobody: it goes, and sources read it
        again. A journal that lacks events waits until it has them, and their source state, or until
        they are gone; so does one that is taken. One that is damaged is kept as evidence."""
        with self._lock:
            self._ended = ended
            for name in ended:
                self._give_up(name)

    def _give_up(self, name: str) -> None:
        ended = self._ended.get(name)
        if ended is None or name in self._taken:
            return
        try:
            try:
                self._give_up_copy(name, ended)
            except JournalFailedError:
                raise
            except CorruptError as error:
                self._begin_anew(name, ended, error)
        except (FlumengError, OSError) as error:
            log.error("journal %s is not given up: %s", name, error)

    def _give_up_copy(self, name: str, ended: Ended) -> None:
        """Raises CorruptError when what is here cannot tell where its sources go on."""
        if name in self._broken and is_replica(self._path(name)):
            self._open_anew(name)
            self._broken.discard(name)
        journal = self.journals.get(name)
        if not isinstance(journal, ReplicatedJournal) or journal.leads or journal.closes:
            return
        if journal.next_seq >= ended.end or ended.gone:
            cut = journal.cut(max(ended.end, journal.floor))
            text = "journal %s: another node ended it at seq %d; %d events go, told to nobody"
            log.warning(text, name, ended.end, cut)
            if not journal.damaged:
                self._remove(name, journal)
                return
            self._keep_state(journal)
            self._set_aside(name, journal.damaged)
            self._forget(name)
        elif journal.damaged:
            raise CorruptError(journal.damaged)

    def _begin_anew(self, name: str, ended: Ended, error: CorruptError) -> None:
        """What is here cannot be used. Where its sources go on the other copy tells, by giving its
        events to a new one here, unless that is known, or they keep no state."""
        journal = self.journals.get(name)
        if journal is not None and journal.next_seq == ended.end:
            self._keep_state(journal)
            needed = False
        else:
            needed = not ended.gone and _had_state(self._path(name))
        self._set_aside(name, str(error))
        if not needed:
            self._forget(name)
            return
        path = self._path(name)
        made = ReplicaJournal.make(path.parent, name, Replica.new(self._node), disk=self.disk)
        self.journals = {**self.journals, name: self.replicas.add(made)}
        self._broken.discard(name)

    def _set_aside(self, name: str, why: str) -> None:
        journal = self.journals.get(name)
        if isinstance(journal, ReplicatedJournal):
            aside = journal.set_aside()
        else:
            aside = set_aside(self._path(name))
        log.error("%s; another node has its events, and it is kept as %s", why, aside)

    def _require_ended(self, flow: str) -> None:
        """The sources of a flow go on where the last journal ends. Of one that another node leads
        only that one knows where."""
        for name, journal in self.journals.items():
            superseded = isinstance(journal, ReplicatedJournal) and journal.superseded
            if superseded and flow_of(name) == flow and self._is_own(journal):
                self._give_up(name)
                # One that holds nothing may have begun anew, and lack the state of its events.
                left = self.journals.get(name)
                if left is not None and (left.state or not left.next_seq):
                    raise UnavailableError(
                        f"another node leads journal {name}, and has not ended it yet: where the "
                        "sources of this flow go on is not known"
                    )

    def _open_anew(self, name: str) -> None:
        """Of one that has failed the disk may have less than readers have seen (durability spill):
        it would give their seqs to others."""
        failed = self.journals.get(name)
        self._open(name)
        journal = self.journals[name]
        known = isinstance(failed, ReplicatedJournal) and failed.damaged
        if known and isinstance(journal, ReplicatedJournal):
            journal.found_damaged(known)
        if failed is not None and journal.next_seq < failed.safe and not journal.closed:
            log.error(
                "journal %s: events from seq %d to %d are lost, since the disk failed before they "
                "were on it; it takes no more events",
                name,
                journal.next_seq,
                failed.safe,
            )
            journal.close_for_appends()

    def _create(
        self, flow: str, earlier: list[Log], durability: Durability, keyring: Keyring | None
    ) -> Log:
        name = new_id(flow, self._node, self._group.number)
        place = self._path(name).parent
        state = self.sources.next(flow, [old.state for old in earlier])
        journal: Log
        if durability == "memory":
            journal = MemoryJournal.create(place, name, keyring=keyring)
            for key, value in state.items():
                journal.append(NO_EVENTS, {key: value})
            journal.sync()
        elif durability == "replicated":
            replica = Replica.new(self._node)
            named = KeyReference.of(keyring)
            made = ReplicaJournal.make(place, name, replica, state=state, key=named, disk=self.disk)
            made.cipher.use(keyring)
            journal = self.replicas.add(made)
        else:
            journal = Journal.create(
                place,
                name,
                durability=durability,
                state=state,
                keyring=keyring,
                disk=self.disk,
            )
        key = f", encrypted with key {keyring.current.id}" if keyring else ""
        log.info("journal %s is created, durability %s%s", name, durability, key)
        return journal

    def _places(self) -> list[Path]:
        """Our directory, and those that have no worker of their own."""
        numbers = (int(path.name) for path in self._journals.iterdir() if path.name.isdecimal())
        ours = {self._group.number, *(n for n in numbers if self._group.serves(n))}
        return [self._journals / str(number) for number in sorted(ours)]

    def _path(self, name: str) -> Path:
        return self._journals / str(maker_of(name)) / name

    def _is_own(self, journal: Log) -> bool:
        return maker_of(journal.id) == self._group.number and not _is_copy(journal)


def _is_copy(journal: Log) -> bool:
    """Whether its source state may be that of another host's sources."""
    return isinstance(journal, ReplicatedJournal) and journal.closes


def _had_state(path: Path) -> bool:
    """Whether sources kept their state in the journal, as far as can be read."""
    try:
        found = inspect(path)
        return any(part.state or state_after(part, found.journal) for part in found.parts)
    except (FlumengError, OSError):
        return True
