"""Claims fence: only the last claimant can move an ack."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.publisher import Publisher
from flumeng.connectors.api.ranged import Range
from flumeng.control.zookeeper import ABSENT, ANY, Found, Put, Version, Write, tree
from flumeng.platform.errors import ConflictError, CorruptError
from tests.testkit.cluster import add_flow
from tests.testkit.collector import register
from tests.testkit.scripted_store import ScriptedStore, checks, once
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, Commit, Partition, Partitions, Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)


@pytest.fixture
def store() -> ScriptedStore:
    store = ScriptedStore()
    tree.init(store)
    add_flow(store)
    return store


def ack(store: FakeStore, partition: str) -> Ack:
    found = store.read(paths.ack("web", CURSOR_MAIN, partition))
    assert found is not None
    return found.value


def claim(store: FakeStore, epoch: int, partitions: list[str]) -> Acks:
    register(store, "web", *partitions)
    return Acks.claim(store, Publisher(store, gap_seconds=0.0), "web", epoch, partitions)


def test_first_claim_starts_at_zero_and_inherits_nothing(store: FakeStore) -> None:
    acks = claim(store, 3, ["a", "b"])
    assert acks.offsets == {"a": 0, "b": 0}
    assert acks.inherited == set()
    assert ack(store, "a") == Ack(epoch=3, offset=0)


def discover(store: FakeStore, **partitions: Partition) -> None:
    """Record the partitions, each ``NAME@broker``, as a discovery task does."""
    found = {f"{name}@broker": partition for name, partition in partitions.items()}
    store.write(paths.partitions("web"), Partitions(partitions=found), ANY)


def test_discovered_partition_starts_at_its_recorded_offset(store: ScriptedStore) -> None:
    """A broker may have dropped the first messages: zero would be the offset of nothing."""
    discover(store, a=Partition(start=70), b=Partition())
    register(store, "web", "j")
    publisher = Publisher(store, gap_seconds=0.0)
    acks = Acks.claim(store, publisher, "web", 3, ["a@broker", "b@broker", "c@broker", "j"])
    assert acks.offsets == {"a@broker": 70, "b@broker": 0, "j": 0}
    assert len(store.transactions[-1]) == 3 + 2, (
        "what two partitions are registered in is checked once"
    )
    discover(store, a=Partition(start=90))
    acks.advance([Range("a@broker", 70, 75)])
    again = Acks.claim(store, publisher, "web", 4, ["a@broker", "j"])
    assert again.offsets == {"a@broker": 75, "j": 0}


def test_partition_removed_during_a_claim_gets_no_ack() -> None:
    store = ScriptedStore()
    tree.init(store)
    add_flow(store)
    discover(store, a=Partition())
    store.before_commit = once(lambda: discover(FakeStore(store.tree)), checks)
    with pytest.raises(ConflictError):
        Acks.claim(store, Publisher(store, gap_seconds=0.0), "web", 3, ["a@broker"])
    assert Acks.claim(store, Publisher(store), "web", 3, ["a@broker"]).offsets == {}


def test_unreadable_partition_record_is_not_taken_for_absent(store: FakeStore) -> None:
    discover(store, a=Partition())
    store.tree.znodes[str(paths.partitions("web"))].data = b"no record"
    with pytest.raises(CorruptError):
        Acks.claim(store, Publisher(store), "web", 3, ["a@broker"])


def test_claim_continues_at_the_offset_of_the_last_owner(store: FakeStore) -> None:
    claim(store, 3, ["a"]).advance([Range("a", 0, 7)])
    acks = claim(store, 4, ["a", "b"])
    assert acks.offsets == {"a": 7, "b": 0}
    assert acks.inherited == {"a"}
    assert ack(store, "a") == Ack(epoch=4, offset=7)


@pytest.mark.parametrize("later_epoch", [3, 4])
def test_claim_fences_the_previous_claimant_even_under_the_same_epoch(
    store: FakeStore, later_epoch: int
) -> None:
    old = claim(store, 3, ["a"])
    claim(store, later_epoch, ["a"])
    with pytest.raises(ConflictError):
        old.advance([Range("a", 0, 1)])
    assert ack(store, "a").offset == 0


def test_claim_under_an_older_epoch_is_refused(store: FakeStore) -> None:
    claim(store, 4, ["a"])
    with pytest.raises(ConflictError, match="epoch 4"):
        claim(store, 3, ["a"])


def test_one_fenced_partition_stops_the_whole_batch(store: FakeStore) -> None:
    old = claim(store, 3, ["a", "b"])
    claim(store, 4, ["b"])
    record = Put(paths.commit("web", "t@1"), Commit(epoch=3, staging=(), files=()), ABSENT)
    with pytest.raises(ConflictError):
        old.advance([Range("a", 0, 1), Range("b", 0, 1)], also=[record])
    assert ack(store, "a").offset == 0
    assert store.children(paths.commits("web")) == []


def test_acks_advance_repeatedly_under_one_claim(store: FakeStore) -> None:
    acks = claim(store, 1, ["a"])
    for start in range(5):
        acks.advance([Range("a", start, start + 1)])
    found = store.read(paths.ack("web", CURSOR_MAIN, "a"))
    assert found is not None
    assert (found.value.offset, found.version) == (5, Version(5))


def test_range_that_leaves_a_gap_is_an_error(store: FakeStore) -> None:
    acks = claim(store, 1, ["a"])
    with pytest.raises(AssertionError, match="does not follow"):
        acks.advance([Range("a", 1, 2)])


@pytest.mark.slow
def test_thousands_of_partitions_are_claimed_in_bounded_transactions(store: ScriptedStore) -> None:
    acks = claim(store, 1, [f"p{number}" for number in range(2_500)])
    assert len(acks.offsets) == 2_500
    assert max(map(len, store.transactions)) <= 1_000


def test_removed_journal_gets_no_ack(store: FakeStore) -> None:
    """Nothing would ever remove that ack, and a recreated one begins with version 0 again."""
    old = claim(store, 3, ["a", "b"])
    for path in (paths.journal("a"), paths.ack("web", CURSOR_MAIN, "a")):
        store.remove(path, ANY)
    acks = Acks.claim(store, Publisher(store, gap_seconds=0.0), "web", 4, ["a", "b"])
    assert acks.offsets == {"b": 0}
    assert store.read(paths.ack("web", CURSOR_MAIN, "a")) is None
    with pytest.raises(ConflictError):
        old.advance([Range("a", 0, 1)])


def test_journal_removed_during_a_claim_gets_no_ack() -> None:
    store = ScriptedStore()
    tree.init(store)
    add_flow(store)
    strike_off = partial(FakeStore(store.tree).remove, paths.journal("a"), ANY)
    store.before_commit = once(strike_off, checks)
    with pytest.raises(ConflictError, match="journals/a"):
        claim(store, 1, ["a"])
    assert store.read(paths.ack("web", CURSOR_MAIN, "a")) is None


def test_a_journal_that_the_session_has_not_seen_yet_is_claimed() -> None:
    """Its server lags behind the plan until it has answered a transaction."""

    class Lagging(FakeStore):
        behind = True

        def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
            found = super().read_each(wanted)
            hidden = [self.behind and path.row is paths.journal for path in wanted]
            return [None if hide else one for hide, one in zip(hidden, found, strict=True)]

        def commit(self, writes: Sequence[Write]) -> list[Version]:
            self.behind = False
            return super().commit(writes)

    store = Lagging()
    tree.init(store)
    add_flow(store)
    register(store, "web", "a")
    store.behind = True
    acks = Acks.claim(store, Publisher(store, gap_seconds=0.0), "web", 1, ["a"])
    assert acks.offsets == {"a": 0}


def test_moving_ack_is_not_taken_for_a_foreign_change(store: ScriptedStore) -> None:
    """It is looked at, to see whether an operator has moved it, while a batch is committed."""
    acks = claim(store, 1, ["a"])
    looks: list[Future[None]] = []
    written, commit = threading.Event(), store.commit

    def slow(writes: Sequence[Write]) -> list[Version]:
        versions = commit(writes)
        written.set()
        time.sleep(0.3)
        return versions

    with ThreadPoolExecutor(2) as pool:
        store.commit = slow  # type: ignore[method-assign]
        advanced = pool.submit(acks.advance, [Range("a", 0, 1)])
        assert written.wait(10)
        looks.append(pool.submit(acks.require_ours, ["a"]))
        assert (advanced.result(), looks[0].result()) == (None, None)


def test_ack_keeps_the_leader_epoch_that_its_range_was_read_under(store: FakeStore) -> None:
    acks = claim(store, 1, ["a", "b"])
    acks.advance([Range("a", 0, 7, leader_epoch=4), Range("b", 0, 7)])
    assert ack(store, "a") == Ack(epoch=1, offset=7, leader_epoch=4)
    assert ack(store, "b") == Ack(epoch=1, offset=7)
    again = claim(store, 2, ["a", "b"])
    assert again.leader_epochs == {"a": 4, "b": None}
    assert ack(store, "a") == Ack(epoch=2, offset=7, leader_epoch=4)
    again.advance([Range("a", 7, 7, leader_epoch=6)])
    assert ack(store, "a") == Ack(epoch=2, offset=7, leader_epoch=6)
