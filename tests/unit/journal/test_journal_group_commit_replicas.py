"""Group commit over a journal with replicas: events are durable once the replicas have them too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from flumeng.journal.log import group_commit
from flumeng.journal.log.errors import HeldError, JournalFailedError
from flumeng.journal.log.group_commit import GroupCommit
from flumeng.platform.errors import UnavailableError
from tests.testkit.waiting import wait_for

TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Event:
    number: int
    nbytes: int = 100


class CopiedJournal:
    """Its own disk has all events at once; replicas have those below ``everywhere``."""

    id = "web.n1.0.00000000"
    state: Mapping[str, object] = {}
    restless = False

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.synced = self.everywhere = 0
        self.lost = False
        self.held = ""
        self._wake: Callable[[], None] = lambda: None

    def encode(self, batch: object, state: object = None) -> Event:
        raise NotImplementedError

    def append_encoded(self, payload: Event) -> int:
        if self.held:
            raise HeldError(self.held, self.held)
        self.events.append(payload)
        return len(self.events) - 1

    def sync(self) -> int:
        self.synced = len(self.events)
        return self.synced

    def confirms(self, end: int) -> bool:
        if self.lost:
            raise JournalFailedError("another replica is the primary")
        return end <= self.everywhere

    def on_confirmed(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def reach(self, everywhere: int) -> None:
        self.everywhere = everywhere
        self._wake()

    def lose(self) -> None:
        self.lost = True
        self._wake()

    def maintain(self) -> None: ...
    def trim(self, ack: int) -> None: ...


@pytest.fixture
def journal() -> CopiedJournal:
    return CopiedJournal()


class Commits:
    """A group commit with one event a group, and its notifications."""

    def __init__(self, journal: CopiedJournal, max_bytes: int = 10_000) -> None:
        self.durable: list[tuple[list[int], int]] = []
        self.pressure: list[bool] = []
        self.failed: list[Exception] = []
        self.journal = journal

        def build(items: list[Event]) -> Iterable[Event]:
            return items

        self.commit: GroupCommit[Event] = GroupCommit(
            journal,
            build,
            on_durable=lambda items, end: self.durable.append(([i.number for i in items], end)),
            on_pressure=self.pressure.append,
            on_failed=self.failed.append,
            group_bytes=100,
            max_bytes=max_bytes,
        )

    def submit(self, *numbers: int) -> None:
        """Submit; each item reaches the journal's own disk."""
        for number in numbers:
            self.commit.submit(Event(number))
            self.await_synced(number + 1)

    def await_synced(self, count: int) -> None:
        wait_for(lambda: self.journal.synced == len(self.journal.events) >= count)


@pytest.fixture
def commits(journal: CopiedJournal) -> Iterator[Commits]:
    commits = Commits(journal)
    yield commits
    journal.reach(1000)
    commits.commit.stop()


def test_groups_are_settled_in_order_when_all_replicas_have_them(
    journal: CopiedJournal, commits: Commits
) -> None:
    """Several may be on their way."""
    commits.submit(0, 1, 2)
    assert commits.durable == []
    assert commits.commit.pending_bytes == 300
    settled: list[str] = []
    commits.commit.when_settled(lambda: settled.append("three"))
    commits.submit(3)
    journal.reach(2)
    wait_for(lambda: len(commits.durable) == 2)
    assert commits.durable == [([0], 1), ([1], 2)]
    assert (commits.commit.pending_bytes, settled) == (200, [])
    journal.reach(4)
    wait_for(lambda: len(commits.durable) == 4)
    assert commits.durable[2:] == [([2], 3), ([3], 4)]
    wait_for(lambda: settled == ["three"])
    assert commits.pressure == []


@pytest.mark.slow
def test_events_that_replicas_lack_for_long_cause_back_pressure(
    journal: CopiedJournal, commits: Commits
) -> None:
    commits.submit(0)
    assert commits.commit.held_by == ""
    wait_for(lambda: commits.pressure == [True])
    assert commits.commit.held_by == "other replicas do not have it yet"
    commits.submit(1)
    time.sleep(0.1)
    assert commits.pressure == [True], "that one's own disk has it changes nothing"
    journal.reach(2)
    wait_for(lambda: commits.pressure == [True, False])
    wait_for(lambda: commits.durable == [([0], 1), ([1], 2)])
    assert commits.commit.held_by == ""


def test_events_that_wait_for_replicas_count_as_pending(journal: CopiedJournal) -> None:
    """So that memory stays bounded, however long they are away."""
    commits = Commits(journal, max_bytes=250)
    commits.submit(0, 1, 2)
    assert commits.pressure == [True]
    journal.reach(2)
    wait_for(lambda: commits.pressure == [True, False])
    journal.reach(3)
    commits.commit.stop()


@pytest.mark.slow
def test_stop_gives_up_after_a_while_and_settles_nothing_unconfirmed(
    journal: CopiedJournal,
) -> None:
    commits = Commits(journal)
    commits.submit(0, 1)
    journal.reach(1)
    wait_for(lambda: len(commits.durable) == 1)
    began = time.monotonic()
    commits.commit.stop()
    assert time.monotonic() - began < group_commit.STOP_SECONDS + TIMEOUT_SECONDS
    assert commits.durable == [([0], 1)]
    assert commits.failed == []
    with pytest.raises(
        UnavailableError, match="100 bytes of events are not durable: other replicas do not"
    ):
        commits.commit.drain()


def test_stop_waits_for_events_that_replicas_are_about_to_have(journal: CopiedJournal) -> None:
    commits = Commits(journal)
    commits.submit(0)
    ended: list[bool] = []
    commits.commit.end(lambda: ended.append(True))
    time.sleep(0.3)
    assert ended == []
    journal.reach(1)
    wait_for(lambda: ended == [True])
    assert commits.durable == [([0], 1)]


def test_nothing_is_settled_after_another_replica_leads(journal: CopiedJournal) -> None:
    commits = Commits(journal)
    commits.submit(0, 1)
    journal.everywhere = 2
    journal.lose()
    wait_for(lambda: bool(commits.failed))
    assert commits.durable == []
    with pytest.raises(JournalFailedError, match="another replica is the primary"):
        commits.commit.submit(Event(2))
    with pytest.raises(JournalFailedError):
        commits.commit.drain()
    commits.commit.stop()
    assert len(commits.failed) == 1


def test_appended_events_settle_while_the_journal_takes_no_more(
    journal: CopiedJournal, commits: Commits
) -> None:
    commits.submit(0)
    journal.held = "too few replicas"
    commits.commit.submit(Event(1))
    wait_for(lambda: commits.commit.held_by == "too few replicas")
    assert commits.pressure == [True]
    journal.reach(1)
    wait_for(lambda: commits.durable == [([0], 1)])
    assert (commits.pressure, commits.commit.held_by) == ([True], "too few replicas")
    journal.held = ""
    journal.reach(2)
    wait_for(lambda: commits.durable == [([0], 1), ([1], 2)])
    wait_for(lambda: commits.pressure == [True, False])


@pytest.mark.slow
def test_hold_is_logged_with_each_reason_and_its_end(
    journal: CopiedJournal,
    commits: Commits,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also when the journal waited for its replicas before, without a line."""
    caplog.set_level("INFO")
    monkeypatch.setattr(group_commit, "LOG_AGAIN_SECONDS", 0.0)

    def wait_for_hold(reason: str) -> None:
        wait_for(lambda: commits.commit.held_by == reason)

    commits.submit(0)
    wait_for_hold("other replicas do not have it yet")
    for reason in ("too few replicas", "the disk is full"):
        journal.held = reason
        commits.commit.submit(Event(1))
        wait_for_hold(reason)
    journal.reach(3)
    journal.held = ""
    wait_for(lambda: commits.pressure == [True, False])
    rest = "; the journal takes no events until that changes"
    assert caplog.messages == [
        f"too few replicas{rest}",
        f"the disk is full{rest}",
        f"journal {journal.id} takes events again",
    ]
