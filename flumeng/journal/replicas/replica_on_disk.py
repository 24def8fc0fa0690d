"""One replica of a replicated journal on this node's disk; handles disk failures and damage."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from flumeng.journal.log.replica_journal import ReplicaJournal
from flumeng.journal.replication import follower
from flumeng.journal.replication.follower import Follower
from flumeng.platform.backoff import RetryTimer
from flumeng.platform.errors import CorruptError, FlumengError

log = logging.getLogger(__name__)


class ReplicaOnDisk:
    """A replica on disk. ``journal`` is replaced after a truncation, restart or disk failure.
    ``damaged``: the damage, or "". Except for ``sync``, hold the ``ReplicatedJournal``'s lock."""

    def __init__(self, journal: ReplicaJournal) -> None:
        self.journal = journal
        self.damaged = ""
        self._listeners = journal.listeners
        self._using = threading.Lock()
        """Held during a sync, and while ``journal`` is replaced or closed."""
        self._doubtful = False
        self._backoff = RetryTimer()

    @property
    def as_replica(self) -> Follower:
        journal = self.journal
        held = journal.held
        return Follower(
            journal.replica.id,
            journal.replica.lineage,
            held,
            journal.term,
            min(journal.replica.checkpoint, held.safe),
        )

    @property
    def has_failed(self) -> bool:
        """Whether a disk failure made the replica's content unknown until it is reopened."""
        return self._doubtful or not self.journal.sound

    def sync(self) -> None:
        with self._using:
            self.journal.sync()

    def lead(self, term: int, lineage: str, *, closes: bool) -> None:
        """Make this replica the primary's in ``term``. Raises JournalFailedError, HeldError."""
        with self._using:
            self.journal.sync()
            self.journal.fence(term)
            self.journal.adopt(lineage)
            if closes:
                self.journal.close_for_appends()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Mark the replica as failed after an OSError, since the written data is then unknown."""
        try:
            yield
        except OSError:
            self._doubtful = True
            raise

    def append(self, action: follower.Write, frames: list[pa.Buffer]) -> None:
        """Append the frames that the replica lacks. Raises HeldError, CorruptError, OSError."""
        for frame in frames:
            if self.journal.lacks(frame):
                self.journal.append_frame(frame)
        if self.journal.next_seq != action.end:
            raise CorruptError(
                f"journal {self.journal.id}: its primary announced events up to seq {action.end}, "
                f"but sent them up to {self.journal.next_seq}"
            )

    def wrote(self) -> None:
        self._backoff.succeeded()

    def restart(self, floor: int, lineage: str, state: Mapping[str, object]) -> None:
        with self._using:
            self._replace(self.journal.restart(floor, lineage, state))

    def cut(self, end: int) -> int:
        """Remove all from ``end`` on; return how many. Raises HeldError, CorruptError, OSError."""
        gone = max(0, self.journal.next_seq - end)
        if gone:
            with self._using:
                try:
                    self._replace(self.journal.cut(end))
                except CorruptError as error:
                    self.damaged = str(error)
                    raise
            log.warning("journal %s: %d unconfirmed events are dropped", self.journal.id, gone)
        return gone

    def reopen(self, now: float) -> bool:
        """Reopen the replica after a disk failure if its back-off is over; return whether that
        succeeded. Unsynced writes are repeated: the kernel may treat their pages as clean."""
        if not self._backoff.is_due(now):
            return False
        self._backoff.begin(now)
        name = self.journal.id
        with self._using:
            try:
                self._replace(self.journal.reopened())
            except CorruptError as error:
                self.damaged = str(error)
                text = "replica %s is damaged; its primary recreates it, if there is one: %s"
                log.error(text, name, error)
                return False
            except (FlumengError, OSError) as error:
                log.warning("the replica of journal %s here cannot be used yet: %s", name, error)
                return False
        self._doubtful = False
        log.warning("the replica of journal %s continues at seq %d", name, self.journal.next_seq)
        return True

    def close(self) -> None:
        with self._using:
            self.journal.close()

    def remove(self) -> None:
        with self._using:
            self.journal.remove()

    def set_aside(self) -> Path:
        """Rename a damaged replica's directory and return its path. Raises OSError."""
        with self._using:
            return self.journal.set_aside()

    def _replace(self, journal: ReplicaJournal) -> None:
        journal.listeners = self._listeners
        journal.room = self.journal.room
        self.journal = journal
