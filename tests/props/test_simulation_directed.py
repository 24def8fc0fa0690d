"""Clusters in which rare events happen all the time, and faults that only show then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from flumeng.agent.collector.intents import Intents
from flumeng.connectors.api.ranged import Range
from flumeng.control.zookeeper import Version, Write
from flumeng.platform.errors import FlumengError
from tests.props.test_simulation import careless_about
from tests.testkit.simulation import Ensemble, Parts, ViolationError, World
from tests.testkit.simulation.collector import Collector
from tests.testkit.simulation.master import MasterProcess
from zkschema import paths
from zkschema.records import Intent


class ForgetsWhatIsLeftOut(Intents):
    """Leaves unreadable ranges out of a batch and does not record them."""

    def decide(
        self, ranges: Sequence[Range], revision: int, splits: int, left_out: Sequence[Range] = ()
    ) -> Intent:
        del left_out
        return super().decide(ranges, revision, splits)

    def leave_out(self, left_out: Sequence[Range]) -> None:
        del left_out


class EndsCollectors(World):
    """Ends all collectors and heals all objects once a target has a batch without unreadable
    events, before its ack.

    ``ended`` are the batches at which that happened.
    """

    def __init__(self, seed: int, parts: Parts) -> None:
        super().__init__(seed, parts)
        self.ended: set[tuple[str, int]] = set()

    def step(self) -> None:
        super().step()
        batches = {(batch.series, batch.number) for batch in self._written_in_part()}
        if self._depth or batches <= self.ended:  # a collector may be busy
            return
        self.ended |= batches
        for process in list(self.processes):
            if isinstance(process, Collector):
                process.kill()
        for flow in self.operator.flows:
            self.disks.bucket(flow).heal()

    def _written_in_part(self) -> Iterator[Intent]:
        for flow in self.operator.flows:
            intents = str(paths.intents(flow))
            for task in self.ensemble.children(intents, self.ensemble.zxid):
                found = self.ensemble.newest(f"{intents}/{task}")
                assert found is not None and isinstance(found.value, Intent)
                if len({self.target.times(*event) for event in self._events(found.value)}) > 1:
                    yield found.value

    def _events(self, batch: Intent) -> Iterator[tuple[str, int]]:
        for partition, bounds in batch.ranges.items():
            if lane := self.checks.queues.lanes.get(partition):
                yield from ((partition, offset) for offset in lane.events(*bounds))


@pytest.mark.long
@pytest.mark.parametrize("intents", [Intents, ForgetsWhatIsLeftOut])
def test_batch_is_repeated_without_the_objects_left_out_of_it(intents: type[Intents]) -> None:
    """Of queues, in targets that know batches by number."""
    ended = 0
    for seed in range(204, 204 + 15 * 12, 15):
        world = EndsCollectors(seed, Parts(intents=intents))
        try:
            world.run()
        except ViolationError as violation:
            assert intents is ForgetsWhatIsLeftOut, violation
            assert "is nowhere in the target" in str(violation).partition("\n")[0], violation
            return
        ended += len(world.ended)
    assert intents is Intents and ended


class Racing(Ensemble):
    """Lets ``others`` act before a master begins moves: its decision is older."""

    others: Callable[[], None] = staticmethod(lambda: None)

    def commit(self, session: int, writes: Sequence[Write]) -> list[Version]:
        if any(write.path.row is paths.moves for write in writes):
            self.others()
        return super().commit(session, writes)


class CountedAlone(Racing, careless_about(lambda path: path == "/moves")):  # type: ignore[misc]
    """Masters do not see moves that another master has begun."""


class Uneven(World):
    """All nodes but the first are drained and undrained, so that tasks move back to them."""

    PERIOD_STEPS, STEPS = 120, 720
    _desired = "active"

    def __init__(self, seed: int, parts: Parts) -> None:
        super().__init__(seed, parts)
        assert isinstance(self.ensemble, Racing)
        self.ensemble.others = self._masters_act

    def run(self) -> None:
        while self.story.step < self.STEPS:
            self.step()

    def _go_wrong(self) -> None:
        desired = ("active", "draining")[self.story.step // self.PERIOD_STEPS % 2]
        if desired != self._desired:
            self._desired = desired
            for name in self.ensemble.children(str(paths.nodes()), self.ensemble.zxid)[1:]:
                with contextlib.suppress(FlumengError):
                    self.operator.desire(name, desired)

    def _masters_act(self) -> None:
        for process in list(self.processes):
            if isinstance(process, MasterProcess) and process.may_run:
                process.busy = True
                process.step()
                process.busy = False


@pytest.mark.long
@pytest.mark.parametrize("ensemble", [Racing, CountedAlone])
def test_racing_masters_do_not_exceed_the_move_throttle(ensemble: type[Ensemble]) -> None:
    """Of flows that read from Kafka."""
    for seed in range(121, 121 + 5 * 40, 5):
        try:
            Uneven(seed, Parts(ensemble=ensemble)).run()
        except ViolationError as violation:
            assert ensemble is CountedAlone, violation
            assert "balance moves are under way" in str(violation).partition("\n")[0], violation
            return
    assert ensemble is Racing
