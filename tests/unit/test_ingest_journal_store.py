"""Source state from journal to journal, also over the time in which a flow has none."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from flumeng.agent.ingest.batch import NO_EVENTS
from flumeng.agent.ingest.journal_store import JournalStore
from flumeng.agent.ingest.worker_group import WorkerGroup
from flumeng.events.journal_names import maker_of
from flumeng.journal.log.contract import Log
from flumeng.journal.log.errors import DiskFullError, JournalFailedError
from flumeng.journal.log.limits import Limits
from tests.testkit.journal import numbered_events


def read_to(journal_store: JournalStore, offset: int) -> str:
    """The flow's source has read to ``offset``; gives the journal that says so."""
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
    """The flow's sources are taken away, and its journal is drained and removed."""
    journal_store.close_all_but(frozenset())
    journal_store.remove(journal)
    assert not journal_store.journals


def test_a_flow_that_comes_back_after_its_journal_went_goes_on_where_it_was(
    tmp_path: Path,
) -> None:
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


def test_a_journal_that_takes_nothing_yet_has_the_state_of_the_last_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker that dies before there is room reads everything again."""
    journal_store = JournalStore(tmp_path, "n1")
    stop_flow(journal_store, read_to(journal_store, 250))
    with monkeypatch.context() as full:
        full.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=1))
        for _ in range(3):
            with contextlib.suppress(DiskFullError):
                journal_store.give_back(journal_store.take("web"))
        assert len(list((tmp_path / "journals/0").iterdir())) <= 1
    journal_store.close()
    again = JournalStore(tmp_path, "n1")
    assert position(again) == 250
    again.close()


def test_each_worker_has_its_own_journals_and_the_first_drains_those_of_none(
    tmp_path: Path,
) -> None:
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


def test_a_worker_that_starts_leaves_the_others_work_alone(tmp_path: Path) -> None:
    """What looks like a journal left half made may be one that another worker makes right now."""
    half = tmp_path / "journals/1/.web.n1.1.12345678.incomplete"
    half.mkdir(parents=True)
    JournalStore(tmp_path, "n1", WorkerGroup(0, 2)).close()
    assert half.exists()
    JournalStore(tmp_path, "n1", WorkerGroup(1, 2)).close()
    assert not half.exists()


def test_the_latest_of_several_states_counts(tmp_path: Path) -> None:
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


def test_a_flow_of_the_same_name_starts_afresh_once_the_old_one_is_gone(tmp_path: Path) -> None:
    journal_store = JournalStore(tmp_path, "n1")
    stop_flow(journal_store, read_to(journal_store, 250))
    journal_store.forget("web")
    assert position(journal_store) is None
    journal_store.close()


def fill(journal: Log) -> str:
    """Until it takes nothing more; why."""
    with pytest.raises(DiskFullError) as full:
        while True:
            journal.append(numbered_events(journal.next_seq, 10, 200))
            journal.sync()
    return full.value.cause


def test_a_flow_whose_readers_stand_still_leaves_room_for_the_others(tmp_path: Path) -> None:
    """Each that stands still leaves a part of what there is, and one that is read goes on."""
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


def test_all_journals_together_hold_no_more_than_the_node_allows(tmp_path: Path) -> None:
    """What one gives back the other may take; what is only retained is given back."""
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


def test_what_is_to_be_retained_outlives_the_worker(tmp_path: Path) -> None:
    """Acks are known before the flow says what to retain."""
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


def test_a_journal_that_ends_below_an_ack_takes_no_more(tmp_path: Path) -> None:
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


def test_a_spill_journal_of_which_a_failed_sync_took_events_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: readers have seen their seqs."""
    journal_store = JournalStore(tmp_path, "here")
    journal = journal_store.take("web", "spill")
    (segment,) = tmp_path.glob(f"journals/0/{journal.id}/*.segment")
    on_disk = segment.stat().st_size
    journal.append(numbered_events(0, 10))
    assert journal.sync() == 10

    def failing(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", failing)
        with pytest.raises(JournalFailedError):
            journal.close_for_appends()
        journal_store.give_back(journal, failed=True)
    os.truncate(segment, on_disk)  # what the kernel has dropped
    assert journal_store.take("web", "spill").id != journal.id
    assert journal_store.journals[journal.id].closed
    journal_store.close()


def test_a_journal_that_has_failed_does_not_keep_others_from_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal_store = JournalStore(tmp_path, "here")
    journals = [journal_store.take(flow) for flow in ("a", "b")]

    def failing(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    journals[0].append(numbered_events(0, 10))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", failing)
        with pytest.raises(JournalFailedError):
            journals[0].sync()
    journal_store.give_back(journals[0], failed=True)
    journal_store.give_back(journals[1])
    journal_store.close_all_but(frozenset())
    assert journals[1].closed
    journal_store.close()


def test_what_lies_in_a_data_directory_that_somebody_else_made_is_for_nobody_else(
    tmp_path: Path,
) -> None:
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


def test_a_directory_that_is_no_journal_is_left_alone_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as what fsck or a person puts there: nothing else stops being served."""
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
        assert f"{name} is no journal" in caplog.text
        assert (tmp_path / "journals/0" / name / "note").exists()


def journal_of_ten(place: Path) -> tuple[JournalStore, str]:
    """The journal store of a process that starts again, and its journal with ten events."""
    journal_store = JournalStore(place, "n1")
    journal = journal_store.take("web")
    journal.append(numbered_events(0, 10), {"app.log": 250})
    journal_store.close()
    return JournalStore(place, "n1"), journal.id


@pytest.mark.parametrize(
    ("seen", "restored", "why"),
    [
        (11, False, "events up to seq 11"),
        (None, False, "not known"),
        (0, True, "copied or restored"),
    ],
)
def test_journal_that_may_be_older_than_its_readers_takes_no_events(
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


def test_journal_takes_events_again_where_its_readers_have_not_passed_its_end(
    tmp_path: Path,
) -> None:
    again, name = journal_of_ten(tmp_path)
    again.earlier.tell({name: 10}, restored=False)
    assert again.take("web").id == name
    assert again.earlier.refused == {}
    again.close()


def test_journal_made_after_the_start_is_not_measured_by_what_was_known_then(
    tmp_path: Path,
) -> None:
    """A worker that crashes is told the same again."""
    again, name = journal_of_ten(tmp_path)
    again.earlier.tell({name: None}, restored=True)
    fresh = again.take("web")
    again.close()
    third = JournalStore(tmp_path, "n1")
    third.earlier.tell({name: None}, restored=True)
    assert third.take("web").id == fresh.id
    third.close()
