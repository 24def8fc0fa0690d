"""Tasks share transactions for their acks, and a failure of one harms no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from secrets import token_hex

import pytest

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.publisher import FULL_ACKS, IN_FLIGHT, Publisher
from flumeng.connectors.api.ranged import Range
from flumeng.control.zookeeper import ABSENT, Put, Version, Write, tree
from flumeng.platform.errors import ConflictError, CorruptError, UnavailableError, UserError
from tests.testkit.cluster import add_flow
from tests.testkit.collector import register
from tests.testkit.store import FakeStore
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, Commit, Flow

GAP_SECONDS = 1.0
LONG_SECONDS = 60.0


class WatchedStore(FakeStore):
    """Records the number of writes of each transaction; ``commits`` replace transactions, one
    each."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.commits: list[Callable[[Sequence[Write]], list[Version]]] = []

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        self.sizes.append(len(writes))
        commit = self.commits.pop(0) if self.commits else super().commit
        return commit(writes)

    def lose_reply(self, writes: Sequence[Write]) -> list[Version]:
        super().commit(writes)
        raise UnavailableError("the reply was lost")

    def lose_request(self, _writes: Sequence[Write]) -> list[Version]:
        raise UnavailableError("the request was lost")


@pytest.fixture
def store() -> WatchedStore:
    store = WatchedStore()
    tree.init(store)
    add_flow(store)
    return store


@pytest.fixture
def publisher(store: WatchedStore) -> Publisher:
    return Publisher(store, gap_seconds=GAP_SECONDS)


def claim(store: WatchedStore, publisher: Publisher, *partitions: str, epoch: int = 1) -> Acks:
    register(store, "web", *partitions)
    acks = Acks.claim(store, publisher, "web", epoch, partitions)
    store.sizes.clear()
    return acks


def advance(acks: Acks, also: Sequence[Write] = ()) -> None:
    acks.advance([Range(name, at, at + 1) for name, at in acks.offsets.items()], also)


def at_once(calls: Sequence[Callable[[], object]]) -> list[Future[object]]:
    """Run all calls in threads at the same time; returns their outcomes."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [pool.submit(call) for call in calls]


def offset(store: FakeStore, partition: str) -> int:
    found = store.read(paths.ack("web", CURSOR_MAIN, partition))
    assert found is not None
    return found.value.offset


def shared(
    store: WatchedStore, publisher: Publisher, tasks: Sequence[Acks]
) -> list[Future[object]]:
    """The outcomes of the tasks' acks in one transaction, which follows that of another task."""
    advance(claim(store, publisher, "first"))
    store.sizes.clear()
    return at_once([partial(advance, acks) for acks in tasks])


def test_task_that_is_alone_waits_for_nothing(store: WatchedStore) -> None:
    publisher = Publisher(store, gap_seconds=LONG_SECONDS)
    acks = claim(store, publisher, "a")
    began = time.monotonic()
    advance(acks)
    assert time.monotonic() - began < LONG_SECONDS / 2
    assert offset(store, "a") == 1


@pytest.mark.slow
def test_acks_that_come_soon_after_share_a_transaction(
    store: WatchedStore, publisher: Publisher
) -> None:
    tasks = [claim(store, publisher, f"a{n}", f"b{n}") for n in range(10)]
    assert [call.exception() for call in shared(store, publisher, tasks)] == [None] * 10
    assert store.sizes == [20]
    assert [offset(store, f"b{n}") for n in range(10)] == [1] * 10


def test_full_transaction_is_sent_at_once(store: WatchedStore) -> None:
    publisher = Publisher(store, gap_seconds=LONG_SECONDS)
    tasks = [claim(store, publisher, *(f"p{t}.{n}" for n in range(FULL_ACKS))) for t in range(3)]
    began = time.monotonic()
    for call in shared(store, publisher, tasks):
        call.result()
    assert time.monotonic() - began < LONG_SECONDS / 2
    assert store.sizes == [FULL_ACKS] * 3


@pytest.mark.slow
def test_large_commit_records_do_not_share_a_transaction(
    store: WatchedStore, publisher: Publisher
) -> None:
    """Together they would pass the server's limit, which closes the connection."""
    tasks = [claim(store, publisher, f"p{n}") for n in range(4)]
    files = tuple((token_hex(300), token_hex(300)) for _ in range(500))
    advance(claim(store, publisher, "first"))
    store.sizes.clear()

    def commit(acks: Acks) -> None:
        path = paths.commit("web", f"{next(iter(acks.offsets))}@1")
        advance(acks, [Put(path, Commit(epoch=1, staging=(), files=files), ABSENT)])

    for call in at_once([partial(commit, acks) for acks in tasks]):
        call.result()
    assert sum(store.sizes) == 2 * len(tasks)
    assert max(store.sizes) <= 2 * 3


@pytest.mark.slow
def test_a_fenced_partition_fails_only_its_own_task(
    store: WatchedStore, publisher: Publisher
) -> None:
    tasks = [claim(store, publisher, f"a{n}", f"b{n}") for n in range(5)]
    claim(store, publisher, "b2", epoch=2)
    errors = [call.exception() for call in shared(store, publisher, tasks)]
    assert [type(error) for error in errors] == [type(None)] * 2 + [ConflictError] + [
        type(None)
    ] * 2
    assert [offset(store, f"a{n}") for n in range(5)] == [1, 1, 0, 1, 1]


@pytest.mark.slow
def test_transaction_that_cannot_be_sent_fails_only_its_own_task(
    store: WatchedStore, publisher: Publisher
) -> None:
    tasks = [claim(store, publisher, f"p{n}") for n in range(2)]
    advance(claim(store, publisher, "first"))
    huge = Put(paths.flow("web"), Flow(revision=2, extra={"x": token_hex(5000)}), Version(0))
    good, bad = at_once([lambda: advance(tasks[0]), lambda: advance(tasks[1], [huge])])
    assert good.exception() is None
    assert isinstance(bad.exception(), UserError)
    assert [offset(store, f"p{n}") for n in range(2)] == [1, 0]


@pytest.mark.slow
def test_commit_record_is_written_with_its_acks_or_not_at_all(
    store: WatchedStore, publisher: Publisher
) -> None:
    tasks = [claim(store, publisher, f"p{n}") for n in range(3)]
    claim(store, publisher, "p1", epoch=2)
    advance(claim(store, publisher, "first"))

    def commit(number: int) -> None:
        record = Commit(epoch=1, staging=(), files=())
        advance(tasks[number], [Put(paths.commit("web", f"t{number}@1"), record, ABSENT)])

    at_once([partial(commit, number) for number in range(3)])
    assert store.children(paths.commits("web")) == ["t0@1", "t2@1"]
    assert [offset(store, f"p{n}") for n in range(3)] == [1, 0, 1]


@pytest.mark.slow
def test_lost_reply_is_found_to_have_been_written(
    store: WatchedStore, publisher: Publisher
) -> None:
    tasks = [claim(store, publisher, f"a{n}", f"b{n}") for n in range(3)]
    advance(claim(store, publisher, "first"))
    store.commits.append(store.lose_reply)
    store.sizes.clear()
    for _ in range(2):
        for call in at_once([partial(advance, acks) for acks in tasks]):
            call.result()
    assert store.sizes == [6, 6], "nothing was sent twice, and the next versions are right"
    assert offset(store, "b2") == 2


@pytest.mark.slow
def test_lost_request_is_sent_again(store: WatchedStore, publisher: Publisher) -> None:
    acks = claim(store, publisher, "a", "b")
    store.commits += [store.lose_request, store.lose_reply]
    for _ in range(2):
        advance(acks)
    assert store.sizes == [2, 2, 2]
    assert offset(store, "b") == 2


@pytest.mark.slow
def test_late_request_is_not_taken_for_another_owner(
    store: WatchedStore, publisher: Publisher
) -> None:
    """The look says untouched, then the first request arrives, so its repetition conflicts."""
    acks = claim(store, publisher, "a")
    late: list[Sequence[Write]] = []

    def delay(writes: Sequence[Write]) -> list[Version]:
        late.append(writes)
        raise UnavailableError("nobody knows")

    def arrive_first(writes: Sequence[Write]) -> list[Version]:
        FakeStore.commit(store, late.pop())
        return FakeStore.commit(store, writes)

    store.commits += [delay, arrive_first]
    advance(acks)
    advance(acks)
    assert offset(store, "a") == 2


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_lost_transaction_is_not_taken_for_ours_once_another_has_claimed(
    store: WatchedStore, publisher: Publisher, lost: str, epoch: int
) -> None:
    """Under the same epoch too: then only versions tell."""
    acks = claim(store, publisher, "a")

    def lose(writes: Sequence[Write]) -> list[Version]:
        if lost == "reply":
            FakeStore.commit(store, writes)
        claim(store, publisher, "a", epoch=epoch)
        raise UnavailableError("nobody knows")

    store.commits.append(lose)
    with pytest.raises(ConflictError):
        advance(acks)
    found = store.read(paths.ack("web", CURSOR_MAIN, "a"))
    assert found is not None
    assert found.value == Ack(epoch=epoch, offset=1 if lost == "reply" else 0)


@pytest.mark.slow
def test_no_task_waits_for_ever_when_the_outcome_is_unknown(store: WatchedStore) -> None:
    publisher = Publisher(store, gap_seconds=GAP_SECONDS, settle_seconds=0.1)
    acks = claim(store, publisher, "a")
    store.cut()
    with pytest.raises(UnavailableError):
        advance(acks)
    store.heal()
    advance(claim(store, publisher, "a"))
    assert offset(store, "a") == 1


def test_number_of_concurrent_transactions_is_bounded(
    store: WatchedStore, publisher: Publisher
) -> None:
    tasks = [
        claim(store, publisher, *(f"p{t}.{n}" for n in range(FULL_ACKS)))
        for t in range(IN_FLIGHT + 3)
    ]
    lock = threading.Lock()
    may_end = threading.Event()
    under_way: list[int] = []
    running = 0

    def slow(writes: Sequence[Write]) -> list[Version]:
        nonlocal running
        with lock:
            running += 1
            under_way.append(running)
        assert may_end.wait(PATIENCE_SECONDS)
        with lock:
            running -= 1
            return FakeStore.commit(store, writes)

    store.commits += [slow] * len(tasks)
    with ThreadPoolExecutor(len(tasks)) as pool:
        calls = [pool.submit(advance, acks) for acks in tasks]
        wait_for(lambda: len(under_way) >= IN_FLIGHT)
        time.sleep(0.1)
        assert max(under_way) == IN_FLIGHT
        may_end.set()
    assert [call.exception() for call in calls] == [None] * len(tasks)
    assert max(under_way) == IN_FLIGHT


def test_every_call_is_answered_for_any_timing(store: WatchedStore) -> None:
    """Many tasks, many rounds, no gap: no call is forgotten, and each task's acks stay in order."""
    publisher = Publisher(store, gap_seconds=0.001)
    lock = threading.Lock()

    def one_at_a_time(writes: Sequence[Write]) -> list[Version]:
        with lock:
            return FakeStore.commit(store, writes)

    store.commits += [one_at_a_time] * 10_000
    tasks = [claim(store, publisher, f"p{n}") for n in range(20)]

    def work(acks: Acks) -> None:
        for _ in range(25):
            advance(acks)

    for call in at_once([partial(work, acks) for acks in tasks]):
        call.result()
    assert [offset(store, f"p{n}") for n in range(20)] == [25] * 20
    assert len(store.sizes) < 20 * 25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "error"), [(1, CorruptError), (99, UserError)], ids=["damaged", "newer"]
)
def test_unreadable_ack_fails_its_own_task_and_no_task_waits_for_ever(
    store: WatchedStore, publisher: Publisher, version: int, error: type[Exception]
) -> None:
    tasks = [claim(store, publisher, f"a{n}") for n in range(3)]
    advance(claim(store, publisher, "first"))

    def spoil(writes: Sequence[Write]) -> list[Version]:
        path = paths.ack("web", CURSOR_MAIN, "a0")
        store.tree.znodes[str(path)].data = b'{"v": %d}' % version
        return store.lose_request(writes)

    store.commits.append(spoil)
    first, *others = at_once([partial(advance, acks) for acks in tasks])
    assert isinstance(first.exception(PATIENCE_SECONDS), error)
    assert [call.exception(PATIENCE_SECONDS) for call in others] == [None, None]
