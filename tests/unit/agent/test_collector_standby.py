"""A task on standby: it gets ready, writes nothing, and takes over at once on its assignment."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.job import Jobs
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.runner import Runner
from flumeng.agent.collector.scheduler import Scheduler
from flumeng.agent.collector.status import Status
from flumeng.agent.collector.takeover import Surroundings
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Reach
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform.errors import UserError
from tests.testkit.cluster import add_flow, new_cluster
from tests.testkit.collector import ScriptedEngine, ScriptedPipeline, StillPositions, register
from tests.testkit.waiting import wait_for
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Ack

JOURNAL = "web.n1.0.00000000"
ACK = paths.ack("web", CURSOR_MAIN, JOURNAL)
OWNED = Ack(epoch=3, offset=40)
TEXT = (
    "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], delivery: at-least-once, "
    "batch: {seconds: 0, events: 100}, sinks: [noop]}"
)
STANDBY = Assignment("web", "0", 0, 1, TEXT, (JOURNAL,), standby=True)
OWNER = replace(STANDBY, epoch=4, standby=False)


class Host(StillPositions):
    """A collector with one task. ``built`` are the pipelines that it has made."""

    def __init__(self, *, broken: bool = False) -> None:
        self.store = new_cluster()
        add_flow(self.store)
        register(self.store, "web", JOURNAL)
        self.store.write(ACK, OWNED, ABSENT)
        self.engine = ScriptedEngine()
        self.scheduler = Scheduler()
        self.statuses: list[Status] = []
        self.built: list[ScriptedPipeline] = []
        self.closed = 0
        self.broken = broken

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        return {name: Reach("", 50) for name in partitions}

    def close(self) -> None:
        self.closed += 1

    def build(self, assignment: Assignment) -> ScriptedPipeline:
        if self.broken:
            raise UserError("no such column")
        self.built.append(ScriptedPipeline(parse_flow(assignment.spec)))
        return self.built[-1]

    def runner(self, assignment: Assignment) -> Runner:
        around = Surroundings(
            self.store,
            Publisher(self.store, gap_seconds=0.0),
            self.scheduler,
            Jobs(self.engine, 2, on_stuck=self._stuck),
            self.build,
            lambda _wake: self,
            lambda _key, status: self.statuses.append(status),
        )
        return Runner(assignment, around)

    def _stuck(self, why: str) -> None:
        raise AssertionError(why)

    def acked(self) -> Ack:
        found = self.store.read(ACK)
        assert found is not None
        return found.value


def test_a_standby_is_ready_and_writes_nothing() -> None:
    host = Host()
    before = host.store.dump()
    host.runner(STANDBY).turn()
    assert [(s.state, s.epoch, s.error) for s in host.statuses] == [("standby", 0, None)]
    assert host.engine.warm == host.built
    assert host.store.dump() == before


def test_standby_takes_over_with_the_pipeline_that_is_ready() -> None:
    host = Host()
    runner = host.runner(STANDBY)
    runner.start()
    wait_for(lambda: host.statuses)
    runner.assign(OWNER)
    wait_for(lambda: host.acked() == Ack(epoch=4, offset=50))
    runner.stop()
    assert runner.join(60)
    assert len(host.built) == 1
    assert [piece.start for batch in host.built[0].batches for piece in batch] == [40]


def test_standby_takes_over_another_revision_with_a_new_pipeline() -> None:
    host = Host()
    runner = host.runner(STANDBY)
    runner.turn()
    runner.assign(replace(OWNER, revision=2))
    runner.turn()
    assert len(host.built) == 2


def test_standby_takes_over_other_filters_of_its_site_with_a_new_pipeline() -> None:
    host = Host()
    runner = host.runner(STANDBY)
    runner.turn()
    host.built[0].outdated = True
    runner.assign(OWNER)
    runner.turn()
    assert len(host.built) == 2


def test_standby_is_fenced_by_a_higher_epoch() -> None:
    """An owner under a higher epoch has claimed meanwhile."""
    host = Host()
    runner = host.runner(STANDBY)
    runner.turn()
    host.store.write(ACK, Ack(epoch=9, offset=45), ANY)
    runner.assign(OWNER)
    runner.turn()
    assert (host.statuses[-1].state, host.statuses[-1].epoch_seen) == ("stopped", 9)
    assert host.acked() == Ack(epoch=9, offset=45)


def test_owner_that_becomes_the_standby_releases_first() -> None:
    host = Host()
    runner = host.runner(OWNER)
    runner.turn()
    assert host.acked().epoch == 4
    runner.assign(STANDBY)
    runner.turn()
    runner.turn()
    before = host.store.dump()
    runner.turn()
    assert host.statuses[-1].state == "standby"
    assert host.store.dump() == before


def test_standby_with_an_invalid_pipeline_reports_it_and_retries() -> None:
    host = Host(broken=True)
    runner = host.runner(STANDBY)
    runner.turn()
    assert (host.statuses[-1].state, host.statuses[-1].error) == ("failed", "no such column")
    host.broken = False
    runner.assign(replace(STANDBY, revision=2))
    runner.turn()
    assert host.statuses[-1].state == "standby"


def test_standby_that_stops_or_drains_closes_its_watches_at_once() -> None:
    for end in (Runner.stop, Runner.drain):
        host = Host()
        runner = host.runner(STANDBY)
        runner.turn()
        end(runner)
        runner.turn()
        assert (runner.join(0), host.closed) == (True, 1)
