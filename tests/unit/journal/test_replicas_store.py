"""Replicated journals among the others of a worker: taken, closed, given up.

Protects that a flow's sources go on where the events end that the cluster has, wherever these are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flumeng.agent.ingest.journal_store import Ended, JournalStore
from flumeng.agent.ingest.worker import Worker
from flumeng.agent.node.protocol import Message
from flumeng.journal.log.disk import Disk
from flumeng.journal.log.errors import HeldError, JournalFailedError
from flumeng.journal.log.replica import Replica
from flumeng.journal.log.replica_journal import ReplicaJournal
from flumeng.journal.replicas.replicas import Replicas
from flumeng.journal.replicas.replicated_journal import ReplicatedJournal
from flumeng.journal.replication.membership import Membership
from flumeng.journal.replication.messages import Begin, Frames
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from tests.testkit.journal import numbered_events


def open_store(
    data: Path,
    node: str = "n1",
    disk: Disk | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> JournalStore:
    return JournalStore(data, node, replicas=Replicas(node, data / "copies", disk, clock=clock))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JournalStore]:
    store = open_store(tmp_path / "n1")
    yield store
    close(store)


def close(store: JournalStore) -> None:
    store.replicas.stop()
    store.close()


def take(store: JournalStore) -> ReplicatedJournal:
    journal = store.take("web", "replicated")
    assert isinstance(journal, ReplicatedJournal)
    return journal


def tell(store: JournalStore, name: str, *others: str, primary: str = "", term: int = 1) -> None:
    """Set the primary of a journal, the local replica or another one, and the other replicas in
    sync."""
    journal = store.replicas.journals[name]
    leads = primary or journal.replica_id
    membership = Membership(journal.lineage, term, leads, (leads, *others), ("n1",))
    told = {name: {"version": term, "created": 1, **membership.as_message()}}
    store.replicas.set_memberships({"addresses": {}, "journals": told})
    store.serve_led()


def append(journal: ReplicatedJournal, count: int) -> None:
    """Append events that a source has read up to this offset."""
    start = journal.next_seq
    journal.append(numbered_events(start, count), {"app.log": start + count})
    journal.sync()


def written(store: JournalStore, *, end: int = 30) -> ReplicatedJournal:
    """A taken local journal with a frame for each ten events; it leads, and the other replica has
    not answered."""
    journal = take(store)
    tell(store, journal.id, "n2/x")
    while journal.next_seq < end:
        append(journal, 10)
    return journal


def position(store: JournalStore) -> object:
    """The position at which the flow's sources continue."""
    journal = take(store)
    store.give_back(journal)
    return journal.state.get("app.log", 0)


# Taken.


def test_replicated_journal_is_taken_again_also_after_a_restart(
    store: JournalStore, tmp_path: Path
) -> None:
    journal = take(store)
    with pytest.raises(HeldError):
        append(journal, 1)
    tell(store, journal.id)
    append(journal, 10)
    store.give_back(journal)
    assert take(store) is journal
    close(store)
    again = open_store(tmp_path / "n1")
    assert take(again).id == journal.id
    assert again.journals[journal.id].state == {"app.log": 10}
    close(again)


def test_journal_of_another_durability_is_closed_once_it_leads(store: JournalStore) -> None:
    """Its end is unknown before."""
    journal = take(store)
    tell(store, journal.id)
    append(journal, 10)
    store.give_back(journal, failed=True)
    with pytest.raises(UserError, match="not closed: this replica is not the primary"):
        store.take("web", "disk")
    assert list(store.journals) == [journal.id]
    tell(store, journal.id, term=2)
    other = store.take("web", "disk")
    assert other.id != journal.id
    assert store.journals[journal.id].closed
    assert other.state["app.log"] == 10


# Given up.


def supersede(store: JournalStore, name: str) -> None:
    tell(store, name, primary="n2/x", term=7)


def test_events_that_the_new_primary_lacks_are_removed_and_read_again(
    store: JournalStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    journal = written(store)
    store.give_back(journal)
    supersede(store, journal.id)
    store.give_up_superseded({journal.id: Ended(20, gone=False)})
    assert store.journals == {}
    assert f"the files of journal {journal.id} are deleted: another node has ended it" in (
        caplog.messages
    )
    assert journal.id not in store.replicas.journals
    assert not (tmp_path / "n1/journals/0" / journal.id).exists()
    assert position(store) == 20


def test_flow_waits_until_the_end_of_its_superseded_journal_is_known(store: JournalStore) -> None:
    """Its sources would go on behind events that no replica has."""
    journal = written(store)
    supersede(store, journal.id)
    with pytest.raises(JournalFailedError):
        append(journal, 1)
    store.give_back(journal, failed=True)
    with pytest.raises(UnavailableError, match="has not ended it yet"):
        take(store)
    store.give_up_superseded({journal.id: Ended(20, gone=False)})
    assert position(store) == 20


def test_journal_is_closed_once_it_leads_and_until_then_that_is_no_error(
    store: JournalStore, caplog: pytest.LogCaptureFixture
) -> None:
    journal = take(store)
    store.give_back(journal)
    store.close_all_but(frozenset())
    assert (journal.closed, caplog.messages) == (False, [])
    tell(store, journal.id)
    store.close_all_but(frozenset())
    assert journal.closed


def test_journal_in_use_is_given_up_when_it_is_given_back(store: JournalStore) -> None:
    """The worker gets the message once."""
    journal = written(store)
    supersede(store, journal.id)
    store.give_up_superseded({journal.id: Ended(20, gone=False)})
    assert list(store.journals) == [journal.id]
    store.give_back(journal, failed=True)
    assert store.journals == {}
    assert store.broken == 0
    assert position(store) == 20


def test_superseded_journal_waits_for_missing_events_unless_they_are_gone(
    store: JournalStore,
) -> None:
    journal = written(store)
    store.give_back(journal)
    supersede(store, journal.id)
    store.give_up_superseded({journal.id: Ended(40, gone=False)})
    assert list(store.journals) == [journal.id]
    with pytest.raises(UnavailableError):
        take(store)
    store.give_up_superseded({journal.id: Ended(40, gone=True)})
    assert position(store) == 30


def test_events_given_up_by_an_operator_are_read_again(store: JournalStore) -> None:
    """All replicas had them, and the one that leads now had not joined."""
    journal = take(store)
    tell(store, journal.id)
    append(journal, 10)
    append(journal, 10)
    assert journal.safe == 20
    store.give_back(journal, failed=True)
    take(store)  # as after a restart: the checkpoint is on disk
    store.give_back(store.replicas.journals[journal.id])
    supersede(store, journal.id)
    store.give_up_superseded({journal.id: Ended(10, gone=False)})
    assert position(store) == 10


def test_journal_that_ended_below_its_own_floor_is_given_up(store: JournalStore) -> None:
    """An operator gave events up; the trimmed ones here were delivered."""
    journal = written(store, end=20)
    store.give_back(journal, failed=True)
    journal = take(store)
    tell(store, journal.id, term=2)
    append(journal, 10)
    assert journal.safe == 30
    journal.trim(20)
    assert journal.floor == 20
    store.give_back(journal)
    supersede(store, journal.id)
    store.give_up_superseded({journal.id: Ended(5, gone=False)})
    assert position(store) == 20


def test_journal_led_by_this_node_is_not_given_up(store: JournalStore) -> None:
    journal = written(store)
    store.give_back(journal)
    store.give_up_superseded({journal.id: Ended(20, gone=True)})
    assert journal.next_seq == 30
    assert take(store) is journal


def test_damaged_journal_that_another_node_ended_is_set_aside(
    store: JournalStore, tmp_path: Path
) -> None:
    journal = written(store)
    close(store)
    folder = tmp_path / "n1/journals/0"
    (folder / journal.id / "checkpoint").write_bytes(b"")
    again = open_store(tmp_path / "n1")
    assert again.broken == 1
    superseded = Membership(journal.lineage, 5, "n2/x", ("n2/x",), ("n1", "n2"))
    told = {journal.id: {"version": 5, "created": 1, **superseded.as_message()}}
    again.replicas.set_memberships({"addresses": {}, "journals": told})
    again.give_up_superseded({journal.id: Ended(20, gone=False)})
    assert again.broken == 0
    assert (folder / f".{journal.id}.damaged").exists()
    with pytest.raises(UnavailableError):
        position(again)
    fill(again, journal)
    assert position(again) == 20
    assert [path.name for path in folder.glob(".*")] == [f".{journal.id}.damaged"]
    close(again)


def fill(store: JournalStore, lost: ReplicatedJournal) -> None:
    """Act as n2, which ended it at 20: send its events to the replica that began again."""
    made = ReplicaJournal.make(store.path / "n2", lost.id, Replica("n2/x", lost.lineage), term=5)
    for start in (0, 10):
        made.append(numbered_events(start, 10), {"app.log": start + 10})
    made.sync()
    anew = store.replicas.journals[lost.id]
    frames = [frame for window in made.written_frames(0, 20) for frame in window]
    anew.take(Begin(lost.lineage, 5, made.held), [], made.source_state_at_floor)
    anew.take(Frames(5, 0, 20, made.held.history, 20, 0), frames, {})
    made.remove()
    store.give_up_superseded({lost.id: Ended(20, gone=False)})


def damage(segment: Path, at: int = -10) -> None:
    raw = bytearray(segment.read_bytes())
    raw[at] ^= 1
    segment.write_bytes(raw)


@pytest.mark.parametrize("end", [20, 30], ids=["ended before ours", "ended where ours does"])
def test_journal_damaged_while_it_led_is_kept_and_its_sources_continue(
    store: JournalStore, end: int
) -> None:
    journal = written(store)
    tell(store, journal.id)
    (segment,) = (store.path / "0" / journal.id).glob("*.segment")
    damage(segment)
    with pytest.raises(CorruptError, match="checksum"):
        list(journal.read_frames(0, 30))
    store.give_back(journal, failed=True)
    supersede(store, journal.id)
    store.give_up_superseded({journal.id: Ended(end, gone=False)})
    assert (store.path / "0" / f".{journal.id}.damaged" / segment.name).exists()
    if end == 20:
        with pytest.raises(UnavailableError):
            position(store)
        fill(store, journal)
    assert position(store) == end


def test_sources_continue_at_the_end_of_a_journal_with_a_damaged_old_segment(
    store: JournalStore,
) -> None:
    """It opens again, as old segments are not read then, and is of no use all the same."""
    journal = written(store, end=10)
    store.give_back(journal, failed=True)
    journal = take(store)
    tell(store, journal.id, term=2)
    append(journal, 10)
    append(journal, 10)
    old, _ = sorted((store.path / "0" / journal.id).glob("*.segment"))
    damage(old, -100)
    with pytest.raises(CorruptError, match="checksum"):
        list(journal.read_frames(0, 30))
    store.give_back(journal, failed=True)
    supersede(store, journal.id)
    store.give_up_superseded({journal.id: Ended(20, gone=False)})
    assert (store.path / "0" / f".{journal.id}.damaged" / old.name).exists()
    assert position(store) == 20


# Commands to the worker, and its statuses.


async def status_of(store: JournalStore, *told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The last status of a worker that got these messages, and then the stop."""
    said: list[Message] = []
    worker = Worker(store, ("127.0.0.1", 0), said.append, key_seconds=0.05)
    messages: asyncio.Queue[Message] = asyncio.Queue()
    running = asyncio.create_task(worker.run(messages))
    for one in told:
        messages.put_nowait(dict(one))
    await asyncio.sleep(0.5)
    messages.put_nowait({"type": "stop", "drain_seconds": 0.0})
    await running
    return [one for one in said if one["type"] == "status"][-1]


def message(store: JournalStore, name: str, *others: str) -> Mapping[str, Any]:
    journal = store.replicas.journals[name]
    in_sync = (journal.replica_id, *others)
    membership = Membership(journal.lineage, 1, journal.replica_id, in_sync, ("n1",))
    told = {name: {"version": 1, "created": 1, **membership.as_message()}}
    said = {"type": "replicas", "journals": told, "addresses": {}}
    return {**said, "ended": {}, "unwanted": [], "texts": {}}


CONFIGURED = {"type": "configure", "number": 1, "tasks": []}


@pytest.mark.slow
@pytest.mark.parametrize(("others", "closed"), [((), True), (("n2/b",), False)])
def test_end_of_a_journal_is_reported_once_all_replicas_in_sync_end_there(
    store: JournalStore, others: tuple[str, ...], *, closed: bool
) -> None:
    """A later primary may lack events at its end, and the maker reads again the events behind the
    reported end."""
    journal = take(store)
    tell(store, journal.id, *others)
    append(journal, 10)
    store.give_back(journal)
    told = message(store, journal.id, *others)
    said = asyncio.run(status_of(store, CONFIGURED, told))["journals"][journal.id]
    assert journal.closed
    assert (said["closed"], said["end"]) == (closed, 10 if closed else None)
    assert (said["replica"], said["leads"]) == (journal.replica_id, True)
    assert not said["damaged"]


@pytest.mark.slow
def test_damage_of_a_journal_is_reported_to_the_node(store: JournalStore) -> None:
    journal = written(store)
    store.give_back(journal)
    (segment,) = (store.path / "0" / journal.id).glob("*.segment")
    damage(segment)
    with pytest.raises(UnavailableError):
        list(journal.frames(0, 30))
    told = message(store, journal.id, "n2/x")
    assert asyncio.run(status_of(store, told))["journals"][journal.id]["damaged"]


@pytest.mark.slow
def test_nothing_is_closed_before_the_flows_are_configured(store: JournalStore) -> None:
    journal = take(store)
    store.give_back(journal)
    other = store.take("app")
    store.give_back(other)
    asyncio.run(status_of(store, message(store, journal.id)))
    assert not store.journals[journal.id].closed
    assert not store.journals[other.id].closed
