"""A thousand clusters in which everything goes wrong, and faults that must be noticed.

Every second one is varied: with labels, capacities, maintenance mode, chokes, rollouts that an
operator steers, hosts that are gone for good, and plans in buckets. Every third one writes into a
target that knows batches by number.

``FLUMENG_SIM_SEED=n`` runs one of them again, ``FLUMENG_SIM_SEEDS=n`` that many.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.intents import Intents, by_partition
from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.connectors.api.ranged import Progress, Range
from flumeng.connectors.objects.queue_log import QueueLog
from flumeng.control.snapshot import discovered
from flumeng.control.snapshot.reader import Reader
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.zookeeper import Check, Expected, Put, Store, Version, Versioned, Write
from tests.testkit.simulation import Ensemble, Parts, SteppedMaster, ViolationError, World
from tests.testkit.simulation.cluster import SECURED, TIGHT
from tests.testkit.simulation.delivery import Delivery
from tests.testkit.simulation.ensemble import Znode
from tests.testkit.simulation.output import Events
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack, Intent, Partitions, Plan, Queue

ONE = os.environ.get("FLUMENG_SIM_SEED")
SEEDS = int(os.environ.get("FLUMENG_SIM_SEEDS", "1000"))
PARTS = 8
CAUGHT_WITHIN = 400
"""Maximum number of worlds until a mutant must be noticed."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_illegal_happens_and_everything_comes_to_rest(part: int) -> None:
    """``tests.testkit.simulation.checks`` lists the checks after every step."""
    seeds = [int(ONE)] if ONE else range(part, SEEDS, PARTS)
    for seed in seeds if part == 0 or not ONE else ():
        World(seed).run()


def check_it_is_noticed(parts: Parts, what: str, seeds: Sequence[int]) -> None:
    """Fails when none of the worlds of these seeds reports ``what``."""
    for seed in seeds:
        try:
            World(seed, parts).run()
        except ViolationError as violation:
            assert what in str(violation).partition("\n")[0], violation
            return
    pytest.fail(f"{len(seeds)} worlds did not notice the fault")


class BlindClaims(Acks):
    """Claims without a look at the epoch of the last owner."""

    def _claim(self, names: Sequence[str]) -> None:
        found = self._store.read_many([paths.ack(self._flow, CURSOR_MAIN, n) for n in names])
        highest = max((ack.value.epoch for ack in found if ack), default=0)
        mine, self.epoch = self.epoch, max(self.epoch, highest)
        self._blind_epoch = mine
        super()._claim(names)
        self.epoch = mine

    def _put(self, partition: str, at: Progress, leader_epoch: int | None, expect: Expected) -> Put:
        put = super()._put(partition, at, leader_epoch, expect)
        return replace(put, value=Ack(epoch=self._blind_epoch, offset=at.offset))


def careless_about(written: Callable[[str], bool]) -> type[Ensemble]:
    """Servers that do not compare the version of some znodes when they are overwritten."""

    class Careless(Ensemble):
        def expectation_holds(self, write: Any, znode: Znode) -> bool:
            careless = isinstance(write, Put) and written(str(write.path))
            return careless or super().expectation_holds(write, znode)

    return Careless


class SameEpoch(Ensemble):
    """Servers that give a task to its next owner under the epoch of the last one."""

    def commit(self, session: int, writes: Sequence[Write]) -> list[Version]:
        return super().commit(session, [self._spoilt(write) for write in writes])

    def _spoilt(self, write: Write) -> Write:
        old = self.newest(str(write.path))
        if not isinstance(write, Put) or not isinstance(write.value, Plan) or old is None:
            return write
        assert isinstance(old.value, Plan)
        before = old.value.tasks
        tasks = {
            name: replace(task, epoch=before[name].epoch)
            if name in before and before[name].node not in (None, task.node)
            else task
            for name, task in write.value.tasks.items()
        }
        return replace(write, value=replace(write.value, tasks=tasks))


class ImpatientReader(Reader):
    """Reports every draining task as overdue."""

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        late = {f"{flow.name}/{name}" for flow in found.flows.values() for name in flow.draining}
        return replace(found, overdue=frozenset(late))


class TrustingReader(Reader):
    """Reports every task as having run its revision long enough."""

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        tasks = {f"{flow.name}/{name}" for flow in found.flows.values() for name in flow.tasks}
        return replace(found, settled=frozenset(tasks))


def master_with(reader: type[Reader]) -> type[SteppedMaster]:
    class Mutant(SteppedMaster):
        def __init__(self, store: Store, name: str, clock: Callable[[], float]) -> None:
            super().__init__(store, name, clock)
            self._reader = reader(store, name, clock, clock)

    return Mutant


class CountingAllMasters(Reader):
    """Gives every live master its share, also masters that hang."""

    def snapshot(self) -> Snapshot:
        self._masters = {
            name: replace(live, value=replace(live.value, renew_seconds=0.0))
            for name, live in self._masters.items()
            if isinstance(live, Versioned)
        }
        return super().snapshot()


class ForgettingPages(Ensemble):
    """Servers that lose writes into the buckets of plans."""

    def commit(self, session: int, writes: Sequence[Write]) -> list[Version]:
        return super().commit(session, [self._emptied(write) for write in writes])

    def _emptied(self, write: Write) -> Write:
        if isinstance(write, Put) and write.path.row is paths.plan_bucket:
            return replace(write, value=Plan())
        return write


class RepeatsOthers(Intents):
    """Repeats a batch with another end."""

    @property
    def open(self) -> Intent | None:
        found = super().open
        if found is None or found.epoch == self._acks.epoch:
            return found
        shorter = {
            name: (start, max(start + 1, end - 1)) for name, (start, end) in found.ranges.items()
        }
        return replace(found, ranges=shorter)


class EndsEarly(Intents):
    """Ends a batch, and then moves its acks."""

    def end(self) -> Put:
        (self._expect,) = self._store.commit([super().end()])
        return super().end()


class DecidesLate(Intents):
    """Records the decided batch only when it is written."""

    def decide(
        self, ranges: Sequence[Range], revision: int, splits: int, left_out: Sequence[Range] = ()
    ) -> Intent:
        bounds = {piece.partition: (piece.start, piece.end) for piece in ranges}
        self._intent = replace(
            self._intent,
            epoch=self._acks.epoch,
            number=self._intent.number + 1,
            revision=revision,
            splits=splits,
            ranges=bounds,
            left_out=by_partition(left_out),
        )
        return self._intent

    def end(self) -> Put:
        (self._expect,) = self._store.commit([Put(self._path, self._intent, self._expect)])
        return super().end()


class BlindReader(Reader):
    """Reports that no batch is decided."""

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        ended = {
            flow: {
                task: replace(intent, record=intent.record and replace(intent.record, ranges={}))
                for task, intent in intents.items()
            }
            for flow, intents in found.intents.items()
        }
        return replace(found, intents=ended)


class WithoutFences(Ensemble):
    """Servers that lose the writes of masters into intents, with their expected versions."""

    def commit(self, session: int, writes: Sequence[Write]) -> list[Version]:
        plans = any(write.path.row is paths.plan for write in writes)
        kept = [w for w in writes if not (plans and w.path.row is paths.intent)]
        versions = iter(super().commit(session, kept))
        puts = [write for write in writes if isinstance(write, Put)]
        return [next(versions) if write in kept else Version(0) for write in puts]


class BlindDiscovery(DiscoveryTask):
    """Writes without a look at the epoch of the last owner."""

    def _read(self) -> Versioned[Partitions] | None:
        (found,) = discovered.read(self._store, [self._flow])
        return found if isinstance(found, Versioned) else None


MANY = tuple(f"operator:o{number:04}@*" for number in range(200))
NAMING_MEMBERS = replace(TIGHT, secured=replace(SECURED, members=MANY))

MUTANTS = {
    "epochs are not compared in a claim": (Parts(acks=BlindClaims), "fenced, and yet accepted"),
    "versions are not compared in an ack": (
        Parts(ensemble=careless_about(lambda path: path.startswith("/acks/"))),
        "",
    ),
    "versions are not compared in a plan": (
        Parts(ensemble=careless_about(lambda path: path.endswith("/plan"))),
        "",
    ),
    "a task is taken before it was let go": (
        Parts(master=master_with(ImpatientReader)),
        "still had time",
    ),
    "hung masters and nodes do not end": (Parts(watchdogs=False), "does not come to rest"),
    "nobody notices a hung master": (
        Parts(master=master_with(CountingAllMasters)),
        "does not come to rest",
    ),
    "the buckets of a plan are lost": (Parts(ensemble=ForgettingPages), ""),
    "a task is given on under its old epoch": (Parts(ensemble=SameEpoch), "epoch"),
    "nobody waits for a canary": (Parts(master=master_with(TrustingReader)), ""),
    "a batch is repeated with other ranges": (Parts(intents=RepeatsOthers), "in the target"),
    "an intent ends before its acks": (Parts(intents=EndsEarly), "in the target"),
    "a batch is written before it is decided": (Parts(intents=DecidesLate), "in the target"),
    "partitions leave a task whose batch is decided": (
        Parts(master=master_with(BlindReader)),
        "while a batch is decided",
    ),
    "who has lost partitions is not fenced": (Parts(ensemble=WithoutFences), ""),
    "access lists name many operators": (Parts(scale=NAMING_MEMBERS), "jute.maxbuffer"),
    "partitions are found under an old epoch": (
        Parts(discovery=BlindDiscovery),
        "are written under",
    ),
}
NOTICED_SOON_FROM = {
    "versions are not compared in an ack": 190,
    "versions are not compared in a plan": 205,
    "the buckets of a plan are lost": 133,
    "nobody waits for a canary": 130,
    "a batch is repeated with other ranges": 225,
    "a batch is written before it is decided": 28,
    "an intent ends before its acks": 140,
    "partitions leave a task whose batch is decided": 235,
    "who has lost partitions is not fenced": 1035,
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_every_request_of_a_small_secured_cluster_fits_a_tight_server(seed: int) -> None:
    World(seed, Parts(scale=TIGHT)).run()


@pytest.mark.long
@pytest.mark.parametrize("fault", MUTANTS)
def test_fault_of_a_part_is_noticed(fault: str) -> None:
    parts, what = MUTANTS[fault]
    first = NOTICED_SOON_FROM.get(fault, 0)
    check_it_is_noticed(parts, what, range(first, first + CAUGHT_WITHIN))


class TwoTransactions(QueueLog):
    """Writes segments and seen objects, and then the head in another transaction."""

    def _write(self, head: Queue, also: Sequence[Write]) -> None:
        self._store.commit([Check(paths.queue(self._flow), self._head.version), *also])
        super()._write(head, [])


class HeadFirst(QueueLog):
    """Writes the head, and then segments and seen objects."""

    def _write(self, head: Queue, also: Sequence[Write]) -> None:
        super()._write(head, [])
        self._store.commit([Check(paths.queue(self._flow), self._head.version), *also])


class SeenLater(QueueLog):
    """Records objects as seen after their lanes have them."""

    def append(self, new: Any, seen: Any, also: Sequence[Write] = (), **more: Any) -> None:
        super().append(new, {}, also, **more)
        super().append({}, seen)


class SeenEarlier(QueueLog):
    """Records objects as seen before their lanes have them."""

    def append(self, new: Any, seen: Any, also: Sequence[Write] = (), **more: Any) -> None:
        super().append({}, seen)
        super().append(new, {}, also, **more)


class RemovesEarly(QueueLog):
    """Believes that one more item of each lane is acked."""

    def read_acks(self) -> None:
        super().read_acks()
        for state in self.lanes.values():
            state.acknowledge(state.acked + 1)


class AcksFirst(Delivery):
    def deliver(
        self,
        acks: Acks,
        ranges: Sequence[Range],
        events: Events,
        commit: Sequence[Write],
        also: Sequence[Write],
    ) -> Iterator[None]:
        acks.advance(ranges, also=also)
        yield
        self.write(events, commit)
        acks._store.commit([acks.check(ranges[0].partition), *commit])


class FailsApart(Delivery):
    """Records failed items, and then moves the acks past them in another transaction."""

    def deliver(
        self,
        acks: Acks,
        ranges: Sequence[Range],
        events: Events,
        commit: Sequence[Write],
        also: Sequence[Write],
    ) -> Iterator[None]:
        acks._store.commit([acks.check(ranges[0].partition), *also])
        yield from super().deliver(acks, ranges, events, commit, ())


QUEUED = 5
"""One of so many worlds reads objects through queues."""
QUEUES_NOTICED_SOON_FROM = {
    "what was seen is written behind the items": 54,
    "what was seen is written before the items": 129,
}
QUEUE_MUTANTS = {
    "head and segment are written in two transactions": (
        Parts(queue_log=TwoTransactions),
        "and the next one is",
    ),
    "the head is written before its segments": (Parts(queue_log=HeadFirst), "and the next one is"),
    "what was seen is written behind the items": (Parts(queue_log=SeenLater), "already"),
    "what was seen is written before the items": (Parts(queue_log=SeenEarlier), "is lost"),
    "acks move before the output is there": (Parts(delivery=AcksFirst), "nowhere in the target"),
    "segments go before they are acked": (Parts(queue_log=RemovesEarly), ""),
    "a failure is noted before the ack": (Parts(delivery=FailsApart), "failed at"),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", QUEUE_MUTANTS)
def test_fault_of_a_part_of_a_queue_is_noticed(fault: str) -> None:
    first = QUEUES_NOTICED_SOON_FROM.get(fault, QUEUED - 1)
    check_it_is_noticed(*QUEUE_MUTANTS[fault], range(first, first + QUEUED * CAUGHT_WITHIN, QUEUED))


@pytest.mark.slow
def test_seed_gives_the_same_world_in_every_process() -> None:
    """For any order of sets: a violation can be repeated."""
    program = (
        "from tests.testkit.simulation import World\n"
        "for seed in range(5):\n"
        "    world = World(seed)\n"
        "    world.run()\n"
        "    print(world.story.step, world.ensemble.zxid, list(world.story))\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(told) == 1
