"""Replicas of other hosts' journals in a worker: made, served while they lead, begun again.

Protects that only the primary that ZooKeeper names is obeyed, that a damaged replica is kept and
recreated, and that nothing of another host's journal is taken for our own.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.journal.log.replica import Replica
from flumeng.journal.log.replica_journal import ReplicaJournal
from flumeng.journal.replicas.replicas import LOOK_SECONDS
from flumeng.journal.replication.history import Log
from flumeng.journal.replication.membership import Membership
from flumeng.journal.replication.messages import Began, Begin, Frames, Refused, ToPrimary, Unmatched
from flumeng.journal.serving import replica_wire
from flumeng.journal.serving.access import Peer
from flumeng.journal.serving.replica_wire import Envelope
from flumeng.journal.serving.wire import FRAMES_SCHEMA
from flumeng.platform.backoff import FIRST_SECONDS, MOST_SECONDS
from flumeng.platform.security.identity import Identity
from tests.testkit.clock import Clock
from tests.testkit.journal import FaultyDisk, numbered_events
from tests.testkit.waiting import wait_for
from tests.unit.journal.test_replicas_store import close, open_store, position, take, tell

THEIRS, SECOND = "web.n9.0.00000000", "web.n9.0.00000001"
NOBODY = Peer(None)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def store(tmp_path: Path, disk: FaultyDisk, clock: Clock) -> Iterator[JournalStore]:
    store = open_store(tmp_path / "n1", disk=disk, clock=clock)
    yield store
    close(store)


@dataclass
class Talk:
    """A connection from another node's worker with these messages, or only signs of life; it
    records the answers."""

    said: list[tuple[Envelope | None, pa.RecordBatch | None]]
    heard: list[ToPrimary] = field(default_factory=list)
    app_metadata: pa.Buffer = None
    data: pa.RecordBatch | None = None

    def read_chunk(self) -> Talk:
        if not self.said:
            raise StopIteration
        envelope, self.data = self.said.pop(0)
        ping = pa.py_buffer(replica_wire.PING)
        self.app_metadata = replica_wire.buffer(envelope) if envelope else ping
        return self

    def begin(self, schema: pa.Schema) -> None:
        assert schema == FRAMES_SCHEMA

    def write_metadata(self, data: pa.Buffer) -> None:
        if data.to_pybytes() == replica_wire.PING:
            return
        message = replica_wire.decode(data.to_pybytes()).message
        self.heard.append(message)  # type: ignore[arg-type]


@pytest.fixture
def far(tmp_path: Path) -> Iterator[ReplicaJournal]:
    """A journal on n9 with thirty events that no replica has acked."""
    made = ReplicaJournal.make(tmp_path / "n9", THEIRS, Replica.new("n9"), term=5)
    for start in (0, 10, 20):
        made.append(numbered_events(start, 10), {"app.log": 1000 + start})
    made.sync()
    made.advance(30)
    yield made
    made.close()


def replica_of(store: JournalStore, far: ReplicaJournal) -> list[ToPrimary]:
    """Begin or continue a replica and send it all events; returns its answers."""
    frames = [frame.to_pybytes() for window in far.written_frames(0, 30) for frame in window]
    rows = pa.RecordBatch.from_arrays([pa.array(frames, pa.binary())], schema=FRAMES_SCHEMA)
    begin = Begin(far.replica.lineage, 5, far.held)
    events = Frames(5, 0, 30, far.held.history, 30, 0)
    first = Envelope(far.id, begin, dict(far.source_state_at_floor), far.cipher.reference)
    talk = Talk([(first, None), (Envelope(far.id, events), rows)])
    if far.id not in store.replicas.replicas:
        expect_replica(store, far)
    store.replicas.serve_replicas(NOBODY, talk, talk)
    return talk.heard


def expect_replica(store: JournalStore, far: ReplicaJournal, term: int = 5) -> None:
    """The node names n2 as the primary and expects a replica here."""
    nodes = ("n2", "n1", "n9")
    membership = Membership(far.replica.lineage, term, "n2/x", ("n2/x",), nodes)
    told = {far.id: {"version": 0, "created": 1, **membership.as_message()}}
    store.replicas.set_memberships({"addresses": {}, "journals": told})


def test_only_the_primary_that_zookeeper_names_is_obeyed(
    store: JournalStore, far: ReplicaJournal
) -> None:
    """Else any client that may connect here could have a replica removed."""
    begin = Begin(far.replica.lineage, 5, far.held)

    def heard(message: Begin, *, of: str = "") -> list[ToPrimary]:
        talk = Talk([(Envelope(far.id, message, {}), None)])
        peer = Peer(Identity("tests", "node", of)) if of else NOBODY
        store.replicas.serve_replicas(peer, talk, talk)
        return talk.heard

    assert heard(begin) == [], "ZooKeeper knows of no replica here"
    replica_of(store, far)
    kept = store.replicas.journals[THEIRS]
    assert heard(begin._replace(lineage="other", term=9)) == []
    assert heard(begin._replace(term=9, log=Log()), of="n3") == []
    assert heard(begin, of="n3") == []
    assert (kept.next_seq, kept.term) == (30, 5)
    assert [type(answer) for answer in heard(begin._replace(term=6), of="n2")] == [Began]
    assert heard(begin, of="n3") == []
    expect_replica(store, far, term=9)
    assert heard(begin._replace(term=8), of="n3") == [Refused(9)], (
        "the replica has not heard of it yet"
    )
    assert kept.term == 6


def test_replica_is_made_here_and_is_not_served(store: JournalStore, far: ReplicaJournal) -> None:
    answers = replica_of(store, far)
    assert [type(answer).__name__ for answer in answers] == ["Began", "Persisted"]
    made = store.replicas.journals[THEIRS]
    assert store.replicas.replicas == {THEIRS: made.replica_id}
    assert store.journals == {}
    assert (made.next_seq, made.state) == (30, {"app.log": 1020})


def test_a_replica_is_served_while_it_leads(store: JournalStore, far: ReplicaJournal) -> None:
    replica_of(store, far)
    for term in (6, 8):
        tell(store, THEIRS, term=term)
        assert list(store.journals) == [THEIRS]
        assert store.journals[THEIRS].closed
        tell(store, THEIRS, primary="n2/x", term=term + 1)
        assert store.journals == {}


def test_removed_replica_leaves_no_files_and_may_begin_again(
    store: JournalStore, far: ReplicaJournal, tmp_path: Path
) -> None:
    replica_of(store, far)
    tell(store, THEIRS, term=6)
    store.replicas.drop(THEIRS)
    store.serve_led()
    assert (store.journals, store.replicas.replicas) == ({}, {})
    assert list((tmp_path / "n1/copies").iterdir()) == []
    replica_of(store, far)
    tell(store, THEIRS, term=7)
    assert store.journals == {THEIRS: store.replicas.journals[THEIRS]}


def test_source_state_of_another_host_is_not_used_by_the_sources_here(
    store: JournalStore, far: ReplicaJournal
) -> None:
    """Its files have the same names."""
    replica_of(store, far)
    tell(store, THEIRS, term=6)
    assert position(store) == 0
    store.remove(THEIRS)
    assert THEIRS not in store.journals
    assert store.sources.flows() == []
    assert THEIRS not in store.replicas.replicas


def test_own_journal_that_came_back_as_a_replica_takes_no_events(
    store: JournalStore, far: ReplicaJournal, tmp_path: Path
) -> None:
    """Another node has ended it."""
    del store
    ours = open_store(tmp_path / "other", "n9")
    replica_of(ours, far)
    tell(ours, THEIRS, term=6)
    assert ours.journals[THEIRS].closed
    assert take(ours).id != THEIRS
    close(ours)


def test_damaged_replica_is_set_aside_and_recreated(
    store: JournalStore, far: ReplicaJournal, tmp_path: Path
) -> None:
    replica_of(store, far)
    before = store.replicas.replicas[THEIRS]
    close(store)
    folder = tmp_path / "n1/copies"
    (folder / THEIRS / "checkpoint").write_bytes(b"")
    again = open_store(tmp_path / "n1")
    assert again.replicas.replicas == {}
    assert [path.name for path in folder.iterdir()] == [f".{THEIRS}.damaged"]
    assert len(replica_of(again, far)) == 2
    assert again.replicas.replicas[THEIRS] != before, "it cannot pass for the one that was in sync"
    close(again)


def test_damaged_replica_that_cannot_be_renamed_does_not_stop_the_worker(
    store: JournalStore, far: ReplicaJournal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replica_of(store, far)
    close(store)
    folder = tmp_path / "n1/copies"
    (folder / THEIRS / "checkpoint").write_bytes(b"")
    (folder / f".{THEIRS}.damaged").touch()
    again = open_store(tmp_path / "n1")
    assert again.replicas.replicas == {}
    assert f"replica {THEIRS} is not used until a restart: " in caplog.text
    assert "Not a directory" in caplog.text
    close(again)


def pinged(store: JournalStore) -> list[ToPrimary]:
    """The messages to a primary that sends nothing."""
    talk = Talk([(None, None)])
    store.replicas.serve_replicas(NOBODY, talk, talk)
    return talk.heard


def damage(store: JournalStore, far: ReplicaJournal) -> None:
    """Damage the replica; returns when it is set aside, to be recreated from its primary."""
    store.replicas.journals[THEIRS].mark_damaged("a bit")
    assert replica_of(store, far) in ([], [Unmatched(5, "")]), "it takes no events"
    wait_for(lambda: not store.replicas.replicas, lambda: store.replicas.replicas)


@pytest.mark.slow
def test_replica_damaged_while_open_is_set_aside_and_its_primary_informed(
    store: JournalStore, far: ReplicaJournal, clock: Clock, tmp_path: Path
) -> None:
    replica_of(store, far)
    before = store.replicas.replicas[THEIRS]
    store.replicas.start(lambda _: None)
    damage(store, far)
    assert (tmp_path / "n1/copies" / f".{THEIRS}.damaged").exists()
    assert pinged(store) == [Unmatched(5, "")]
    clock.now += FIRST_SECONDS
    assert len(replica_of(store, far)) == 2
    assert store.replicas.replicas[THEIRS] != before, "it cannot pass for the one that was in sync"
    assert pinged(store) == []


@pytest.mark.slow
def test_replica_is_recreated_ever_more_rarely_while_its_disk_keeps_failing(
    store: JournalStore, far: ReplicaJournal, clock: Clock
) -> None:
    """Each time its primary has to send all that it holds."""
    replica_of(store, far)
    store.replicas.start(lambda _: None)
    for seconds in (1.0, 2.0, 4.0, 8.0):
        damage(store, far)
        clock.now += seconds - 0.5
        assert replica_of(store, far) == [Unmatched(5, "")]
        assert store.replicas.replicas == {}
        clock.now += 0.5
        assert len(replica_of(store, far)) == 2
    clock.now += 2 * MOST_SECONDS
    damage(store, far)
    clock.now += FIRST_SECONDS
    assert len(replica_of(store, far)) == 2


@pytest.mark.slow
def test_damaged_replica_that_may_be_the_last_one_is_kept_and_leads(
    store: JournalStore, far: ReplicaJournal
) -> None:
    """Its primary says nothing: perhaps there is none any more, and all but a bit of it is good."""
    replica_of(store, far)
    store.replicas.journals[THEIRS].mark_damaged("a bit")
    store.replicas.start(lambda _: None)
    time.sleep(3 * LOOK_SECONDS)
    assert list(store.replicas.replicas) == [THEIRS]
    assert pinged(store) == [Unmatched(5, "")], "a primary that is there is to recreate it"
    tell(store, THEIRS, term=6)
    assert store.replicas.journals[THEIRS].leads
    assert store.journals[THEIRS].safe == 30


def test_damaged_replica_that_is_to_lead_is_kept(
    store: JournalStore, far: ReplicaJournal, disk: FaultyDisk
) -> None:
    """Also while its disk is not ready for that."""
    replica_of(store, far)
    replica = store.replicas.journals[THEIRS]
    replica.mark_damaged("a bit")
    assert replica_of(store, far) == []
    disk.fail_write(errno.ENOSPC)
    tell(store, THEIRS, term=6)
    assert not disk.fails
    assert not replica.leads
    assert replica.set_aside_damaged() is None
    tell(store, THEIRS, primary="n2/x", term=7)
    assert replica.set_aside_damaged() is not None


@pytest.mark.slow
def test_replica_removed_during_the_damage_check_ends_no_thread(
    store: JournalStore, far: ReplicaJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica_of(store, far)
    store.replicas.start(lambda _: None)
    replica = store.replicas.journals[THEIRS]

    def gone() -> None:
        raise KeyError(THEIRS)

    monkeypatch.setattr(replica, "set_aside_damaged", gone)
    replica.mark_damaged("a bit")
    time.sleep(2 * LOOK_SECONDS)
    monkeypatch.undo()
    damage(store, far)


@pytest.mark.slow
def test_replica_that_cannot_be_set_aside_keeps_no_other_from_it(
    store: JournalStore,
    far: ReplicaJournal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its failure and that of its other work are lines without a traceback, and not repeated."""
    second = ReplicaJournal.make(tmp_path / "n9", SECOND, Replica.new("n9"), term=5)
    second.append(numbered_events(0, 30), {"app.log": 1000})
    second.sync()
    second.advance(30)
    for journal in (far, second):
        replica_of(store, journal)
    failing, other = (store.replicas.journals[name] for name in (THEIRS, SECOND))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    for name in ("set_aside_damaged", "tick"):
        monkeypatch.setattr(failing, name, fail)
    for replica in (failing, other):
        replica.mark_damaged("a bit")
    for journal in (far, second):
        replica_of(store, journal)
    store.replicas.start(lambda _: None)
    wait_for(lambda: SECOND not in store.replicas.replicas, lambda: store.replicas.replicas)
    time.sleep(2 * LOOK_SECONDS)
    failures = [record for record in caplog.records if "no space" in record.getMessage()]
    assert [record.exc_info for record in failures] == [None, None]
    assert list(store.replicas.replicas) == [THEIRS]
    monkeypatch.undo()
    second.close()


@pytest.mark.slow
def test_unexpected_failure_of_periodic_work_is_one_traceback(
    store: JournalStore,
    far: ReplicaJournal,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica_of(store, far)

    def fail(*_: object) -> None:
        raise AssertionError("as it was told to")

    monkeypatch.setattr(store.replicas.journals[THEIRS], "tick", fail)
    store.replicas.start(lambda _: None)
    wait_for(lambda: "periodic work failed" in caplog.text)
    time.sleep(3 * LOOK_SECONDS)
    assert [bool(record.exc_info) for record in caplog.records] == [True]
    monkeypatch.undo()


def test_replica_that_fails_to_close_keeps_no_other_from_closing(
    store: JournalStore, far: ReplicaJournal, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    replica_of(store, far)
    replica = store.replicas.journals[THEIRS]
    disk.failing_sync = errno.EIO
    store.replicas.stop()
    assert f"replica {THEIRS} is not closed cleanly" in caplog.text
    replica.close()


@pytest.mark.slow
def test_damaged_primary_is_not_set_aside_while_no_other_replica_leads(
    store: JournalStore, far: ReplicaJournal
) -> None:
    replica_of(store, far)
    tell(store, THEIRS, term=6)
    store.replicas.journals[THEIRS].mark_damaged("a bit")
    store.replicas.start(lambda _: None)
    time.sleep(3 * LOOK_SECONDS)
    assert list(store.replicas.replicas) == [THEIRS]
    assert store.journals[THEIRS].safe == 30


def test_replica_continues_after_a_restart(
    store: JournalStore, far: ReplicaJournal, tmp_path: Path
) -> None:
    replica_of(store, far)
    before = store.replicas.replicas
    close(store)
    again = open_store(tmp_path / "n1")
    assert again.replicas.replicas == before
    assert again.replicas.journals[THEIRS].next_seq == 30
    close(again)


def test_replicas_accept_messages_of_primaries_about_journals_only(
    store: JournalStore, far: ReplicaJournal
) -> None:
    begin = Begin(far.replica.lineage, 5, far.held)
    for name in ("../x", "x", "a/b"):
        talk = Talk([(Envelope(name, begin, {}), None)])
        store.replicas.serve_replicas(NOBODY, talk, talk)
        assert talk.heard == []
    events = Frames(5, 0, 30, far.held.history, 30, 0)
    talk = Talk([(Envelope(THEIRS, events), None)])
    store.replicas.serve_replicas(NOBODY, talk, talk)
    assert talk.heard == [], "it is of no journal that is to be here"
    expect_replica(store, far)
    talk = Talk([(Envelope(THEIRS, events), None)])
    store.replicas.serve_replicas(NOBODY, talk, talk)
    assert talk.heard == [Unmatched(5, "")], "it is of no journal that is here"
    assert store.replicas.replicas == {}
