"""One journal that cannot be read stands still, says so, and is tried again; the others go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from flumeng.agent.collector import claim
from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.assignment import Assignment
from flumeng.agent.collector.job import Jobs
from flumeng.agent.collector.partitions import (
    LOOK_MOST_SECONDS,
    LOOK_SECONDS,
    NAMED,
    SOUND,
    Partitions,
)
from flumeng.agent.collector.publisher import Publisher
from flumeng.agent.collector.runner import Runner
from flumeng.agent.collector.scheduler import Scheduler
from flumeng.agent.collector.status import Status
from flumeng.agent.collector.takeover import Surroundings
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range, Reach, UnreadableError
from flumeng.control.commands.acks import advance_acks
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import tree
from flumeng.platform.errors import CorruptError, UnavailableError
from tests.testkit.cluster import add_flow
from tests.testkit.collector import (
    Restless,
    ScriptedEngine,
    ScriptedPipeline,
    StillPositions,
    register,
)
from tests.testkit.store import FakeStore
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN

BAD = "web.n1.0.00000000"
GOOD = "web.n2.0.00000000"


@dataclass
class Servers(StillPositions):
    """Journals with unreadable places, and a clock; ``probes`` counts the attempts.

    Attempts end at once unless they are to ``hang``. ``news`` are reaches that are unknown before a
    refresh.
    """

    reach: dict[str, Reach] = field(default_factory=dict)
    bad: dict[str, tuple[int, Exception]] = field(default_factory=dict)
    probes: int = 0
    now: float = 1000.0
    hang: bool = False
    news: dict[str, Reach] = field(default_factory=dict)

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        return {name: self.reach[name] for name in partitions if name in self.reach}

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        assert start < end <= self.reach[partition].safe
        del address
        self.probes += 1
        probe: Future[None] = Future()
        if self.hang:
            return probe
        if partition in self.bad and self.bad[partition][0] <= start:
            probe.set_exception(self.bad[partition][1])
        else:
            probe.set_result(None)
        return probe

    def refresh(self, partitions: Collection[str]) -> None:
        self.reach.update((name, self.news[name]) for name in partitions if name in self.news)


@pytest.fixture
def servers() -> Servers:
    return Servers({BAD: Reach("a:1", 100), GOOD: Reach("a:1", 50)})


@pytest.fixture
def partitions(servers: Servers) -> Partitions:
    return Partitions(servers, lambda: servers.now)


STARTS = {BAD: 10, GOOD: 20}
FLOW = "{{flow: web, sources: [syslog: {{listen: '[::1]:0'}}], delivery: {}, sinks: [noop]}}"


def test_undamaged_journals_are_passed_on_as_they_are(
    servers: Servers, partitions: Partitions
) -> None:
    assert partitions.of(STARTS) == servers.reach
    assert partitions.trouble is None
    assert servers.probes == 0


def test_damaged_journal_is_read_up_to_the_damage_and_names_the_repair(
    partitions: Partitions,
) -> None:
    partitions.stop(UnreadableError(BAD, 70, "the checksum does not match"))
    assert partitions.of(STARTS) == {BAD: Reach("a:1", 70, held=30), GOOD: Reach("a:1", 50)}
    assert partitions.trouble == (
        f"journal {BAD} stops at seq 70: the checksum does not match; run on node n1: "
        "`flumeng journal verify`, then `repair`"
    )


def test_damaged_journal_is_retried_with_growing_delays_until_it_is_healed(
    servers: Servers, partitions: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    servers.bad[BAD] = (70, CorruptError("bad"))
    partitions.stop(UnreadableError(BAD, 70, "bad"))
    tries: list[float] = []
    for _ in range(400):
        partitions.of(STARTS)
        if servers.probes > len(tries):
            tries.append(servers.now)
        servers.now += 0.25
    waits = [after - before for before, after in zip([1000.0, *tries], tries, strict=False)]
    assert waits[:5] == [LOOK_SECONDS, 2.0, 4.0, 8.0, 16.0]
    assert set(waits[5:]) == {LOOK_MOST_SECONDS}
    assert caplog.text.count("stops at seq 70") == 1
    del servers.bad[BAD]
    servers.now += LOOK_MOST_SECONDS
    assert partitions.of(STARTS) == servers.reach
    assert partitions.trouble is None
    assert f"reading of partition {BAD} continues" in caplog.text


def test_journal_that_fails_again_at_once_waits_longer(
    servers: Servers, partitions: Partitions
) -> None:
    """A position that we can read here and the executors cannot must not cost a batch each
    second."""
    for wait in (1.0, 2.0, 4.0):
        partitions.stop(UnreadableError(BAD, 70, "bad"))
        servers.now += wait - 0.1
        assert partitions.of(STARTS)[BAD].safe == 70
        servers.now += 0.1
        assert partitions.of(STARTS)[BAD].safe == 100


def test_unreachable_server_does_not_clear_the_damage(
    servers: Servers, partitions: Partitions
) -> None:
    servers.bad[BAD] = (0, UnavailableError("away"))
    partitions.stop(UnreadableError(BAD, 70, "bad"))
    servers.now += LOOK_SECONDS
    assert partitions.of(STARTS)[BAD].safe == 70
    assert servers.probes == 1
    del servers.reach[BAD]
    assert BAD not in partitions.of(STARTS)
    assert "stops at seq 70: bad" in (partitions.trouble or "")


def test_journal_whose_server_makes_no_progress_waits_and_is_reported(
    servers: Servers, partitions: Partitions
) -> None:
    """Its server says how far it reaches, and does not send it: no operator can repair that."""
    servers.bad[BAD] = (0, UnavailableError("a:1 made no progress in 5 s"))
    for wait in (1.0, 2.0, 4.0):
        partitions.stop(UnreadableError(BAD, 70, "a:1 made no progress in 5 s", damaged=False))
        assert partitions.of(STARTS) == {BAD: Reach("a:1", 70, held=30), GOOD: Reach("a:1", 50)}
        assert partitions.trouble == f"journal {BAD} waits at seq 70: a:1 made no progress in 5 s"
        servers.now += wait
        servers.bad.clear()
        assert partitions.of(STARTS) == servers.reach
        assert partitions.trouble is None


def test_journal_that_was_readable_for_long_waits_the_shortest_time_again(
    servers: Servers, partitions: Partitions
) -> None:
    """A node that is restarted now and then is not left out ever longer."""
    for _ in range(20):
        partitions.stop(UnreadableError(BAD, 70, "it was started anew", damaged=False))
        servers.now += LOOK_SECONDS
        assert partitions.of(STARTS) == servers.reach
        servers.now += SOUND * LOOK_SECONDS


def test_hanging_probe_holds_up_no_other_journal(servers: Servers, partitions: Partitions) -> None:
    servers.hang = True
    partitions.stop(UnreadableError(BAD, 70, "bad"))
    for _ in range(100):
        servers.now += 1
        assert partitions.of(STARTS)[GOOD] == servers.reach[GOOD]
        assert partitions.of(STARTS)[BAD].safe == 70
    assert servers.probes == 1


def test_unaccepted_loss_is_reported_from_the_start(
    servers: Servers, partitions: Partitions
) -> None:
    servers.reach[BAD] = Reach("a:1", 60, held=40)
    assert partitions.of(STARTS) == servers.reach
    assert partitions.trouble == (
        f"journal {BAD} stops at seq 60: the next events are lost, and the loss must be accepted; "
        "run on node n1: `flumeng journal repair --accept-loss`"
    )
    partitions.stop(UnreadableError(BAD, 70, "found before the repair"))
    partitions.of(STARTS)
    assert "the loss must be accepted" in (partitions.trouble or "")
    servers.reach[BAD] = Reach("a:1", 100)
    servers.now += LOOK_SECONDS
    assert partitions.of(STARTS) == servers.reach
    assert partitions.trouble is None


def test_loss_below_the_ack_stops_the_journal_at_its_ack(
    servers: Servers, partitions: Partitions
) -> None:
    servers.reach[BAD] = Reach("a:1", 5, held=95)
    assert partitions.of(STARTS)[BAD] == Reach("a:1", 10, held=90)


def test_journal_that_ends_below_its_ack_or_has_malformed_answers_is_left_out(
    servers: Servers, partitions: Partitions
) -> None:
    servers.reach[BAD] = Reach("a:1", 9)
    assert partitions.of(STARTS).keys() == {GOOD}
    assert "ends at seq 9, but seq 10 is acked: the journal has lost durable events" in (
        partitions.trouble or ""
    )
    servers.reach[BAD] = Reach("a:1", 0, trouble="a:1 answers with gibberish")
    assert partitions.of(STARTS).keys() == {GOOD}
    assert f"{BAD} stands still: a:1 answers with gibberish" in (partitions.trouble or "")


def test_journal_whose_floor_is_above_its_ack_waits_for_an_operator(
    servers: Servers, partitions: Partitions
) -> None:
    servers.reach[BAD] = Reach("a:1", 100, floor=50)
    assert partitions.of(STARTS) == {BAD: Reach("a:1", 10, held=90), GOOD: Reach("a:1", 50)}
    assert partitions.trouble == (
        f"journal {BAD} begins at seq 50, but only seq 10 is acked: its ack or its oldest "
        "segments were lost; to go on with the events that are left: `flumeng ack advance`"
    )
    assert partitions.of({**STARTS, BAD: 50}) == servers.reach
    assert partitions.trouble is None


def test_damage_behind_the_ack_stops_no_journal(
    servers: Servers, partitions: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    """At most once acks before it reads: it lost that batch, and logs it."""
    partitions.open(parse_flow(FLOW.format("at-most-once")))
    partitions.stop(UnreadableError(BAD, 70, "bad"))
    assert partitions.of({BAD: 71, GOOD: 20}) == servers.reach
    assert partitions.trouble is None
    assert "it was acked and then could not be read" in caplog.text


def test_damage_that_another_owner_has_read_past_is_no_loss(
    servers: Servers, partitions: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    """The task stands by here meanwhile, or an operator has skipped the event."""
    partitions.open(parse_flow(FLOW.format("at-least-once")))
    partitions.stop(UnreadableError(BAD, 70, "bad"))
    assert partitions.of({BAD: 71, GOOD: 20}) == servers.reach
    assert caplog.messages == []


def test_damage_of_a_journal_that_left_the_task_is_forgotten(
    servers: Servers, partitions: Partitions
) -> None:
    partitions.stop(UnreadableError(BAD, 70, "bad"))
    partitions.of(STARTS)
    partitions.of({GOOD: 20})
    assert partitions.trouble is None
    assert partitions.of(STARTS) == servers.reach


def test_stop_during_a_check_in_another_thread_is_noted_by_the_next_check(
    servers: Servers, partitions: Partitions
) -> None:
    class Interrupted(dict[str, int]):
        def __contains__(self, name: object) -> bool:
            if not stopped:
                stopped.append(True)
                partitions.stop(UnreadableError(BAD, 70, "bad"))
            return super().__contains__(name)

    stopped: list[bool] = []
    partitions.stop(UnreadableError(GOOD, 30, "bad"))
    partitions.of(Interrupted(STARTS))
    assert stopped
    reach = partitions.of(STARTS)
    assert (reach[BAD].safe, reach[GOOD].safe) == (70, 30)
    servers.now += LOOK_SECONDS
    assert partitions.of(STARTS) == servers.reach


@pytest.mark.slow
def test_many_damaged_journals_are_reported_in_a_short_sentence(
    servers: Servers, partitions: Partitions
) -> None:
    names = [f"web.n{number}.0.00000000" for number in range(1000)]
    servers.reach = {name: Reach("a:1", 100) for name in names}
    for name in names:
        partitions.stop(UnreadableError(name, 0, "bad " * 1_000))
    partitions.of(dict.fromkeys(names, 0))
    said = partitions.trouble
    assert said is not None
    assert said.endswith(f"; {1000 - NAMED} more partitions are stopped")
    assert len(said) < 3000


@pytest.mark.parametrize("damaged", [True, False])
def test_error_text_of_an_executor_is_parsed(damaged: bool) -> None:
    error = UnreadableError(BAD, 70, "a:1: /x/y.segment at byte 7: cut: short", damaged=damaged)
    assert vars(UnreadableError.parse(str(error))) == vars(error)


@dataclass
class World:
    """A task of both journals. Its clock is ``ahead`` of the machine's by so many seconds."""

    delivery: str
    store: FakeStore = field(default_factory=FakeStore)
    servers: Servers = field(default_factory=Servers)
    statuses: list[Status] = field(default_factory=list)
    ahead: float = 0.0

    def __post_init__(self) -> None:
        self.servers.reach = {BAD: Reach("", 100), GOOD: Reach("", 50)}
        self.servers.bad[BAD] = (70, CorruptError("the checksum does not match"))
        tree.init(self.store)
        add_flow(self.store)
        register(self.store, "web", BAD, GOOD)
        spec = parse_flow(
            "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], delivery: "
            f"{self.delivery}, batch: {{seconds: 0, events: 100}}, sinks: [noop]}}"
        )
        self.pipeline = ScriptedPipeline(spec, self.fail_where_damaged)
        around = Surroundings(
            store=self.store,
            publisher=Publisher(self.store),
            scheduler=Scheduler(),
            jobs=Jobs(ScriptedEngine(), 2, on_stuck=pytest.fail),
            build=lambda _: self.pipeline,
            positions=lambda wake: Restless(self.servers, wake),
            report=lambda _, status: self.statuses.append(status),
            clock=lambda: time.monotonic() + self.ahead,
        )
        assignment = Assignment("web", "collect.0", 1, 1, "", (BAD, GOOD))
        self.runner = Runner(assignment, around)

    def fail_where_damaged(self, ranges: Sequence[Range]) -> None:
        for piece in ranges:
            seq, error = self.servers.bad.get(piece.partition, (piece.end, None))
            if seq < piece.end:
                raise UnreadableError(piece.partition, seq, str(error))

    def ack(self, journal: str) -> int:
        found = self.store.read(paths.ack("web", CURSOR_MAIN, journal))
        return found.value.offset if found else 0

    def close(self) -> None:
        self.runner.cancel()
        assert self.runner.join(PATIENCE_SECONDS)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(getattr(request, "param", "at-least-once"))
    yield world
    world.close()


@pytest.mark.slow
def test_other_journals_go_on_and_a_repair_heals_without_a_restart(world: World) -> None:
    world.runner.start()
    wait_for(lambda: (world.ack(BAD), world.ack(GOOD)) == (70, 50))
    wait_for(lambda: world.statuses[-1].error)
    assert "stops at seq 70: the checksum does not match" in str(world.statuses[-1].error)
    world.servers.reach[GOOD] = Reach("", 1000)
    wait_for(lambda: world.ack(GOOD) == 1000)
    assert world.ack(BAD) == 70
    world.servers.bad.clear()
    wait_for(lambda: world.ack(BAD) == 100)
    wait_for(lambda: world.statuses[-1].error is None)
    assert {status.state for status in world.statuses} == {"running"}
    assert {status.partitions for status in world.statuses} == {(BAD, GOOD)}


@pytest.mark.slow
def test_ack_moved_by_an_operator_is_noticed(world: World) -> None:
    world.servers.bad.clear()
    world.servers.reach[BAD] = Reach("", 100, floor=30)
    world.runner.start()
    wait_for(lambda: world.ack(GOOD) == 50 and world.statuses[-1].error)
    assert "begins at seq 30" in str(world.statuses[-1].error)
    advance_acks(Operator(world.store, "ann", "", 0.0), {BAD: 30})
    world.ahead += claim.LOOK_SECONDS
    wait_for(lambda: world.ack(BAD) == 100)
    wait_for(lambda: world.statuses[-1].error is None)
    read = [piece for batch in world.pipeline.batches for piece in batch if piece.partition == BAD]
    assert min(piece.start for piece in read) == 30
    assert {status.state for status in world.statuses} == {"running"}


def test_task_drains_as_far_as_its_journals_are_readable(world: World) -> None:
    world.runner.start()
    world.runner.drain()
    assert world.runner.join(PATIENCE_SECONDS)
    assert (world.ack(BAD), world.ack(GOOD)) == (70, 50)


def test_task_drains_the_events_that_were_safe_at_the_drain_request(world: World) -> None:
    """Also those that its watch has not reported yet."""
    world.runner.start()
    wait_for(lambda: world.ack(GOOD) == 50)
    world.servers.news[GOOD] = Reach("", 80)
    world.runner.drain()
    assert world.runner.join(PATIENCE_SECONDS)
    assert world.ack(GOOD) == 80


@pytest.mark.parametrize("world", ["at-most-once"], indirect=True)
def test_at_most_once_gives_up_the_damaged_batch(world: World) -> None:
    """It acks before it reads: there is nothing to go back to."""
    world.servers.bad[BAD] = (70, CorruptError("bad"))
    world.runner.start()
    wait_for(lambda: (world.ack(BAD), world.ack(GOOD)) == (100, 50))
    assert {status.state for status in world.statuses} == {"running"}


@pytest.mark.slow
def test_events_above_the_ack_at_the_claim_are_marked_replayed(world: World) -> None:
    Acks.claim(world.store, Publisher(world.store), "web", 1, [BAD])
    world.runner.start()
    wait_for(lambda: world.ack(BAD) == 70)
    world.servers.reach[BAD] = Reach("", 150)
    world.servers.bad.clear()
    wait_for(lambda: world.ack(BAD) == 150)
    read = [piece for batch in world.pipeline.batches for piece in batch if piece.partition == BAD]
    assert max(piece.end for piece in read if piece.replayed) == 100
    assert min(piece.start for piece in read if not piece.replayed) == 100


def test_probe_that_fails_unexpectedly_is_repeated(
    servers: Servers, partitions: Partitions
) -> None:
    servers.bad[BAD] = (0, OSError("Invalid flatbuffers message."))
    partitions.stop(UnreadableError(BAD, 70, "bad"))
    servers.now += LOOK_SECONDS
    assert partitions.of(STARTS)[BAD].safe == 70
    assert "Invalid flatbuffers message" in (partitions.trouble or "")
    assert partitions.of(STARTS)[GOOD] == servers.reach[GOOD]
    servers.bad.clear()
    servers.now += 2 * LOOK_SECONDS
    assert partitions.of(STARTS) == servers.reach
