"""A journal under any sequence of appends, syncs, trims, reopenings, failures and crashes.

The model is a list of events and, for each frame, the source state after it. Held in every state:

- what was synced is there, in order, after any crash (I1, I2, I17), with the source state that
  belongs to the last event that is there;
- what was not synced is there as a run of whole frames or not at all, never with a gap (I3);
- nothing above ``safe`` or below ``floor`` can be read (I24), and the floor is never above the
  highest ack (I27);
- each opening has a higher term than any before (I4).
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flumeng.journal import checkpoint as checkpoints
from flumeng.journal.errors import (
    AboveSafeError,
    BelowFloorError,
    DiskFullError,
    JournalFailedError,
)
from flumeng.journal.journal import Journal
from flumeng.journal.testing import FaultyDisk, numbered_events

ID = "web.n1.0.0a1b2c3d"
SEGMENT_BYTES = 3000  # two or three frames

States = dict[str, object]


class JournalMachine(RuleBasedStateMachine):
    @initialize()
    def create(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.disk = FaultyDisk()
        self.journal = Journal.create(self.root, ID, segment_bytes=SEGMENT_BYTES, disk=self.disk)
        self.ends: list[tuple[int, States]] = [(0, {})]  # frame ends, with the state after each
        self.safe = 0
        self.ack = 0
        self.terms = [self.journal.term]

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.journal.close()
            shutil.rmtree(self.root)

    @property
    def next_seq(self) -> int:
        return self.ends[-1][0]

    @rule(
        count=st.integers(0, 9),
        changes=st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 9), max_size=2),
    )
    def append(self, count: int, changes: States) -> None:
        first = self.journal.append(numbered_events(self.next_seq, count, 80), changes)
        assert first == self.next_seq
        merged = {**self.ends[-1][1], **changes}
        state = {key: value for key, value in merged.items() if value is not None}
        self.ends.append((first + count, state))
        assert dict(self.journal.state) == state

    @rule()
    def sync(self) -> None:
        self.safe = self.next_seq
        assert self.journal.sync() == self.safe

    @rule(part=st.floats(0, 1))
    def trim(self, part: float) -> None:
        ack = int(part * self.safe)
        self.ack = max(self.ack, ack)
        self.journal.trim(ack)
        assert self.journal.floor <= self.ack

    @rule(count=st.integers(1, 9), room=st.integers(0, 3000))
    def append_to_a_full_disk(self, count: int, room: int) -> None:
        """I21: either it is appended or nothing of it is there."""
        self.disk.fail_write(errno.ENOSPC, room=room)
        with contextlib.suppress(DiskFullError):
            self.append(count, {})
        self.disk.heal()

    @rule(count=st.integers(1, 9))
    def fail_a_sync(self, count: int) -> None:
        """I19: the journal has failed; what is whole in its files may come back, safe or not."""
        self.disk.failing_sync = errno.EIO
        with pytest.raises(JournalFailedError):
            self.append(count, {})
            self.journal.sync()
        with pytest.raises(JournalFailedError):
            self.journal.sync()
        assert self.journal.safe <= self.next_seq
        self.kill()

    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self.safe = self.next_seq
        self._open()
        assert self.journal.next_seq == self.next_seq

    @rule()
    def kill(self) -> None:
        """SIGKILL: what was written stays, whether synced or not."""
        self.disk.dead = True
        self.journal.close()
        self._open()
        assert self.journal.next_seq == self.next_seq
        self.safe = self.next_seq

    @rule(
        kept=st.floats(0, 1),
        tail=st.sampled_from([b"", b"\0", b"\xff"]),
        names_survive=st.booleans(),
        checkpoint_survives=st.booleans(),
    )
    def power_cut(
        self, kept: float, tail: bytes, names_survive: bool, checkpoint_survives: bool
    ) -> None:
        """Of what was not synced any part may be gone, or replaced by zeros or by garbage."""

        def survive(name: str, durable: bytes, written: bytes) -> bytes:
            if name == checkpoints.NAME:
                return written if checkpoint_survives else durable
            assert written.startswith(durable), f"{name}: synced bytes were overwritten"
            unsynced = written[len(durable) :]
            left = unsynced[: int(kept * len(unsynced))]
            return durable + left + tail * (len(unsynced) - len(left))

        self.disk.dead = True
        self.journal.close()
        self.disk.power_cut(self.root / ID, survive, names_survive=names_survive)
        self._open()
        assert self.safe <= self.journal.next_seq <= self.next_seq
        while self.next_seq > self.journal.next_seq:
            self.ends.pop()
        assert self.next_seq == self.journal.next_seq, "a frame was kept in part"
        # Of frames that hold state alone, the seq does not tell how many survived.
        while dict(self.journal.state) != self.ends[-1][1]:
            self.ends.pop()
            assert self.next_seq == self.journal.next_seq, "the state belongs to no frame"
        self.safe = self.next_seq

    def _open(self) -> None:
        self.disk.dead = False
        self.journal = Journal.open(self.root / ID, segment_bytes=SEGMENT_BYTES, disk=self.disk)
        assert self.journal.term > self.terms[-1]
        self.terms.append(self.journal.term)

    @invariant()
    def holds_exactly_what_the_model_holds(self) -> None:
        journal = self.journal
        journal.check()
        assert (journal.next_seq, dict(journal.state)) == self.ends[-1]
        assert journal.safe >= self.safe
        assert journal.floor <= self.ack
        found = [
            int(body.as_py().rstrip(b"."))
            for batch in journal.read(journal.floor, journal.safe)
            for body in batch.column("body")
        ]
        assert found == list(range(journal.floor, journal.safe))
        with pytest.raises(AboveSafeError):
            next(journal.read_frames(journal.floor, journal.safe + 1))
        if journal.floor:
            with pytest.raises(BelowFloorError):
                next(journal.read_frames(journal.floor - 1, journal.safe))


JournalMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, print_blob=True
)
TestJournal = JournalMachine.TestCase
