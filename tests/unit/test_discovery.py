"""What a discovery process writes, when it looks, and what it says of its tasks."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from flumeng.agent.discovery.task import GONE_LOOKS, DiscoveryTask, SupersededError
from flumeng.agent.discovery.worker import Worker
from flumeng.agent.node.protocol import Message
from flumeng.config.flow import FlowSpec
from flumeng.connectors.api.finding import Before, Bounds, Findings, FindingTask, Offer
from flumeng.control.commands.acks import accept
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot import discovered
from flumeng.control.zookeeper import ABSENT, ANY, Version, Versioned, Write, tree
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN, flow_folders
from zkschema.records import Ack, Flow, Partition, Partitions, Plan, PlannedTask

P, Q, R = "orders.0.AAAAAAAA@kafka", "orders.1.AAAAAAAA@kafka", "orders.0.BBBBBBBB@kafka"
SPEC = """
flow: web
sources: [{kafka: {brokers: ["h:1"], topics: [orders], discovery_seconds: 3600}}]
sinks: [noop: {}]
"""


class CountingStore(FakeStore):
    """Counts transactions, and calls ``meanwhile`` before the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0
        self.meanwhile: Callable[[], object] | None = None

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        interruption, self.meanwhile = self.meanwhile, None
        if interruption is not None:
            interruption()
        self.commits += 1
        return super().commit(writes)


@pytest.fixture
def store() -> CountingStore:
    store = CountingStore()
    tree.init(store)
    store.write(paths.flow("web"), Flow(revision=1), ABSENT)
    for folder in flow_folders("web"):
        store.write(folder, None, ABSENT)
    return store


@dataclass
class FakeFinder:
    """Finds what it is told to."""

    findings: Findings = field(default_factory=lambda: offers(P, Q))
    trouble: FlumengError | None = None
    asked: list[Before] = field(default_factory=list)
    closed: bool = False
    ended: int = 0

    def find(self, before: Before) -> Findings:
        self.asked.append(before)
        if self.trouble is not None:
            raise self.trouble
        return self.findings

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        return dict.fromkeys(partitions, Bounds(0, 9))

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        return dict.fromkeys(partitions, 9 if to == "latest" else 0)

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        return dict.fromkeys(at, 1_000_000)

    def finished(self) -> None:
        self.ended += 1

    def close(self) -> None:
        self.closed = True


def offers(*names: str, start: int = 0, **fields: object) -> Findings:
    found = {name: Offer(start) for name in names}
    return Findings(found, scope=("orders",), **fields)  # type: ignore[arg-type]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def finder() -> FakeFinder:
    return FakeFinder()


@pytest.fixture
def task(store: CountingStore, finder: FakeFinder, clock: Clock) -> DiscoveryTask:
    return DiscoveryTask(store, "web", 3, [finder], clock=clock)


def record(store: FakeStore) -> Partitions:
    (found,) = discovered.read(store, ["web"])
    assert isinstance(found, Versioned)
    return found.value


def ack(store: FakeStore, partition: str, offset: int) -> None:
    path = paths.ack("web", CURSOR_MAIN, partition)
    store.write(path, Ack(epoch=1, offset=offset), ANY if store.exists(path) else ABSENT)


def plan(store: FakeStore, *partitions: str) -> None:
    task = PlannedTask(kind="collect", node="a", epoch=1, state="assigned", partitions=partitions)
    path = paths.plan("web")
    written = Plan(epoch=1, tasks={"collect.0": task})
    store.write(path, written, ANY if store.exists(path) else ABSENT)


# -- the record


def test_what_is_found_is_registered_once_and_written_only_when_it_changes(
    store: CountingStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    finder.findings = offers(P, Q, start=70)
    task.look()
    assert record(store).partitions == {P: Partition(start=70), Q: Partition(start=70)}
    assert (record(store).epoch, record(store).scope) == (3, ("orders",))
    before = store.commits
    finder.findings = offers(P, Q, start=99)  # it starts where it was first found
    task.look()
    assert store.commits == before
    assert [asked.scope for asked in finder.asked] == [None, ("orders",)]


def test_an_owner_of_before_writes_no_more(store: CountingStore, finder: FakeFinder) -> None:
    old = DiscoveryTask(store, "web", 3, [finder])
    old.look()
    DiscoveryTask(store, "web", 4, [finder]).look()
    assert record(store).epoch == 4, "taken over although nothing else has changed"
    finder.findings = offers(P)
    with pytest.raises(SupersededError) as superseded:
        old.look()
    assert superseded.value.seen == 4
    assert record(store).partitions.keys() == {P, Q}


def test_one_that_is_overtaken_between_its_look_and_its_write_loses(
    store: CountingStore, finder: FakeFinder
) -> None:
    """Two owners at once: whoever writes second finds that the record has changed."""
    old = DiscoveryTask(store, "web", 3, [finder])
    old.look()
    finder.findings = offers(P)
    store.meanwhile = DiscoveryTask(store, "web", 4, [FakeFinder(offers(P, Q, R))]).look
    with pytest.raises(SupersededError):
        old.look()
    assert record(store).partitions.keys() == {P, Q, R}


def test_what_an_operator_writes_meanwhile_is_heeded(
    store: CountingStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    task.look()

    def accept() -> None:
        found = store.read(paths.partitions("web"))
        assert found is not None
        store.write(paths.partitions("web"), replace(found.value, accepted={"x": "l"}), ANY)

    finder.findings = offers(P, Q, R, held={"x": "recreated", "y": "too"})
    store.meanwhile = accept
    assert task.look().trouble == "recreated; too"
    assert record(store).accepted == {"x": "l"}
    finder.findings = offers(P, Q, R)
    task.look()
    assert record(store).accepted == {}, "what is registered needs nobody's word"


@pytest.mark.parametrize("count", [3, 3000])
def test_an_operators_word_changes_nothing_else(
    store: CountingStore, task: DiscoveryTask, finder: FakeFinder, count: int
) -> None:
    names = [f"t.{number}.AAAAAAAA@kafka" for number in range(count)]
    finder.findings = offers(*names)
    task.look()
    finder.findings = offers(*names, held={"t.B": "recreated"})
    task.look()
    before = record(store)
    accept(Operator(store, "a", "", 0.0), "web", {"t.B": "latest"})
    assert record(store) == replace(before, accepted={"t.B": "latest"})


# -- what goes


def test_what_is_not_wanted_any_more_ends_where_it_is_and_its_ack_stays(
    store: CountingStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    task.look()
    ack(store, Q, 40)
    plan(store, P, Q)
    finder.findings = offers(P)
    assert task.look().soon
    assert record(store).partitions == {P: Partition(), Q: Partition(end=40)}
    task.look()
    assert Q in record(store).partitions, "a task still reads it"
    plan(store, P)
    task.look()
    assert record(store).partitions == {P: Partition()}
    assert store.exists(paths.ack("web", CURSOR_MAIN, Q))
    finder.findings = offers(P, Q)
    task.look()
    assert record(store).partitions == {P: Partition(), Q: Partition()}


def test_one_that_is_wanted_again_before_it_went_has_no_end(
    store: CountingStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    task.look()
    finder.findings = offers(P)
    task.look()
    assert record(store).partitions[Q].end == 0
    finder.findings = offers(P, Q)
    task.look()
    assert record(store).partitions[Q].end is None


def test_what_seems_to_be_gone_is_looked_for_several_times(
    store: CountingStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    """A server that has just started may not know of a topic yet."""
    task.look()
    ack(store, Q, 40)
    finder.findings = offers(P, gone=frozenset({Q}))
    for _ in range(GONE_LOOKS - 1):
        assert task.look().soon
        assert record(store).partitions[Q].end is None
    finder.findings = offers(P, Q)
    task.look()
    finder.findings = offers(P, gone=frozenset({Q}))
    for _ in range(GONE_LOOKS - 1):
        task.look()
    assert record(store).partitions[Q].end is None, "it was there in between"
    task.look()
    assert record(store).partitions[Q].end == 40


def test_the_acks_of_what_is_gone_go_after_a_while(
    store: CountingStore, task: DiscoveryTask, finder: FakeFinder, clock: Clock
) -> None:
    task.look()
    ack(store, Q, 40)
    store.write(paths.cursor("web", "slow"), None, ABSENT)
    store.write(paths.ack("web", "slow", Q), Ack(epoch=1, offset=2), ABSENT)
    finder.findings = offers(P, gone=frozenset({Q}))
    for _ in range(GONE_LOOKS + 2):
        task.look()
    assert Q in record(store).partitions
    clock.now += 601
    task.look()
    assert record(store).partitions.keys() == {P}
    assert not store.exists(paths.ack("web", CURSOR_MAIN, Q))
    assert not store.exists(paths.ack("web", "slow", Q))


def test_what_waits_for_an_operator_stays_as_it_is(
    store: CountingStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    task.look()
    finder.findings = offers(P, kept=frozenset({Q}), held={"orders.B": "orders was recreated"})
    outcome = task.look()
    assert (outcome.trouble, outcome.soon) == ("orders was recreated", True)
    assert record(store).partitions == {P: Partition(), Q: Partition()}
    assert record(store).held == {"orders.B": "orders was recreated"}


def test_nothing_ends_while_a_source_does_not_answer(store: CountingStore) -> None:
    one, other = FakeFinder(offers(P)), FakeFinder(offers(Q))
    task = DiscoveryTask(store, "web", 3, [one, other])
    task.look()
    other.trouble = UnavailableError("no broker answers")
    one.findings = offers(P, R)
    assert task.look().trouble == "no broker answers"
    assert record(store).partitions == dict.fromkeys([P, Q, R], Partition())


# -- a bounded flow


def test_a_bounded_flow_stops_when_all_is_read(
    store: CountingStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    finder.findings = Findings({P: Offer(5, 10), Q: Offer(0, 0)}, bounded=True)
    task.look()
    ack(store, P, 9)
    task.look()
    assert store.read(paths.flow("web")).value.state == "running"  # type: ignore[union-attr]
    assert finder.ended == 0
    ack(store, P, 10)
    task.look()
    assert store.read(paths.flow("web")).value.state == "stopped"  # type: ignore[union-attr]
    task.look()
    assert finder.ended == 1, "it is told before the flow stops, and not after"
    (name,) = store.children(paths.audits())
    entry = store.read(paths.audit(name))
    assert entry is not None
    assert (entry.value.who, entry.value.command) == ("flumeng", "flow stop web")
    assert record(store).partitions[P].end == 10


# -- many


def test_many_partitions_lie_in_buckets_of_which_only_the_changed_are_written(
    store: CountingStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    names = [f"topic-{number % 100}.{number}.AAAAAAAA@kafka" for number in range(10_000)]
    finder.findings = offers(*names)
    task.look()
    assert record(store).partitions.keys() == set(names)
    pointer = store.read(paths.partitions("web"))
    assert pointer is not None
    assert (pointer.value.partitions, pointer.value.buckets) == ({}, discovered.BUCKETS)
    sizes = [
        len(znode.data)
        for path, znode in store.tree.znodes.items()
        if path.startswith("/flows/web/partitions")
    ]
    assert max(sizes) < 50 * 1024
    assert sum(sizes) < 512 * 1024, "all is one transaction"
    versions = bucket_versions(store)
    finder.findings = offers(*names, P)
    task.look()
    assert sum(a != b for a, b in zip(versions, bucket_versions(store), strict=True)) == 1
    finder.findings = offers(*names[:10])
    for _ in range(3):
        task.look()
    assert record(store).partitions.keys() == set(names[:10])
    assert record(store).buckets == 0
    assert store.children(paths.partitions("web")) == []


def bucket_versions(store: CountingStore) -> list[int]:
    buckets = [paths.partitions_bucket("web", str(n)) for n in range(discovered.BUCKETS)]
    return [found.version.number for found in store.read_many(buckets) if found]


# -- the process


class Node:
    """The other end of a worker's pipes."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def send(self, message: Message) -> None:
        if message["type"] == "status":
            self.said.put(message)

    def messages(self) -> Iterator[Message]:
        while (message := self._told.get()) is not None:
            yield message

    def tell(self, message: Message | None) -> None:
        self._told.put(message)

    def configure(self, number: int, **fields: object) -> None:
        task = {
            "flow": "web",
            "task": "discover.0",
            "epoch": 3,
            "revision": 1,
            "spec": SPEC,
            "partitions": [],
            "state": "running",
            **fields,
        }
        self.tell({"type": "configure", "number": number, "tasks": [task], "chokes": {}})

    def hears(self, is_it: Callable[[Message], bool]) -> Message:
        deadline = time.monotonic() + 20
        while True:
            message = self.said.get(timeout=max(0.0, deadline - time.monotonic()))
            if is_it(message):
                return message


@pytest.fixture
def node() -> Node:
    return Node()


def start(node: Node, store: FakeStore, make: Callable[..., list[FakeFinder]]) -> None:
    worker = Worker(node, store, make)  # type: ignore[arg-type]
    threading.Thread(target=worker.run, daemon=True).start()


def state(message: Message) -> str:
    return str(message["tasks"].get("web/discover.0", {}).get("state", "gone"))


def test_it_looks_at_once_and_says_that_it_runs(
    store: CountingStore, node: Node, finder: FakeFinder
) -> None:
    start(node, store, lambda *_: [finder])
    node.configure(7)
    said = node.hears(lambda message: state(message) == "running")
    assert said["answers"] == 7
    assert record(store).partitions.keys() == {P, Q}


def test_a_new_revision_is_looked_at_at_once(store: CountingStore, node: Node) -> None:
    made: list[FakeFinder] = []

    def make(_spec: FlowSpec, _task: FindingTask) -> list[FakeFinder]:
        made.append(FakeFinder(offers(P) if not made else offers(P, Q)))
        return made[-1:]

    start(node, store, make)
    node.configure(1)
    node.hears(lambda message: state(message) == "running")
    node.configure(2, revision=2, spec=SPEC.replace("orders", "orders, more"))
    said = node.hears(lambda m: m["answers"] == 2 and state(m) == "running")
    assert said["tasks"]["web/discover.0"]["revision"] == 2
    assert record(store).partitions.keys() == {P, Q}
    assert [finder.closed for finder in made] == [True, False]


def test_a_failure_is_said_tried_again_and_healed_by_itself(
    store: CountingStore, node: Node, finder: FakeFinder
) -> None:
    finder.trouble = UserError("brokers refuse the user")
    start(node, store, lambda *_: [finder])
    node.configure(1)
    said = node.hears(lambda message: state(message) == "failed")
    assert said["tasks"]["web/discover.0"]["error"] == "brokers refuse the user"
    finder.trouble = None
    said = node.hears(lambda message: state(message) == "running")
    assert said["tasks"]["web/discover.0"]["error"] is None


def test_a_fault_in_one_flow_is_its_own(store: CountingStore, node: Node) -> None:
    class Faulty(FakeFinder):
        def find(self, before: Before) -> Findings:
            raise ZeroDivisionError(f"{len(before.partitions)} partitions")

    start(node, store, lambda *_: [Faulty()])
    node.configure(1)
    said = node.hears(lambda message: state(message) == "failed")
    assert "ZeroDivisionError" in said["tasks"]["web/discover.0"]["error"]
    node.tell({"type": "configure", "number": 2, "tasks": [], "chokes": {}})
    node.hears(lambda message: message["answers"] == 2)


def test_a_secret_that_is_mended_is_looked_up_anew(store: CountingStore, node: Node) -> None:
    made: list[FakeFinder] = []

    def make(_spec: FlowSpec, _task: FindingTask) -> list[FakeFinder]:
        trouble = None if made else UserError("brokers refuse the user")
        made.append(FakeFinder(trouble=trouble))
        return made[-1:]

    start(node, store, make)
    node.configure(1)
    node.hears(lambda message: state(message) == "running")
    assert [finder.closed for finder in made] == [True, False]


def test_one_that_fails_again_and_again_is_unhealthy_and_says_when_nobody_answers(
    store: CountingStore, node: Node, finder: FakeFinder
) -> None:
    finder.trouble = UserError("brokers refuse the user")
    start(node, store, lambda *_: [finder])
    node.configure(1)
    said = node.hears(lambda message: state(message) == "failed")
    assert said["tasks"]["web/discover.0"]["health"] == ""
    node.hears(lambda message: message["tasks"]["web/discover.0"]["health"] == "unhealthy")
    finder.trouble = UnavailableError("nobody answers")
    node.hears(lambda message: message["tasks"]["web/discover.0"]["health"] == "unreachable")


def test_one_that_is_superseded_says_under_which_epoch(
    store: CountingStore, node: Node, finder: FakeFinder
) -> None:
    store.write(paths.partitions("web"), Partitions(epoch=9), ABSENT)
    start(node, store, lambda *_: [finder])
    node.configure(1)
    said = node.hears(lambda message: state(message) == "stopped")
    assert said["tasks"]["web/discover.0"]["epoch_seen"] == 9
    node.configure(2, epoch=10)
    node.hears(lambda message: state(message) == "running")


def test_a_task_that_is_not_wanted_any_more_ends(
    store: CountingStore, node: Node, finder: FakeFinder
) -> None:
    start(node, store, lambda *_: [finder])
    node.configure(1)
    node.hears(lambda message: state(message) == "running")
    node.tell({"type": "configure", "number": 2, "tasks": [], "chokes": {}})
    assert node.hears(lambda message: message["answers"] == 2)["tasks"] == {}
    assert finder.closed


class FailingStore(CountingStore):
    """The commit of this number is not carried out."""

    fails_at = 0

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        if self.commits + 1 == self.fails_at:
            self.fails_at = 0
            raise UnavailableError("no connection")
        return super().commit(writes)


RANDOM = random.Random(1)
MANY = [f"{RANDOM.randbytes(20).hex()}.0.AAAAAAAA@kafka" for _ in range(50_000)]
"""Of as many topics, whose names compress little."""


@pytest.mark.parametrize("registered", [0, discovered.INLINE, discovered.INLINE + 1])
def test_tens_of_thousands_of_partitions_are_registered_in_several_transactions(
    registered: int, store: CountingStore
) -> None:
    """Whichever transaction fails, none that was registered is missing, and the next look goes on.
    What a first look was to look for is known only when all that it found is registered."""
    failing = FailingStore()
    failing.tree = store.tree
    finder = FakeFinder(offers(*MANY[:registered], start=1))
    if registered:
        DiscoveryTask(failing, "web", 2, [finder]).look()
    finder.findings = offers(*MANY, start=7)
    known, completed = set(MANY[:registered]), False
    while not completed:
        failing.commits, failing.fails_at = 0, 2
        try:
            DiscoveryTask(failing, "web", 3, [finder]).look()
        except UnavailableError:
            now = record(store)
            assert known <= now.partitions.keys()
            assert now.epoch == 3, "the first transaction fences the owners before"
            assert (now.scope is not None) == (registered > 0)
            known = set(now.partitions)
        else:
            completed = True
    after = record(store)
    assert after.partitions.keys() == set(MANY)
    assert after.scope == ("orders",)
    starts = {name: one.start for name, one in after.partitions.items()}
    assert starts == {name: 1 if n < registered else 7 for n, name in enumerate(MANY)}


def test_more_partitions_than_a_record_holds_are_refused_before_anything_is_written(
    store: CountingStore,
) -> None:
    names = [f"{RANDOM.randbytes(30).hex()}.0.AAAAAAAA@kafka" for _ in range(120_000)]
    task = DiscoveryTask(store, "web", 3, [FakeFinder(offers(*names))])
    with pytest.raises(UserError, match="at most 51200 fit"):
        task.look()
    assert not store.exists(paths.partitions("web"))
