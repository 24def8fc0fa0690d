"""A journal under any sequence of appends, syncs, trims, reopenings, failures and crashes.

The model is a list of events and, for each frame, the source state after it. Held in every state:

- synced events are there, in order, after any crash, with the source state that belongs to
  the last event that is there;
- events that were not synced are there as a run of whole frames or not at all, never with a gap;
- nothing above ``safe`` or below ``floor`` can be read (I24 of
  flumeng.journal.replication); the floor is never above the highest ack, nor goes back;
- each opening has a higher term than any before, and a closed journal stays closed.

A crash comes between two operations or at any write or sync within one, opening and recovery
included. ``FLUMENG_TEST_EXAMPLES`` says how many sequences are tried.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flumeng.journal.log import checkpoint as checkpoints
from flumeng.journal.log.checkpoint import Durability
from flumeng.journal.log.encryption import Key, Keyring
from flumeng.journal.log.errors import (
    AboveSafeError,
    BelowFloorError,
    DiskFullError,
    JournalFailedError,
)
from flumeng.journal.log.frame import ENCRYPTED, HEADER_BYTES, MAGIC, padded
from flumeng.journal.log.journal import Journal
from flumeng.platform.errors import UserError
from tests.testkit.journal import FaultyDisk, KilledError, numbered_events

SEGMENT_BYTES = 3000  # two or three frames
EXAMPLES = int(os.environ.get("FLUMENG_TEST_EXAMPLES", "200"))

States = dict[str, object]
counts = st.integers(0, 9)
some_changes = st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 9), max_size=2)
is_open = precondition(lambda machine: not machine.closed)


class JournalMachine(RuleBasedStateMachine):
    durability: Durability = "disk"
    keyring: Keyring | None = None

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.journals = 0
        self._create()

    def _create(self) -> None:
        self.journals += 1
        name = f"web.n1.0.{self.journals:08x}"
        self.path = self.root / name
        self.disk = self._make_disk()
        self.journal = Journal.create(
            self.root,
            name,
            durability=self.durability,
            segment_bytes=SEGMENT_BYTES,
            keyring=self.keyring,
            disk=self.disk,
        )
        self.ends: list[tuple[int, States]] = [(0, {})]  # frame ends, with the state after each
        self.safe = self.ack = self.floor = 0
        self.closed = False
        self.term = self.journal.term

    def _make_disk(self) -> FaultyDisk:
        return FaultyDisk()

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.journal.close()
            shutil.rmtree(self.root)

    @property
    def next_seq(self) -> int:
        return self.ends[-1][0]

    @is_open
    @rule(count=counts, changes=some_changes)
    def append(self, count: int, changes: States) -> None:
        self.ends.append(self._after(count, changes))
        first = self.journal.append(numbered_events(self.ends[-2][0], count, 80), changes)
        assert first == self.ends[-2][0]
        assert dict(self.journal.state) == self.ends[-1][1]

    def _after(self, count: int, changes: States) -> tuple[int, States]:
        """The model after one more frame."""
        merged = {**self.ends[-1][1], **changes}
        state = {key: value for key, value in merged.items() if value is not None}
        return self.next_seq + count, state

    @rule()
    def sync(self) -> None:
        assert self.journal.sync() == self.next_seq
        self.safe = self.next_seq

    @rule(part=st.floats(0, 1))
    def trim(self, part: float) -> None:
        self.ack = max(self.ack, int(part * self.safe))
        self.journal.trim(int(part * self.safe))

    @rule()
    def close_for_appends(self) -> None:
        self.closed = True
        assert self.journal.close_for_appends() == self.next_seq
        self.safe = self.next_seq
        with pytest.raises(UserError, match="closed"):
            self.journal.append(numbered_events(self.next_seq, 1))

    @precondition(lambda machine: machine.closed)
    @rule()
    def go_on_in_another_journal(self) -> None:
        self.journal.remove()
        assert list(self.root.iterdir()) == []
        self._create()

    @is_open
    @rule(count=st.integers(1, 9), room=st.integers(0, 3000))
    def append_to_a_full_disk(self, count: int, room: int) -> None:
        """The frame is appended as a whole or not at all."""
        before = list(self.ends)
        self.disk.fail_write(errno.ENOSPC, room=room)
        try:
            self.append(count, {})
        except DiskFullError:
            self.ends = before
        self.disk.heal()

    @rule(room=st.integers(0, 600), part=st.floats(0, 1), syncs=st.booleans())
    def no_room_for_the_checkpoint(self, room: int, part: float, syncs: bool) -> None:
        """A sync or trim is done as a whole or not at all."""
        self.disk.fail_write(errno.ENOSPC, room=room)
        with contextlib.suppress(DiskFullError):
            if syncs:
                self.sync()
            else:
                self.trim(part)
        self.disk.heal()

    @is_open
    @rule(count=st.integers(1, 9))
    def fail_a_sync(self, count: int) -> None:
        """The journal has failed; intact frames in its files may come back, safe or not."""
        self.disk.failing_sync = errno.EIO
        with pytest.raises(JournalFailedError):
            self.append(count, {})
            self.journal.sync()
        for write in (self.journal.sync, self.journal.close_for_appends):
            with pytest.raises(JournalFailedError):
                write()
        assert self.journal.safe <= self.next_seq
        at_least = len(self.ends) - 1
        self.journal.close()
        self._open(at_least)

    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self.safe = self.next_seq
        self._open(len(self.ends))

    @rule()
    def kill(self) -> None:
        """SIGKILL: written frames stay, synced or not."""
        self._die()
        self._open(len(self.ends))

    @is_open
    @rule(lives_for=st.integers(0, 9), count=st.integers(1, 9), changes=some_changes)
    def kill_in_an_append(self, lives_for: int, count: int, changes: States) -> None:
        self._kill_in(lambda: self.append(count, changes), lives_for, len(self.ends))

    @rule(lives_for=st.integers(0, 3))
    def kill_in_a_sync(self, lives_for: int) -> None:
        self._kill_in(self.sync, lives_for, len(self.ends))

    @rule(lives_for=st.integers(0, 3), part=st.floats(0, 1))
    def kill_in_a_trim(self, lives_for: int, part: float) -> None:
        self._kill_in(lambda: self.trim(part), lives_for, len(self.ends))

    @is_open
    @rule(lives_for=st.integers(0, 3))
    def kill_in_a_close_for_appends(self, lives_for: int) -> None:
        self._kill_in(self.close_for_appends, lives_for, len(self.ends))
        self.closed = self.journal.closed

    @rule(lives_for=st.integers(0, 9))
    def kill_in_a_reopening(self, lives_for: int) -> None:
        self._kill_in(self.reopen, lives_for, len(self.ends))

    def _kill_in(self, operation: Callable[[], None], lives_for: int, at_least: int) -> None:
        self.disk.lives_for = lives_for
        try:
            operation()
        except KilledError:
            self._die()
            self._open(at_least)
        self.disk.heal()

    @rule(
        kept=st.floats(0, 1),
        tail=st.sampled_from([b"", b"\0", b"\xff"]),
        names_survive=st.booleans(),
        checkpoint_survives=st.booleans(),
    )
    def power_cut(
        self, kept: float, tail: bytes, names_survive: bool, checkpoint_survives: bool
    ) -> None:
        """Any part of the unsynced bytes may be lost, or replaced by zeros or garbage."""

        def survive(name: str, durable: bytes, written: bytes) -> bytes:
            if name == checkpoints.NAME:
                return written if checkpoint_survives else durable
            assert written.startswith(durable), f"{name}: synced bytes were overwritten"
            unsynced = written[len(durable) :]
            left = unsynced[: int(kept * len(unsynced))]
            return durable + left + tail * (len(unsynced) - len(left))

        self._die()
        self.disk.power_cut(self.path, survive, names_survive=names_survive)
        self._power_returns()

    def _power_returns(self) -> None:
        self._open(1)

    def _die(self) -> None:
        self.disk.dead = True
        self.journal.close()

    def _open(self, at_least: int) -> None:
        """Reopen it, perhaps after a crash; bring the model to the content of the files.

        The first ``at_least`` entries of the model must be there.
        """
        self.disk.heal()
        self.journal = Journal.open(
            self.path, segment_bytes=SEGMENT_BYTES, keyring=self.keyring, disk=self.disk
        )
        assert self.journal.term > self.term
        self.term = self.journal.term
        assert self.safe <= self.journal.next_seq <= self.next_seq
        found = (self.journal.next_seq, dict(self.journal.state))
        # Of frames that hold state alone, the seq does not tell how many survived.
        while self.ends[-1] != found:
            assert len(self.ends) > at_least, f"{found} is no frame's end, or frames are lost"
            self.ends.pop()
        self.safe = self.next_seq

    @invariant()
    def holds_exactly_what_the_model_holds(self) -> None:
        journal = self.journal
        journal.check()
        assert (journal.next_seq, dict(journal.state)) == self.ends[-1]
        assert journal.safe >= self.safe
        assert journal.closed == self.closed
        assert self.floor <= journal.floor <= self.ack
        self.floor = journal.floor
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


class SpillMachine(JournalMachine):
    """With durability spill a kill loses nothing either.

    After a power cut at least the synced events are there, which rolls sync here, and no seq is
    assigned twice: the journal takes no more events.
    """

    durability = "spill"

    def _die(self) -> None:
        self.synced = self.journal._checkpoint.safe
        super()._die()

    def _power_returns(self) -> None:
        self.safe = self.synced
        self._open(1)
        assert self.journal.closed
        self.closed = True

    def fail_a_sync(self) -> None:
        """Not a rule here: test_journal_limits has failing syncs, which another thread makes."""


HEAD = struct.Struct("<4sxBxxIIII")
"""Magic, flags, bytes of the state and of the message, rows, checksum of the payload."""


class NonceDisk(FaultyDisk):
    """Remembers the bytes of each written salt and nonce.

    In the copy of a torn frame some bytes differ from the encrypted ones.
    """

    def __init__(self, written: dict[bytes, bytes]) -> None:
        super().__init__()
        self._written = written

    def write(self, fd: int, parts: Sequence[Any], offset: int) -> None:
        data = b"".join(bytes(part) for part in parts)
        at = data.find(MAGIC)
        while at >= 0:
            _, flags, state, message, _, crc = HEAD.unpack_from(data[at:].ljust(HEAD.size))
            envelope = at + HEADER_BYTES + padded(state)
            payload = data[at + HEADER_BYTES : envelope + padded(message)]
            if flags & ENCRYPTED and crc32c(payload) == crc:
                used = data[envelope + 8 : envelope + 36]
                sealed = data[envelope + 36 : envelope + 100]
                assert self._written.setdefault(used, sealed) == sealed, "a nonce is used again"
            at = data.find(MAGIC, at + 1)
        super().write(fd, parts, offset)


class EncryptedMachine(JournalMachine):
    """The same, encrypted: with any crashes, tears and rewrites no nonce is used for two frames,
    each journal has its own key, and no body is on the disk."""

    def _make_disk(self) -> FaultyDisk:
        return NonceDisk(self.written)

    def _create(self) -> None:
        self.written: dict[bytes, bytes] = getattr(self, "written", {})
        name = f"${{secret:key-{self.journals}}}"
        self.keyring = Keyring({name: Key.parse(f"{self.journals + 1:064x}", name)})
        super()._create()

    @invariant()
    def no_body_lies_on_the_disk(self) -> None:
        for path in self.path.iterdir():
            assert b"......" not in path.read_bytes(), path.name


JournalMachine.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, print_blob=True
)
TestJournal = JournalMachine.TestCase
SpillMachine.TestCase.settings = settings(
    JournalMachine.TestCase.settings, max_examples=EXAMPLES // 4
)
TestSpill = SpillMachine.TestCase
EncryptedMachine.TestCase.settings = settings(
    JournalMachine.TestCase.settings, max_examples=EXAMPLES // 2
)
TestEncrypted = EncryptedMachine.TestCase
pytest.mark.slow(TestEncrypted)
