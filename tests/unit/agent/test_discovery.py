"""A discovery process: its records, the times of its looks, and its task statuses."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
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
from flumeng.control.zookeeper import ABSENT, ANY, Versioned, tree
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_flow
from tests.testkit.scripted_store import ScriptedStore, fail_at, once
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, Partition, Partitions, Plan, PlannedTask

P, Q, R = "orders.0.AAAAAAAA@kafka", "orders.1.AAAAAAAA@kafka", "orders.0.BBBBBBBB@kafka"
SPEC = """
flow: web
sources: [{kafka: {brokers: ["h:1"], topics: [orders], discovery_seconds: 3600}}]
sinks: [noop: {}]
"""


@pytest.fixture
def store() -> ScriptedStore:
    store = ScriptedStore()
    tree.init(store)
    add_flow(store)
    return store


@dataclass
class FakeFinder:
    """Returns ``findings`` or raises ``trouble``."""

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


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


@pytest.fixture
def finder() -> FakeFinder:
    return FakeFinder()


@pytest.fixture
def task(store: ScriptedStore, finder: FakeFinder, clock: Clock) -> DiscoveryTask:
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


def test_found_partitions_are_registered_once_and_written_only_on_change(
    store: ScriptedStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    finder.findings = offers(P, Q, start=70)
    task.discover()
    assert record(store).partitions == {P: Partition(start=70), Q: Partition(start=70)}
    assert (record(store).epoch, record(store).scope) == (3, ("orders",))
    before = len(store.transactions)
    finder.findings = offers(P, Q, start=99)  # it starts where it was first found
    task.discover()
    assert len(store.transactions) == before
    assert [asked.scope for asked in finder.asked] == [None, ("orders",)]


def test_former_owner_writes_no_more(store: ScriptedStore, finder: FakeFinder) -> None:
    old = DiscoveryTask(store, "web", 3, [finder])
    old.discover()
    DiscoveryTask(store, "web", 4, [finder]).discover()
    assert record(store).epoch == 4, "taken over although nothing else has changed"
    finder.findings = offers(P)
    with pytest.raises(SupersededError) as superseded:
        old.discover()
    assert superseded.value.seen == 4
    assert record(store).partitions.keys() == {P, Q}


def test_owner_overtaken_between_its_look_and_its_write_loses(
    store: ScriptedStore, finder: FakeFinder
) -> None:
    """Two owners at once: the second write finds that the record has changed."""
    old = DiscoveryTask(store, "web", 3, [finder])
    old.discover()
    finder.findings = offers(P)
    store.before_commit = once(
        DiscoveryTask(store, "web", 4, [FakeFinder(offers(P, Q, R))]).discover
    )
    with pytest.raises(SupersededError):
        old.discover()
    assert record(store).partitions.keys() == {P, Q, R}


def test_concurrent_write_of_an_operator_is_kept(
    store: ScriptedStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    task.discover()

    def accept() -> None:
        found = store.read(paths.partitions("web"))
        assert found is not None
        store.write(paths.partitions("web"), replace(found.value, accepted={"x": "l"}), ANY)

    finder.findings = offers(P, Q, R, held={"x": "recreated", "y": "too"})
    store.before_commit = once(accept)
    assert task.discover().trouble == "recreated; too"
    assert record(store).accepted == {"x": "l"}
    finder.findings = offers(P, Q, R)
    task.discover()
    assert record(store).accepted == {}, "what is registered needs nobody's word"


@pytest.mark.parametrize("count", [3, 3000])
def test_operators_accept_changes_nothing_else(
    store: ScriptedStore, task: DiscoveryTask, finder: FakeFinder, count: int
) -> None:
    names = [f"t.{number}.AAAAAAAA@kafka" for number in range(count)]
    finder.findings = offers(*names)
    task.discover()
    finder.findings = offers(*names, held={"t.B": "recreated"})
    task.discover()
    before = record(store)
    accept(Operator(store, "a", "", 0.0), "web", {"t.B": "latest"})
    assert record(store) == replace(before, accepted={"t.B": "latest"})


# -- partitions that vanish


def test_unwanted_partition_ends_at_its_offset_and_keeps_its_ack(
    store: ScriptedStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    task.discover()
    ack(store, Q, 40)
    plan(store, P, Q)
    finder.findings = offers(P)
    assert task.discover().soon
    assert record(store).partitions == {P: Partition(), Q: Partition(end=40)}
    task.discover()
    assert Q in record(store).partitions, "a task still reads it"
    plan(store, P)
    task.discover()
    assert record(store).partitions == {P: Partition()}
    assert store.exists(paths.ack("web", CURSOR_MAIN, Q))
    finder.findings = offers(P, Q)
    task.discover()
    assert record(store).partitions == {P: Partition(), Q: Partition()}


def test_end_of_a_bounded_partition_is_not_logged_as_unwanted(
    task: DiscoveryTask, finder: FakeFinder, caplog: pytest.LogCaptureFixture
) -> None:
    task.discover()
    finder.findings = Findings({P: Offer(0), Q: Offer(0, end=70)}, scope=("orders",))
    task.discover()
    assert caplog.messages == []
    finder.findings = Findings({Q: Offer(0, end=70)}, scope=("orders",))
    task.discover()
    (message,) = caplog.messages
    assert message.endswith(
        f"1 partitions are gone or unwanted, so reading ends at their acks: {P}"
    )


def test_partition_wanted_again_before_its_removal_has_no_end(
    store: ScriptedStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    task.discover()
    finder.findings = offers(P)
    task.discover()
    assert record(store).partitions[Q].end == 0
    finder.findings = offers(P, Q)
    task.discover()
    assert record(store).partitions[Q].end is None


def test_missing_partition_ends_only_after_several_looks(
    store: ScriptedStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    """A server that has just started may not know of a topic yet."""
    task.discover()
    ack(store, Q, 40)
    finder.findings = offers(P, gone=frozenset({Q}))
    for _ in range(GONE_LOOKS - 1):
        assert task.discover().soon
        assert record(store).partitions[Q].end is None
    finder.findings = offers(P, Q)
    task.discover()
    finder.findings = offers(P, gone=frozenset({Q}))
    for _ in range(GONE_LOOKS - 1):
        task.discover()
    assert record(store).partitions[Q].end is None, "it was there in between"
    task.discover()
    assert record(store).partitions[Q].end == 40


def test_acks_of_missing_partitions_go_after_a_while(
    store: ScriptedStore, task: DiscoveryTask, finder: FakeFinder, clock: Clock
) -> None:
    task.discover()
    ack(store, Q, 40)
    store.write(paths.cursor("web", "slow"), None, ABSENT)
    store.write(paths.ack("web", "slow", Q), Ack(epoch=1, offset=2), ABSENT)
    finder.findings = offers(P, gone=frozenset({Q}))
    for _ in range(GONE_LOOKS + 2):
        task.discover()
    assert Q in record(store).partitions
    clock.now += 601
    task.discover()
    assert record(store).partitions.keys() == {P}
    assert not store.exists(paths.ack("web", CURSOR_MAIN, Q))
    assert not store.exists(paths.ack("web", "slow", Q))


def test_partitions_that_wait_for_an_operator_stay_as_they_are(
    store: ScriptedStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    task.discover()
    finder.findings = offers(P, kept=frozenset({Q}), held={"orders.B": "orders was recreated"})
    outcome = task.discover()
    assert (outcome.trouble, outcome.soon) == ("orders was recreated", True)
    assert record(store).partitions == {P: Partition(), Q: Partition()}
    assert record(store).held == {"orders.B": "orders was recreated"}


def test_nothing_ends_while_a_source_does_not_answer(store: ScriptedStore) -> None:
    one, other = FakeFinder(offers(P)), FakeFinder(offers(Q))
    task = DiscoveryTask(store, "web", 3, [one, other])
    task.discover()
    other.trouble = UnavailableError("no broker answers")
    one.findings = offers(P, R)
    assert task.discover().trouble == "no broker answers"
    assert record(store).partitions == dict.fromkeys([P, Q, R], Partition())


# -- a bounded flow


def test_a_bounded_flow_stops_when_all_is_read(
    store: ScriptedStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    finder.findings = Findings({P: Offer(5, 10), Q: Offer(0, 0)}, bounded=True)
    task.discover()
    ack(store, P, 9)
    task.discover()
    assert store.read(paths.flow("web")).value.state == "running"  # type: ignore[union-attr]
    assert finder.ended == 0
    ack(store, P, 10)
    task.discover()
    assert store.read(paths.flow("web")).value.state == "stopped"  # type: ignore[union-attr]
    task.discover()
    assert finder.ended == 1, "it is told before the flow stops, and not after"
    (name,) = store.children(paths.audits())
    entry = store.read(paths.audit(name))
    assert entry is not None
    assert (entry.value.who, entry.value.command) == ("flumeng", "flow stop web")
    assert record(store).partitions[P].end == 10


# -- many


@pytest.mark.slow
def test_only_changed_buckets_of_many_partitions_are_written(
    store: ScriptedStore, task: DiscoveryTask, finder: FakeFinder
) -> None:
    names = [f"topic-{number % 100}.{number}.AAAAAAAA@kafka" for number in range(10_000)]
    finder.findings = offers(*names)
    task.discover()
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
    task.discover()
    assert sum(a != b for a, b in zip(versions, bucket_versions(store), strict=True)) == 1
    finder.findings = offers(*names[:10])
    for _ in range(3):
        task.discover()
    assert record(store).partitions.keys() == set(names[:10])
    assert record(store).buckets == 0
    assert store.children(paths.partitions("web")) == []


def bucket_versions(store: ScriptedStore) -> list[int]:
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


def test_discovery_looks_at_once_and_reports_running(
    store: ScriptedStore, node: Node, finder: FakeFinder
) -> None:
    start(node, store, lambda *_: [finder])
    node.configure(7)
    said = node.hears(lambda message: state(message) == "running")
    assert said["answers"] == 7
    assert record(store).partitions.keys() == {P, Q}


def test_new_revision_causes_a_look_at_once(store: ScriptedStore, node: Node) -> None:
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


@pytest.mark.slow
def test_failure_is_reported_retried_and_cleared_on_success(
    store: ScriptedStore, node: Node, finder: FakeFinder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flumeng.agent.discovery.worker")
    finder.trouble = UserError("brokers refuse the user")
    start(node, store, lambda *_: [finder])
    node.configure(1)
    said = node.hears(lambda message: state(message) == "failed")
    assert said["tasks"]["web/discover.0"]["error"] == "brokers refuse the user"
    finder.trouble = None
    said = node.hears(lambda message: state(message) == "running")
    assert said["tasks"]["web/discover.0"]["error"] is None
    assert caplog.messages == [
        "task web/discover.0 is failed: brokers refuse the user",
        "task web/discover.0 works again",
    ]


def test_error_in_one_flow_fails_its_own_task(store: ScriptedStore, node: Node) -> None:
    class Faulty(FakeFinder):
        def find(self, before: Before) -> Findings:
            raise ZeroDivisionError(f"{len(before.partitions)} partitions")

    start(node, store, lambda *_: [Faulty()])
    node.configure(1)
    said = node.hears(lambda message: state(message) == "failed")
    assert "ZeroDivisionError" in said["tasks"]["web/discover.0"]["error"]
    node.tell({"type": "configure", "number": 2, "tasks": [], "chokes": {}})
    node.hears(lambda message: message["answers"] == 2)


@pytest.mark.slow
def test_finder_is_made_again_after_a_user_error(store: ScriptedStore, node: Node) -> None:
    """So a repaired secret is read."""
    made: list[FakeFinder] = []

    def make(_spec: FlowSpec, _task: FindingTask) -> list[FakeFinder]:
        trouble = None if made else UserError("brokers refuse the user")
        made.append(FakeFinder(trouble=trouble))
        return made[-1:]

    start(node, store, make)
    node.configure(1)
    node.hears(lambda message: state(message) == "running")
    assert [finder.closed for finder in made] == [True, False]


@pytest.mark.long
def test_task_that_fails_repeatedly_is_unhealthy_or_unreachable(
    store: ScriptedStore, node: Node, finder: FakeFinder
) -> None:
    finder.trouble = UserError("brokers refuse the user")
    start(node, store, lambda *_: [finder])
    node.configure(1)
    said = node.hears(lambda message: state(message) == "failed")
    assert said["tasks"]["web/discover.0"]["health"] == ""
    node.hears(lambda message: message["tasks"]["web/discover.0"]["health"] == "unhealthy")
    finder.trouble = UnavailableError("nobody answers")
    node.hears(lambda message: message["tasks"]["web/discover.0"]["health"] == "unreachable")


def test_superseded_task_reports_the_higher_epoch(
    store: ScriptedStore, node: Node, finder: FakeFinder
) -> None:
    store.write(paths.partitions("web"), Partitions(epoch=9), ABSENT)
    start(node, store, lambda *_: [finder])
    node.configure(1)
    said = node.hears(lambda message: state(message) == "stopped")
    assert said["tasks"]["web/discover.0"]["epoch_seen"] == 9
    node.configure(2, epoch=10)
    node.hears(lambda message: state(message) == "running")


def test_unassigned_task_ends(store: ScriptedStore, node: Node, finder: FakeFinder) -> None:
    start(node, store, lambda *_: [finder])
    node.configure(1)
    node.hears(lambda message: state(message) == "running")
    node.tell({"type": "configure", "number": 2, "tasks": [], "chokes": {}})
    assert node.hears(lambda message: message["answers"] == 2)["tasks"] == {}
    assert finder.closed


RANDOM = random.Random(1)
MANY = [f"{RANDOM.randbytes(20).hex()}.0.AAAAAAAA@kafka" for _ in range(50_000)]
"""Partitions of as many topics, whose names hardly compress."""


@pytest.mark.long
@pytest.mark.parametrize("registered", [0, discovered.INLINE, discovered.INLINE + 1])
def test_tens_of_thousands_of_partitions_are_registered_in_parts(
    registered: int, store: ScriptedStore
) -> None:
    """Whichever transaction fails, none that was registered is missing, and the next look goes on.
    The scope of a first look is recorded only when all that it found is registered."""
    failing = ScriptedStore(store.tree)
    finder = FakeFinder(offers(*MANY[:registered], start=1))
    if registered:
        DiscoveryTask(failing, "web", 2, [finder]).discover()
    finder.findings = offers(*MANY, start=7)
    known, completed = set(MANY[:registered]), False
    while not completed:
        failing.before_commit = fail_at(2, UnavailableError("no connection"))
        try:
            DiscoveryTask(failing, "web", 3, [finder]).discover()
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


@pytest.mark.slow
def test_more_partitions_than_a_record_holds_are_refused_before_any_write(
    store: ScriptedStore,
) -> None:
    names = [f"{RANDOM.randbytes(30).hex()}.0.AAAAAAAA@kafka" for _ in range(120_000)]
    task = DiscoveryTask(store, "web", 3, [FakeFinder(offers(*names))])
    with pytest.raises(UserError, match="at most 51200 fit"):
        task.discover()
    assert not store.exists(paths.partitions("web"))
