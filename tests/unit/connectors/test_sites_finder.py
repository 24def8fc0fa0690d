"""The finder of a remote flow: journals that are new, gone, or lost after the end of a lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.config.component import RemoteFlow
from flumeng.connectors.sites.finder import SiteFinder
from flumeng.connectors.sites.gateways import Gateways
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.gateway_wire import FlowPositions, LeaseAnswer, LeaseRequest
from tests.testkit.cluster import new_cluster
from tests.testkit.store import FakeStore
from zkschema import paths

COPY = "flow: copy\nsources: [{flow: {site: fra, name: web}}]\nsinks: [noop]\n"
OLD, NEW = "web.n1.0.0000000a", "web.n1.0.0000000b"


def at(floor: int, safe: int) -> Position:
    return Position(1, floor, safe, closed=False)


class FakeGateways:
    """``ended``: the answer to the next requests."""

    def __init__(self) -> None:
        self.journals: dict[str, Position] = {OLD: at(5, 10)}
        self.ends: dict[str, int] = {}
        self.away: tuple[str, ...] = ()
        self.ended = False
        self.requests: list[LeaseRequest] = []
        self.before_answer: Callable[[], None] = lambda: None

    def here(self) -> str:
        return "nyc"

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        self.requests.append(request)
        return LeaseAnswer("fra", "id", self.ended)

    def positions(self, _flow: str) -> FlowPositions:
        self.before_answer()
        return FlowPositions("fra", dict(self.journals), dict(self.ends), self.away, "s")


@pytest.fixture
def nyc() -> FakeStore:
    store = new_cluster()
    operator = Operator(store, "a", "", 0.0)
    name_cluster(operator, "nyc")
    add_site(operator, "fra", ["127.0.0.1:1"], "")
    apply_flow(operator, COPY)
    return store


@pytest.fixture
def fra() -> FakeGateways:
    return FakeGateways()


@pytest.fixture
def task(nyc: FakeStore, fra: FakeGateways) -> DiscoveryTask:
    return discovery(nyc, fra, epoch=1)


def discovery(nyc: FakeStore, fra: FakeGateways, epoch: int) -> DiscoveryTask:
    finder = SiteFinder(RemoteFlow("fra", "web", 600.0), nyc, "copy")
    finder._gateways = cast(Gateways, fra)
    return DiscoveryTask(nyc, "copy", epoch, [finder])


def starts(task: DiscoveryTask) -> dict[str, int]:
    return {name: partition.start for name, partition in task.partitions.items()}


def test_events_that_a_new_journal_has_lost_are_a_gap(
    task: DiscoveryTask, fra: FakeGateways
) -> None:
    task.discover()
    fra.journals[NEW] = at(7, 20)
    task.discover()
    assert starts(task) == {f"fra:{OLD}@site": 5, f"fra:{NEW}@site": 0}


def test_search_is_repeated_when_an_earlier_task_has_begun_the_subscription_meanwhile(
    fra: FakeGateways, nyc: FakeStore
) -> None:
    """A journal that came since then is read whole."""
    fra.journals = {}
    earlier = discovery(nyc, fra, epoch=1)
    later = discovery(nyc, fra, epoch=2)

    def meanwhile() -> None:
        fra.before_answer = lambda: None
        earlier.discover()
        fra.journals[NEW] = at(7, 20)

    fra.before_answer = meanwhile
    later.discover()
    assert starts(later) == {f"fra:{NEW}@site": 0}


def test_journal_whose_server_was_away_when_the_flow_began_starts_at_its_floor(
    task: DiscoveryTask, fra: FakeGateways, nyc: FakeStore
) -> None:
    fra.away = (NEW,)
    outcome = task.discover()
    assert f"the server of the journal {NEW} does not answer" in outcome.trouble
    assert outcome.soon
    record = nyc.read(paths.partitions("copy"))
    assert record is not None
    assert record.value.scope is not None
    assert "lease id" in record.value.scope, "an end of the lease would not be noticed"
    fra.away = ()
    fra.journals[NEW] = at(7, 20)
    task.discover()
    assert starts(task) == {f"fra:{OLD}@site": 5, f"fra:{NEW}@site": 7}


def test_journal_that_ends_after_its_lease_did_is_lost_though_it_was_there_still(
    task: DiscoveryTask, fra: FakeGateways
) -> None:
    """The source decided to remove it before it saw the lease again."""
    task.discover()
    fra.ended, fra.ends = True, {OLD: 10}
    assert task.discover().trouble == ""
    fra.ended, fra.ends, fra.journals = False, {}, {}
    for _ in range(4):
        assert "events from seq 0 on may be missing" in task.discover().trouble


def test_journal_that_is_open_after_its_lease_ended_is_no_longer_in_doubt(
    task: DiscoveryTask, fra: FakeGateways
) -> None:
    task.discover()
    fra.ended = True
    task.discover()
    fra.ended = False
    task.discover()
    fra.journals = {}
    assert [task.discover().trouble for _ in range(4)] == [""] * 4


def test_journal_that_an_outdated_gateway_missed_is_in_doubt_again_and_not_lost(
    task: DiscoveryTask, fra: FakeGateways
) -> None:
    task.discover()
    there, fra.journals, fra.ended = fra.journals, {}, True
    assert "events from seq 0 on may be missing" in task.discover().trouble
    fra.journals, fra.ended, fra.ends = there, False, {OLD: 10}
    assert task.discover().trouble == ""
    fra.journals, fra.ends = {}, {}
    assert "events from seq 0 on may be missing" in task.discover().trouble
