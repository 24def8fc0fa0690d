"""One copy of a replicated journal as it lies on this node's disk, and what becomes of it when the
disk fails or damage is met."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from flumeng.journal.log.errors import JournalFailedError
from flumeng.journal.log.replica_journal import ReplicaJournal
from flumeng.journal.replicas.disk_backoff import DiskBackoff
from flumeng.journal.replication import follower
from flumeng.journal.replication.follower import Copy
from flumeng.platform.errors import CorruptError, FlumengError

log = logging.getLogger(__name__)


class CopyOnDisk:
    """``journal`` is another object once a suffix was cut, the copy began anew, or its disk had
    failed. ``damaged``: why what lies here cannot be used; empty while it can.

    But for ``sync``, whoever calls holds the lock of the copy's ``ReplicatedJournal``.
    """

    def __init__(self, journal: ReplicaJournal) -> None:
        self.journal = journal
        self.damaged = ""
        self._listeners = journal.listeners
        self._using = threading.Lock()
        """Held, perhaps for as long as the disk takes, by whoever syncs, or opens the copy anew."""
        self._doubtful = False
        self._backoff = DiskBackoff()

    @property
    def as_copy(self) -> Copy:
        """What the protocol knows of it after a start."""
        journal = self.journal
        held = journal.held
        return Copy(
            journal.replica.id,
            journal.replica.lineage,
            held,
            journal.term,
            min(journal.replica.checkpoint, held.safe),
        )

    @property
    def has_failed(self) -> bool:
        """Whether nobody knows what is on the disk, until it is opened anew."""
        return self._doubtful or not self.journal.sound

    def sync(self) -> None:
        with self._using:
            self.journal.sync()

    def lead(self, term: int, lineage: str, *, closes: bool) -> None:
        """Put on disk that it is the primary's from now on. Raises as ``sync``."""
        with self._using:
            self.journal.sync()
            self.journal.fence(term)
            self.journal.adopt(lineage)
            if closes:
                self.journal.close_for_appends()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Of what a primary says. What fails at the disk may be there or not."""
        try:
            yield
        except (FlumengError, OSError) as error:
            self._doubtful = isinstance(error, OSError)
            raise

    def append(self, action: follower.Write, frames: list[pa.Buffer]) -> None:
        """Those of the frames that are not here. Raises HeldError when there is no room,
        CorruptError for other frames than were said, OSError."""
        for frame in frames:
            if self.journal.lacks(frame):
                self.journal.append_frame(frame)
        if self.journal.next_seq != action.end:
            raise CorruptError(
                f"journal {self.journal.id}: frames up to seq {self.journal.next_seq} came where "
                f"{action.end} was said"
            )

    def wrote(self) -> None:
        """What was appended is synced: the disk works."""
        self._backoff.succeeded()

    def restart(self, floor: int, lineage: str, state: Mapping[str, object]) -> None:
        with self._using:
            self._replace(self.journal.restart(floor, lineage, state))

    def cut(self, end: int) -> int:
        """Remove what lies at ``end`` and above; how many events. Raises CorruptError when what is
        left is damaged, JournalFailedError, OSError."""
        gone = max(0, self.journal.next_seq - end)
        if gone:
            log.warning("journal %s: %d events go that were not answered", self.journal.id, gone)
            with self._using:
                try:
                    self._replace(self.journal.cut(end))
                except JournalFailedError:
                    raise
                except CorruptError as error:
                    self.damaged = str(error)
                    raise
        return gone

    def reopen(self, now: float) -> bool:
        """Whether it is usable again after its disk has failed. What was not synced then counts as
        if it had never been written: the kernel may hold it for clean, though it never came to the
        disk."""
        if not self._backoff.is_over(now):
            return False
        self._backoff.begin(now)
        name = self.journal.id
        with self._using:
            try:
                self._replace(self.journal.reopened())
            except CorruptError as error:
                self.damaged = str(error)
                log.error("the copy of journal %s here is to be made anew: %s", name, error)
                return False
            except (FlumengError, OSError) as error:
                log.warning("the copy of journal %s here cannot be used yet: %s", name, error)
                return False
        self._doubtful = False
        log.warning("the copy of journal %s here goes on at seq %d", name, self.journal.next_seq)
        return True

    def close(self) -> None:
        with self._using:
            self.journal.close()

    def remove(self) -> None:
        with self._using:
            self.journal.remove()

    def set_aside(self) -> Path:
        """It is damaged, and done for; where it is kept as evidence. Raises OSError."""
        with self._using:
            return self.journal.set_aside()

    def _replace(self, journal: ReplicaJournal) -> None:
        journal.listeners = self._listeners
        journal.room = self.journal.room
        self.journal = journal
