"""Source state from journal to journal, also over the time in which a flow has none."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest

from flumeng.agent.ingest.batch import NO_EVENTS
from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.ingest.worker_group import WorkerGroup
from flumeng.events.journal_names import maker_of
from flumeng.journal.log.contract import Log
from flumeng.journal.log.errors import DiskFullError, JournalFailedError
from flumeng.journal.log.limits import Limits
from tests.testkit.journal import TroubledDisk, numbered_events


def read_to(journal_store: JournalStore, offset: int) -> str:
    """The flow's source has read to ``offset``; returns the journal with this state."""
    journal = journal_store.take("web")
    journal.append(NO_EVENTS, {"app.log": offset})
    journal.sync()
    journal_store.give_back(journal)
    return journal.id


def position(journal_store: JournalStore) -> object:
    journal = journal_store.take("web")
    journal_store.give_back(journal)
    return journal.state.get("app.log")


def stop_flow(journal_store: JournalStore, journal: str) -> None:
    """Remove the flow's sources; its journal is drained and removed."""
    journal_store.close_all_but(frozenset())
    journal_store.remove(journal)
    assert not journal_store.journals


def test_a_flow_that_comes_back_after_its_journal_went_goes_on_where_it_was(tmp_path: Path) -> None:
    """Else a tailed file would be delivered a second time."""
    journal_store = JournalStore(tmp_path, "n1")
    stop_flow(journal_store, read_to(journal_store, 250))
    assert journal_store.sources.flows() == ["web"]
    assert position(journal_store) == 250
    journal_store.close()


def test_kept_state_survives_a_restart(tmp_path: Path) -> None:
    journal_store = JournalStore(tmp_path, "n1")
    stop_flow(journal_store, read_to(journal_store, 250))
    journal_store.close()
    journal_store = JournalStore(tmp_path, "n1")
    assert position(journal_store) == 250
    journal_store.close()


def test_new_journal_on_a_full_disk_keeps_the_state_of_the_last_one(tmp_path: Path) -> None:
    """Else a worker that dies before there is room reads everything again."""
    journal_store = JournalStore(tmp_path, "n1")
    disk = journal_store.disk = TroubledDisk()
    stop_flow(journal_store, read_to(journal_store, 250))
    disk.full = True
    for _ in range(3):
        with contextlib.suppress(DiskFullError):
            journal_store.give_back(journal_store.take("web"))
    assert len(list((tmp_path / "journals/0").iterdir())) <= 1
    disk.full = False
    journal_store.close()
    again = JournalStore(tmp_path, "n1")
    assert position(again) == 250
    again.close()


def test_worker_keeps_its_journals_and_the_first_drains_unassigned_ones(tmp_path: Path) -> None:
    pair = [JournalStore(tmp_path, "n1", WorkerGroup(number, 2)) for number in (0, 1)]
    journals = [journal_store.take("web") for journal_store in pair]
    assert [maker_of(journal.id) for journal in journals] == [0, 1]
    assert [list(journal_store.journals) for journal_store in pair] == [
        [journal.id] for journal in journals
    ]
    for journal_store in pair:
        journal_store.close()
    single = JournalStore(tmp_path, "n1", WorkerGroup(0, 1))
    assert set(single.journals) == {journal.id for journal in journals}
    assert single.take("web").id == journals[0].id
    assert single.take("web").id not in {journal.id for journal in journals}
    single.close_all_but(["web"])
    assert single.journals[journals[1].id].closed
    single.remove(journals[1].id)
    assert journals[1].id not in single.journals
    single.close()


def test_starting_worker_leaves_journals_of_other_workers_alone(tmp_path: Path) -> None:
    """A half-made journal may be one that another worker creates right now."""
    half = tmp_path / "journals/1/.web.n1.1.12345678.incomplete"
    half.mkdir(parents=True)
    JournalStore(tmp_path, "n1", WorkerGroup(0, 2)).close()
    assert half.exists()
    JournalStore(tmp_path, "n1", WorkerGroup(1, 2)).close()
    assert not half.exists()


def test_latest_source_state_of_several_journals_is_used(tmp_path: Path) -> None:
    journal_store = JournalStore(tmp_path, "n1")
    for offset in (250, 400, 600):
        stop_flow(journal_store, read_to(journal_store, offset))
    first = read_to(journal_store, 700)
    journal_store.close_all_but(frozenset())
    second = read_to(journal_store, 800)
    journal_store.close_all_but(frozenset())
    journal_store.remove(second)
    journal_store.remove(first)
    assert position(journal_store) == 800
    journal_store.close()


def test_flow_of_the_same_name_begins_without_the_state_of_the_removed_one(tmp_path: Path) -> None:
    journal_store = JournalStore(tmp_path, "n1")
    stop_flow(journal_store, read_to(journal_store, 250))
    journal_store.forget("web")
    assert position(journal_store) is None
    journal_store.close()


def fill(journal: Log) -> str:
    """Append until the journal refuses more; returns the reason."""
    with pytest.raises(DiskFullError) as full:
        while True:
            journal.append(numbered_events(journal.next_seq, 10, 200))
            journal.sync()
    return full.value.cause


@pytest.mark.slow
def test_flow_without_progress_leaves_room_for_the_others(tmp_path: Path) -> None:
    """Each such flow takes a part of the remaining room, and one that is read goes on."""
    journal_store = JournalStore(tmp_path, "here", max_bytes=1 << 20)
    healthy = journal_store.take("healthy", limits=Limits(max_bytes=1 << 18))
    for number in range(3):
        stuck = journal_store.take(f"stuck{number}")
        assert fill(stuck).startswith("disk share full: ")
        for _ in range(20):
            healthy.append(numbered_events(healthy.next_seq, 10, 200))
            healthy.sync()
            healthy.trim(healthy.safe)
    assert healthy.next_seq == 600
    journal_store.close()


@pytest.mark.slow
def test_all_journals_together_stay_within_the_nodes_limit(tmp_path: Path) -> None:
    """Room that one gives back the other may take; events that are only retained are given back."""
    journal_store = JournalStore(tmp_path, "here", max_bytes=1 << 20)
    keeps = Limits(max_bytes=1 << 20, retain_seconds=3600)
    names = ("one", *(f"other{number}" for number in range(9)))
    one, *others = (journal_store.take(name, limits=keeps) for name in names)
    assert re.fullmatch(
        r"disk share full: 5\d\d.\d KiB held, 5\d\d.\d KiB kept for other flows", fill(one)
    )
    for journal in others[:-1]:
        fill(journal)
    other = others[-1]
    with pytest.raises(DiskFullError):
        other.append(numbered_events(0, 3000, 200))
    assert sum(journal.bytes for journal in journal_store.journals.values()) <= 1 << 20
    one.trim(one.safe)
    one.append(numbered_events(0, 100, 200))
    other.append(numbered_events(0, 100, 200))
    journal_store.close()


def test_retained_events_survive_the_worker(tmp_path: Path) -> None:
    """Acks are known before the flow sets the retention."""
    keeps = Limits(max_bytes=1 << 20, retain_seconds=3600)
    journal_store = JournalStore(tmp_path, "here")
    journal = journal_store.take("web", limits=keeps)
    while journal.bytes < 1 << 19:
        journal.append(numbered_events(journal.next_seq, 100, 200))
    ack = journal.sync()
    journal.trim(ack)
    journal_store.close()
    again = JournalStore(tmp_path, "here")
    again.trim(journal.id, ack)
    kept = again.take("web", limits=keeps)
    assert (kept.id, kept.floor, kept.acked) == (journal.id, 0, ack)
    again.close()
    third = JournalStore(tmp_path, "here")
    third.trim(journal.id, ack)
    third.close_all_but(frozenset())
    assert third.journals[journal.id].floor > 0, "a closed one retains nothing"
    third.close()


def test_journal_that_ends_below_its_ack_is_closed_for_appends(tmp_path: Path) -> None:
    """I4: its next events would get seqs that readers have seen with others."""
    journal_store = JournalStore(tmp_path, "here")
    journal = journal_store.take("web")
    journal.append(numbered_events(0, 10))
    journal_store.close()
    again = JournalStore(tmp_path, "here")
    again.trim(journal.id, 11)
    fresh = again.take("web")
    assert fresh.id != journal.id
    assert again.journals[journal.id].closed
    again.close()


def test_acks_outlive_a_failure_of_their_journal(tmp_path: Path) -> None:
    """The node does not say them again, and at its mark a journal would wait for them for ever."""
    keeps = Limits(max_bytes=1 << 20, retain_seconds=3600)
    journal_store = JournalStore(tmp_path, "here")
    journal = journal_store.take("web", limits=keeps)
    journal.append(numbered_events(0, 100))
    journal.sync()
    journal.trim(40)
    journal_store.give_back(journal, failed=True)
    journal = journal_store.take("web", limits=keeps)
    assert journal.acked == 40
    journal_store.give_back(journal, failed=True)
    journal_store.trim(journal.id, 60)
    journal = journal_store.take("web", limits=keeps)
    assert journal.acked == 60
    journal_store.trim(journal.id, 80)
    journal_store.give_back(journal)
    assert journal.acked == 80
    journal_store.close()


def test_spill_journal_is_closed_for_appends_after_a_failed_sync(tmp_path: Path) -> None:
    """I4: readers have seen their seqs."""
    journal_store = JournalStore(tmp_path, "here")
    disk = journal_store.disk = TroubledDisk()
    journal = journal_store.take("web", "spill")
    (segment,) = tmp_path.glob(f"journals/0/{journal.id}/*.segment")
    on_disk = segment.stat().st_size
    journal.append(numbered_events(0, 10))
    assert journal.sync() == 10

    disk.fail_syncs()
    with pytest.raises(JournalFailedError):
        journal.close_for_appends()
    journal_store.give_back(journal, failed=True)
    disk.heal()
    os.truncate(segment, on_disk)  # the kernel has dropped these bytes
    assert journal_store.take("web", "spill").id != journal.id
    assert journal_store.journals[journal.id].closed
    journal_store.close()


def test_failed_journal_does_not_keep_others_from_being_closed(tmp_path: Path) -> None:
    journal_store = JournalStore(tmp_path, "here")
    disk = journal_store.disk = TroubledDisk()
    journals = [journal_store.take(flow) for flow in ("a", "b")]

    journals[0].append(numbered_events(0, 10))
    disk.fail_syncs()
    with pytest.raises(JournalFailedError):
        journals[0].sync()
    disk.heal()
    journal_store.give_back(journals[0], failed=True)
    journal_store.give_back(journals[1])
    journal_store.close_all_but(frozenset())
    assert journals[1].closed
    journal_store.close()


def test_files_in_a_prepared_data_directory_are_private(tmp_path: Path) -> None:
    """Paths of files are in the sources' state, and events in the journals."""
    for made in ("sources/0", "journals/0"):
        (tmp_path / made).mkdir(parents=True, mode=0o755)
    journal_store = JournalStore(tmp_path, "n1")
    stop_flow(journal_store, read_to(journal_store, 250))
    journal_store.close()
    for path in (tmp_path / "sources", tmp_path / "sources" / "0", tmp_path / "journals"):
        assert path.stat().st_mode & 0o077 == 0
    (kept,) = (tmp_path / "sources" / "0").glob("*.json")
    assert kept.stat().st_mode & 0o077 == 0


def test_foreign_directory_is_left_alone_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one of fsck or of a person: nothing else stops being served."""
    journal = read_to(journal_store := JournalStore(tmp_path, "n1"), 250)
    journal_store.close()
    foreign = ["lost+found", "backup", "web.old", "web.n1.x.0a1b2c3d"]
    for name in foreign:
        (tmp_path / "journals/0" / name).mkdir()
        (tmp_path / "journals/0" / name / "note").touch()
    (tmp_path / "journals" / "old").mkdir()
    journal_store = JournalStore(tmp_path, "n1")
    assert list(journal_store.journals) == [journal]
    assert (position(journal_store), journal_store.broken) == (250, 0)
    journal_store.close()
    for name in foreign:
        assert f"{name} is not a journal" in caplog.text
        assert (tmp_path / "journals/0" / name / "note").exists()


@pytest.mark.parametrize(
    ("acked", "why"),
    [
        (10, "all its events are collected"),
        (4, "its flow was deleted, and 6 of its events were not collected"),
    ],
)
def test_deletion_of_a_journal_is_logged_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, acked: int, why: str
) -> None:
    caplog.set_level("INFO")
    journal_store, name = journal_of_ten(tmp_path)
    journal_store.close_all_but(frozenset())
    journal_store.trim(name, acked)
    journal_store.remove(name)
    journal_store.close()
    assert f"the files of journal {name} are deleted: {why}" in caplog.messages


def journal_of_ten(place: Path) -> tuple[JournalStore, str]:
    """The journal store of a restarted process, and its journal with ten events."""
    journal_store = JournalStore(place, "n1")
    journal = journal_store.take("web")
    journal.append(numbered_events(0, 10), {"app.log": 250})
    journal_store.close()
    return JournalStore(place, "n1"), journal.id


@pytest.mark.parametrize(
    ("seen", "restored", "why"),
    [(11, False, "events up to seq 11"), (None, False, "unknown"), (0, True, "copied or restored")],
)
def test_restored_journal_takes_no_events_where_readers_may_be_ahead(
    tmp_path: Path, seen: int | None, restored: bool, why: str
) -> None:
    again, name = journal_of_ten(tmp_path)
    again.earlier.tell({name: seen}, restored=restored)
    fresh = again.take("web")
    assert fresh.id != name
    assert fresh.state.get("app.log") == 250
    assert again.journals[name].closed
    refused = again.earlier.refused[name]
    assert why in refused["why"]
    assert (refused["older"], refused["settled"]) == (seen is not None, True)
    again.trim(name, 11)
    assert again.journals[name].acked == 10
    again.remove(name)
    assert again.earlier.refused == {}
    again.close()


def test_restored_journal_takes_events_where_no_reader_passed_its_end(tmp_path: Path) -> None:
    again, name = journal_of_ten(tmp_path)
    again.earlier.tell({name: 10}, restored=False)
    assert again.take("web").id == name
    assert again.earlier.refused == {}
    again.close()


def test_journal_made_after_a_restore_is_not_checked_against_older_acks(tmp_path: Path) -> None:
    """A worker that crashes gets the same restore message again."""
    again, name = journal_of_ten(tmp_path)
    again.earlier.tell({name: None}, restored=True)
    fresh = again.take("web")
    again.close()
    third = JournalStore(tmp_path, "n1")
    third.earlier.tell({name: None}, restored=True)
    assert third.take("web").id == fresh.id
    third.close()
