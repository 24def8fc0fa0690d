"""The journals of one worker, in ``journals/NUMBER``: some accept events, others are only served. A
damaged journal is kept, and its flow gets no new one: that would hide the damage, and tail sources
would read everything again. The first worker also serves removed workers' journals."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from flumeng.agent.ingest.batch import NO_EVENTS
from flumeng.agent.ingest.disk_quota import DiskQuota
from flumeng.agent.ingest.restored_journals import RestoredJournals
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

_RETRY_SECONDS = 0.1


class Ended(NamedTuple):
    """Another node ended a local journal at seq ``end``. ``gone``: that node removed the events."""

    end: int
    gone: bool


class JournalStore:
    """Opens, creates and removes a worker's journals. Thread-safe; calls block. ``journals`` is
    replaced, never changed. Only the flow that took a journal appends to it. ``sources``: source
    state outside the journals."""

    def __init__(
        self,
        data: Path,
        node: str,
        group: WorkerGroup = ALONE,
        max_bytes: int | None = None,
        opened: Callable[[], None] = lambda: None,
        *,
        replicas: Replicas | None = None,
        predecessor_seconds: float = 10.0,
    ) -> None:
        """Open this worker's journals; ``opened`` is called after each. ``max_bytes`` bounds the
        node's journals; workers get equal parts. ``predecessor_seconds``: how long to wait for an
        ending process with the journals open. Raises UserError for an unusable directory."""
        self.journals: Mapping[str, Log] = {}
        self._lock = threading.RLock()
        self.disk = TimedDisk()
        self.replicas = replicas or Replicas(node)
        self.earlier = RestoredJournals(lambda: self.journals, self.replicas)
        self._journals = data / "journals"
        self._node = node
        self._group = group
        self._taken: set[str] = set()
        self._limited: set[str] = set()  # taken once: their retention is known
        self._early_acks: dict[str, int] = {}
        self._broken: set[str] = set()
        self._ended: Mapping[str, Ended] = {}
        self._room = DiskQuota(
            None if max_bytes is None else max_bytes // group.size,
            lambda: self.journals,
            lambda: self._taken,
        )
        try:
            self._journals.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._journals.chmod(0o700)  # another program may have made it
            self.sources = SourceStates(data / "sources" / str(group.number))
            names = [path.name for directory in self._places() for path in Journal.find(directory)]
        except OSError as error:
            raise UserError(f"cannot use the data directory {data}: {error.strerror}") from error
        patience = time.monotonic() + predecessor_seconds
        for name in names:
            if not is_journal(name):
                log.warning("the directory %s is not a journal and is ignored", name)
                continue
            try:
                self._open(name, patience)
            except FlumengError as error:
                log.error("journal %s is not served until its flow can open it: %s", name, error)
                self._broken.add(name)
            opened()

    def take(
        self,
        flow: str,
        durability: Durability = "disk",
        limits: Limits | None = None,
        keyring: Keyring | None = None,
    ) -> Log:
        """Return the flow's open journal, or a new one that starts with the last source state. A
        journal of another durability or key is closed. Never called twice at once for one flow.

        Raises CorruptError while one of the flow's journals is damaged, KeyMissingError while one
        is unreadable, UnavailableError while the end of one is unknown, OSError, UserError.
        """
        key_id = keyring.current.id if keyring else None
        with self._lock:
            for name in sorted(self._broken):
                if flow_of(name) == flow:
                    self._reopen(name)
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
        )  # without the lock: a thousand flows may start at once
        with self._lock:
            self.journals = {**self.journals, journal.id: journal}
            self._prepare(journal, limits)
            self._taken.add(journal.id)
            return journal

    def give_back(self, journal: Log, *, failed: bool = False) -> None:
        """Release a taken journal. A ``failed`` one is reopened when it is next taken."""
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
        """Close the flow's journals that are not taken, since its events now go elsewhere."""
        with self._lock:
            for name, journal in self.journals.items():
                own = flow_of(name) == flow and self._is_own(journal)
                if own and name not in self._taken and not journal.closed:
                    self._close(name)

    def close_all_but(self, flows: Collection[str]) -> None:
        """Close every journal that is not taken, except this worker's journals of ``flows``."""
        with self._lock:
            for name, journal in self.journals.items():
                assigned = flow_of(name) in flows and self._is_own(journal)
                if name not in self._taken and not journal.closed and not assigned:
                    self._close(name)

    def _close(self, name: str) -> None:
        journal = self.journals[name]
        if isinstance(journal, ReplicatedJournal) and not journal.leads:
            return  # only its primary closes it
        try:
            end = journal.close_for_appends()
            self._catch_up(journal)
        except (FlumengError, OSError) as error:
            log.error("journal %s cannot be closed or trimmed to its ack: %s", name, error)
        else:
            log.info("journal %s is closed for new events, its end is seq %d", name, end)

    def trim(self, name: str, ack: int) -> None:
        """Trim a journal that is not taken. The node sends an ack once: it is kept until the
        journal's retention is known, when a flow takes it or it is closed."""
        with self._lock:
            if name in self._broken or name in self._taken:
                self._early_acks[name] = ack
                return
            journal = self.journals.get(name)
            if journal is None:
                return
            self._early_acks[name] = ack
            if journal.closed or name in self._limited:
                self._catch_up(journal)

    def _require_readable(self, flow: str, keyring: Keyring | None) -> None:
        """Set the keys of the flow's journals. Raises KeyMissingError when one is missing."""
        for name, journal in self.journals.items():
            if flow_of(name) == flow and name not in self._taken and not _is_replica(journal):
                journal.cipher.use(keyring)

    def _prepare(self, journal: Log, limits: Limits | None) -> bool:
        """Set limits and apply a kept ack. Returns False when events that readers saw are gone."""
        journal.limits = limits or Limits()
        journal.room = self._room.left
        self._limited.add(journal.id)
        try:
            self._catch_up(journal)
        except (CorruptError, JournalFailedError) as error:
            log.error("journal %s takes no more events: %s", journal.id, error)
            return False
        return True

    def _catch_up(self, journal: Log) -> None:
        ack = self._early_acks.pop(journal.id, None)
        if ack is not None:
            older = self.earlier.was_refused(journal.id)
            journal.trim(min(ack, journal.safe) if older else ack)

    def remove(self, name: str) -> None:
        """Delete a journal if it is closed; its source state is kept unless a later one is."""
        with self._lock:
            journal = self.journals.get(name)
            if journal is not None and journal.closed:
                left = journal.next_seq - journal.acked
                deleted = f"its flow was deleted, and {left} of its events were not collected"
                self._remove(name, journal, deleted if left > 0 else "all its events are collected")

    def _remove(self, name: str, journal: Log, why: str) -> None:
        self._keep_state(journal)
        self._forget(name)
        journal.remove()
        log.info("the files of journal %s are deleted: %s", name, why)

    def _keep_state(self, journal: Log) -> None:
        if not _is_replica(journal):
            self.sources.keep(flow_of(journal.id), journal.state)

    def _forget(self, name: str) -> None:
        self.journals = {key: value for key, value in self.journals.items() if key != name}
        self._limited.discard(name)
        self._early_acks.pop(name, None)
        self._broken.discard(name)
        self.replicas.forget(name)

    @property
    def path(self) -> Path:
        return self._journals

    @property
    def broken(self) -> int:
        """The number of journals that could not be opened, or have failed."""
        return len(self._broken)

    def forget(self, flow: str) -> None:
        with self._lock:
            self.sources.forget(flow)

    def close(self) -> None:
        with self._lock:
            for journal in self.journals.values():
                try:
                    journal.close()
                except (FlumengError, OSError) as error:
                    log.error("journal %s cannot be closed cleanly: %s", journal.id, error)

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
        with self._lock:
            replicas = self.replicas.journals
            led = {
                name: replica
                for name, replica in replicas.items()
                if replica.closes and replica.leads
            }
            own = {n: journal for n, journal in self.journals.items() if not _is_replica(journal)}
            self.journals = {**own, **led}

    def give_up_superseded(self, ended: Mapping[str, Ended]) -> None:
        """Remove the journals that another node has ended. Events that only this node has were
        never acknowledged: sources reread them. A journal that lacks events waits for them; a
        damaged one is kept as evidence."""
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
                self._give_up_replica(name, ended)
            except CorruptError as error:
                self._replace_damaged(name, ended, error)
        except (FlumengError, OSError) as error:
            log.error("journal %s, which another node ended, is kept: %s", name, error)

    def _give_up_replica(self, name: str, ended: Ended) -> None:
        """Remove a replica that has all events. Raises CorruptError when its state is unusable."""
        if name in self._broken and is_replica(self._path(name)):
            self._reopen(name)
            self._broken.discard(name)
        journal = self.journals.get(name)
        if not isinstance(journal, ReplicatedJournal) or journal.leads or journal.closes:
            return
        if journal.next_seq >= ended.end or ended.gone:
            cut = journal.cut(max(ended.end, journal.floor))
            text = "journal %s: another node ended it at seq %d; %d unconfirmed events are dropped"
            log.warning(text, name, ended.end, cut)
            if not journal.damaged:
                self._remove(name, journal, "another node has ended it")
                return
            self._keep_state(journal)
            self._set_aside(name, journal.damaged)
            self._forget(name)
        elif journal.damaged:
            raise CorruptError(journal.damaged)

    def _replace_damaged(self, name: str, ended: Ended, error: CorruptError) -> None:
        """Set aside a damaged replica; a new one gets needed source state from the other node."""
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
        text = "journal %s: another node has it; its damaged copy %s may be deleted here: %s"
        log.error(text, name, aside, why)

    def _require_ended(self, flow: str) -> None:
        """Give up the flow's journals that another node leads. Raises UnavailableError while that
        node has not ended such a journal: sources continue at its end."""
        for name, journal in self.journals.items():
            superseded = isinstance(journal, ReplicatedJournal) and journal.superseded
            if superseded and flow_of(name) == flow and self._is_own(journal):
                self._give_up(name)
                # An empty journal may be new, and lack the state of its events.
                left = self.journals.get(name)
                if left is not None and (left.state or not left.next_seq):
                    raise UnavailableError(
                        f"another node leads journal {name} and has not ended it yet: the resume "
                        "positions of the flow's sources are unknown"
                    )

    def _reopen(self, name: str) -> None:
        """Reopen a failed journal. It is closed for appends when the disk lacks events that readers
        have seen (durability spill)."""
        failed = self.journals.get(name)
        self._open(name)
        journal = self.journals[name]
        damage = isinstance(failed, ReplicatedJournal) and failed.damaged
        if damage and isinstance(journal, ReplicatedJournal):
            journal.mark_damaged(damage)
        if failed is not None and journal.next_seq < failed.safe and not journal.closed:
            log.error(
                "journal %s: the disk failed before it had the events from seq %d to %d, and those "
                "not delivered are lost; the flow begins a new journal",
                *(name, journal.next_seq, failed.safe - 1),
            )
            journal.close_for_appends()

    def _create(
        self, flow: str, earlier: list[Log], durability: Durability, keyring: Keyring | None
    ) -> Log:
        name = new_id(flow, self._node, self._group.number)
        path = self._path(name).parent
        state = self.sources.next(flow, [old.state for old in earlier])
        journal: Log
        if durability == "memory":
            journal = MemoryJournal.create(path, name, keyring=keyring)
            for key, value in state.items():
                journal.append(NO_EVENTS, {key: value})
            journal.sync()
        elif durability == "replicated":
            replica = Replica.new(self._node)
            named = KeyReference.of(keyring)
            made = ReplicaJournal.make(path, name, replica, state=state, key=named, disk=self.disk)
            made.cipher.use(keyring)
            journal = self.replicas.add(made)
        else:
            journal = Journal.create(
                path, name, durability=durability, state=state, keyring=keyring, disk=self.disk
            )
        key = f", encrypted with key {keyring.current.id}" if keyring else ""
        log.info("journal %s is created, durability %s%s", name, durability, key)
        return journal

    def _places(self) -> list[Path]:
        numbers = (int(path.name) for path in self._journals.iterdir() if path.name.isdecimal())
        ours = {self._group.number, *(n for n in numbers if self._group.serves(n))}
        return [self._journals / str(number) for number in sorted(ours)]

    def _path(self, name: str) -> Path:
        return self._journals / str(maker_of(name)) / name

    def _is_own(self, journal: Log) -> bool:
        return maker_of(journal.id) == self._group.number and not _is_replica(journal)


def _is_replica(journal: Log) -> bool:
    """Return whether this is a replica of another node's journal, with that node's state."""
    return isinstance(journal, ReplicatedJournal) and journal.closes


def _had_state(path: Path) -> bool:
    """Return whether the journal holds source state; True when it is unreadable."""
    try:
        inspection = inspect(path)
        return any(part.state or state_after(part, inspection.journal) for part in inspection.parts)
    except (FlumengError, OSError):
        return True
