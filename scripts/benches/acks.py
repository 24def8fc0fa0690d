"""How many fenced acks one collector publishes, and what acks cost ZooKeeper in steady state.

One real ZooKeeper on this machine and one client process. The acks are those of tasks, each under
its own claim, through the publisher that a collector uses. The ceiling is bare kazoo, without
fencing: transactions of as many sets, to the same znodes and of the same size, as many under way.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from kazoo.client import KazooClient

from benches.server import transactions
from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.publisher import FULL_ACKS, IN_FLIGHT, Publisher
from flumeng.connectors.api.ranged import Range
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, Put, Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import ConflictError
from tests.testkit.store import RealZooKeeper
from zkschema import codec, paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, Journal

FLOW = """
flow: bench
sources: [{syslog: {listen: "127.0.0.1:0"}}]
sinks: [noop]
"""
PARTITIONS_OF_TASK = 100
TASKS = 40
ROUNDS = 5
ROUND_SECONDS = 2.0
STEADY_TASKS = 100
STEADY_PARTITIONS_OF_TASK = 10
STEADY_SECONDS = 10.0
IDLE_SECONDS = 5.0


def run() -> dict[str, object]:
    """Acks a second and their ceiling, medians of alternating rounds; then the steady state."""
    with tempfile.TemporaryDirectory(prefix="flumeng-bench-") as folder:
        server = RealZooKeeper(Path(folder) / "zookeeper")
        server.start()
        store = connect(f"{server.address}/bench")
        try:
            tree.init(store)
            apply_flow(Operator(store, "bench", "", time.time()), FLOW)
            return {**_fastest(server, store), **_steady(server, store)}
        finally:
            store.close()
            server.kill()


def _fastest(server: RealZooKeeper, store: Store) -> dict[str, object]:
    publisher = Publisher(store)
    shares = shares_of("fast", TASKS, PARTITIONS_OF_TASK)
    register(store, shares)
    tasks = claim(store, publisher, shares)
    names = [name for acks in tasks for name in acks.offsets]
    ours, ceilings = [], []
    for _ in range(ROUNDS):
        ours.append(acks_per_second(tasks))
        check(store, tasks)
        ceilings.append(_sets_per_second(server, names))
        tasks = claim(store, publisher, shares)
    _check_fenced(store, tasks)
    return {
        "partitions": len(names),
        "tasks": TASKS,
        "acks_per_second": round(median(ours)),
        "ceiling_sets_per_second": round(median(ceilings)),
    }


def _steady(server: RealZooKeeper, store: Store) -> dict[str, object]:
    """Each task acks all its partitions once a second, each at its own moment of the second."""
    shares = shares_of("steady", STEADY_TASKS, STEADY_PARTITIONS_OF_TASK)
    register(store, shares)
    tasks = claim(store, Publisher(store), shares)
    waits: list[float] = []

    def work(acks: Acks, until: float) -> None:
        due = time.monotonic() + random.uniform(0.0, 1.0)
        while due < until:
            time.sleep(max(0.0, due - time.monotonic()))
            began = time.monotonic()
            _advance(acks)
            waits.append(time.monotonic() - began)
            due += 1.0

    before = transactions(server.port)
    _at_once(tasks, work, STEADY_SECONDS)
    made = transactions(server.port) - before
    check(store, tasks)
    acked = sum(offset for acks in tasks for offset in acks.offsets.values())
    expected = STEADY_TASKS * STEADY_PARTITIONS_OF_TASK * (STEADY_SECONDS - 1)
    assert acked >= expected, f"only {acked} acks in {STEADY_SECONDS:.0f} s: not a steady state"
    before = transactions(server.port)
    time.sleep(IDLE_SECONDS)
    idle = transactions(server.port) - before
    waits.sort()
    partitions = STEADY_TASKS * STEADY_PARTITIONS_OF_TASK
    return {
        "steady_partitions": partitions,
        "transactions_per_100_partitions_second": round(made * 100 / acked, 3),
        "transactions_idle": idle,
        "ack_ms_p50": round(waits[len(waits) // 2] * 1000, 1),
        "ack_ms_p99": round(waits[len(waits) * 99 // 100] * 1000, 1),
    }


def shares_of(prefix: str, tasks: int, partitions: int) -> list[list[str]]:
    """The partitions of each task."""
    return [[f"{prefix}.{t}.{p}" for p in range(partitions)] for t in range(tasks)]


def register(store: Store, shares: Sequence[Sequence[str]]) -> None:
    """As journals of a node; those that are there stay."""
    names = [name for share in shares for name in share]
    record = Journal(flow="bench", node="n1", primary="n1", term=1, in_sync=("n1",))
    found = store.read_many([paths.journal(name) for name in names])
    missing = [name for name, journal in zip(names, found, strict=True) if journal is None]
    store.commit_each([[Put(paths.journal(name), record, ABSENT)] for name in missing])


def claim(store: Store, publisher: Publisher, shares: Sequence[Sequence[str]]) -> list[Acks]:
    return [Acks.claim(store, publisher, "bench", 1, share) for share in shares]


def _advance(acks: Acks) -> None:
    acks.advance([Range(name, offset, offset + 1) for name, offset in acks.offsets.items()])


def acks_per_second(tasks: Sequence[Acks]) -> float:
    """All tasks ack one event of each of their partitions, over and over, for ROUND_SECONDS."""
    before = sum(offset for acks in tasks for offset in acks.offsets.values())

    def work(acks: Acks, until: float) -> None:
        while time.monotonic() < until:
            _advance(acks)

    began = time.monotonic()
    _at_once(tasks, work, ROUND_SECONDS)
    after = sum(offset for acks in tasks for offset in acks.offsets.values())
    return (after - before) / (time.monotonic() - began)


def _at_once(tasks: Sequence[Acks], work: Callable[[Acks, float], None], seconds: float) -> None:
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=work, args=(acks, until)) for acks in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _sets_per_second(server: RealZooKeeper, names: Sequence[str]) -> float:
    client = KazooClient(f"{server.address}/bench")
    client.start()
    data = codec.encode(Ack(epoch=1, offset=100))
    wanted = [str(paths.ack("bench", CURSOR_MAIN, name)) for name in names]
    under_way: deque[object] = deque()
    done = position = 0
    began = time.monotonic()
    while time.monotonic() < began + ROUND_SECONDS:
        transaction = client.transaction()
        for number in range(FULL_ACKS):
            transaction.set_data(wanted[(position + number) % len(wanted)], data)
        position += FULL_ACKS
        under_way.append(transaction.commit_async())
        if len(under_way) == IN_FLIGHT:
            done += len(under_way.popleft().get(timeout=10))  # type: ignore[attr-defined]
    while under_way:
        done += len(under_way.popleft().get(timeout=10))  # type: ignore[attr-defined]
    seconds = time.monotonic() - began
    client.stop()
    client.close()
    return done / seconds


def check(store: Store, tasks: Sequence[Acks]) -> None:
    """ZooKeeper holds what the tasks believe."""
    for acks in tasks:
        wanted = [paths.ack("bench", CURSOR_MAIN, name) for name in acks.offsets]
        found = [ack and ack.value.offset for ack in store.read_many(wanted)]
        assert found == list(acks.offsets.values()), "an ack was lost"


def _check_fenced(store: Store, tasks: Sequence[Acks]) -> None:
    """A partition that is claimed by another stops its task and no other."""
    fenced, *others = tasks
    Acks.claim(store, Publisher(store), "bench", 2, [min(fenced.offsets)])
    stopped = []

    def work(acks: Acks, _until: float) -> None:
        try:
            _advance(acks)
        except ConflictError:
            stopped.append(acks)

    _at_once(tasks, work, 0.0)
    assert stopped == [fenced], "fencing does not hold"
    check(store, others)
