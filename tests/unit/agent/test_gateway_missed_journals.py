"""Journals that begin and end while a reader at another site has no lease are a counted gap."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import pytest

from flumeng.agent.gateway.lease_use import LeaseUse
from flumeng.agent.gateway.leases import Leases
from flumeng.agent.node.fenced_store import FencedStore
from flumeng.agent.node.journal_registry import JournalRegistry
from flumeng.connectors.sites import link_notes
from flumeng.control.commands import lease_breaks
from flumeng.control.commands.acks import delete_cursor
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import name_cluster
from flumeng.control.master.removals import Removals
from flumeng.control.master.tidying import remove_gone
from flumeng.control.planner.actions import Release
from flumeng.control.queries import links
from flumeng.control.snapshot import missed_journals
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.gateway_wire import LeaseAnswer, LeaseRequest
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_journal, new_cluster
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import Ack, Breaks, Gap, Journal, Link

OLD = "web.n1.0.0000000a"
WEB = "flow: web\nsources: [{syslog: {listen: '127.0.0.1:5514'}}]\nsinks: [noop]\n"
NOW = time.time()
ANN = ("ann", "the disk is needed", NOW)
Remove = Callable[[FakeStore, str], None]


@pytest.fixture
def store() -> FakeStore:
    """The journal OLD has 100 events, which its own flow has."""
    made = new_cluster()
    made.tree.clock = time.time
    name_cluster(Operator(made, *ANN), "fra")
    apply_flow(Operator(made, *ANN), WEB)
    add_journal(made, OLD)
    made.write(paths.ack("web", "main", OLD), Ack(epoch=1, offset=100), ABSENT)
    return made


def by_node(store: FakeStore, journal: str) -> None:
    registry = JournalRegistry(FencedStore(store), "n1", Clock())
    registry.clear_up([journal], ())


def by_master(store: FakeStore, journal: str) -> None:
    """In a secured cluster the node may only mark it."""
    record = store.read(paths.journal(journal))
    assert record is not None
    gone = replace(record.value, gone=True)
    store.write(paths.journal(journal), gone, record.version)
    snapshot = cast(Snapshot, SeenJournals({journal: gone}))
    assert len(list(remove_gone(store, snapshot))) == 1


class SeenJournals:
    """The part of a snapshot that is asked."""

    def __init__(self, journals: Mapping[str, Journal]) -> None:
        self.journals = journals
        self.flows: Mapping[str, object] = {}
        self.nodes: Mapping[str, object] = {}


def lease_request(lease_id: str = "", ack: int = 40) -> LeaseRequest:
    return LeaseRequest("web", "nyc", "copy", 600.0, {OLD: ack}, lease_id, made="a")


def answer(store: FakeStore, request: LeaseRequest) -> LeaseAnswer:
    served = {OLD: Position(1, 0, 100, closed=False)}
    renewed = Leases(store).renew("fra", "nyc", request)
    return LeaseUse(store).described(renewed, request, "nyc:copy", lambda: served)


def end_by_master(store: FakeStore) -> None:
    lease = store.read(paths.lease("web", "nyc:copy"))
    assert lease is not None
    Removals(store).carry_out(Release("web", "nyc:copy", lease.version, ()))


def end_by_operator(store: FakeStore) -> None:
    delete_cursor(Operator(store, *ANN), "web", "nyc:copy")


def come_and_go(store: FakeStore, number: int, events: int, remove: Remove = by_node) -> str:
    name = f"web.n1.0.{number:08x}"
    add_journal(store, name, closed=True, end=events)
    store.write(paths.ack("web", "main", name), Ack(epoch=1, offset=events), ABSENT)
    remove(store, name)
    assert not store.exists(paths.journal(name))
    return name


def causes(link: Link) -> list[str]:
    rows = [links._row("copy", link, link.renewed)]
    return [cause.what for cause in links.causes_of_links(rows, {"copy": "running"}, link.renewed)]


@pytest.mark.parametrize("remove", [by_node, by_master])
@pytest.mark.parametrize("end", [end_by_master, end_by_operator])
def test_journals_that_begin_and_end_without_a_lease_are_counted(
    store: FakeStore, end: Callable[[FakeStore], None], remove: Remove
) -> None:
    first = answer(store, lease_request())
    end(store)
    missed = come_and_go(store, 1, 30, remove)
    assert lease_breaks.of_flow(store, "web")["nyc:copy"].events == 60 + 30
    back = answer(store, lease_request(first.id))
    assert back.ended
    link = link_notes.answered(Link(site="fra", source="web", keep_seconds=1.0), back, 0.0, NOW)
    assert link.broke is not None
    assert (link.broke.events, link.broke.at_least) == (30, False)
    assert link.broke.gaps == (Gap(journal=missed, start=0, end=30),)
    (cause,) = causes(link)
    assert "has lost 30 events of flow web at site fra" in cause
    assert f"{missed} seq 0 to 29" in cause


def test_journal_that_was_there_when_the_lease_ended_is_not_counted_again(store: FakeStore) -> None:
    """Its reader knows it; after the return of the reader nothing is counted at all."""
    first = answer(store, lease_request(ack=100))
    end_by_master(store)
    record = store.read(paths.journal(OLD))
    assert record is not None
    closed = replace(record.value, closed=True, end=100)
    store.write(paths.journal(OLD), closed, record.version)
    by_node(store, OLD)
    assert lease_breaks.of_flow(store, "web")["nyc:copy"].events == 0
    answer(store, lease_request(first.id, ack=100))
    come_and_go(store, 2, 30)
    assert lease_breaks.of_flow(store, "web")["nyc:copy"].events == 0


def test_more_journals_than_a_record_names_are_at_least_those_named(store: FakeStore) -> None:
    first = answer(store, lease_request(ack=100))
    end_by_master(store)
    for number in range(1, missed_journals.KEPT_GAPS + 6):
        come_and_go(store, 100 + number, 10)
    back = answer(store, lease_request(first.id, ack=100))
    assert back.broke is not None
    assert (back.broke.events, back.broke.at_least) == (10 * missed_journals.KEPT_GAPS, True)


def test_end_of_which_the_site_has_no_record_is_at_least_no_event(store: FakeStore) -> None:
    first = answer(store, lease_request())
    end_by_master(store)
    lease_breaks.acknowledge(Operator(store, *ANN), "web", "nyc:copy")
    come_and_go(store, 1, 30)
    back = answer(store, lease_request(first.id))
    link = link_notes.answered(Link(site="fra", source="web", keep_seconds=1.0), back, 0.0, NOW)
    again = link_notes.answered(link, answer(store, lease_request(back.id)), 0.0, NOW)
    (cause,) = causes(again)
    assert "has lost at least 0 events of flow web at site fra" in cause
    assert "journals that began and ended meanwhile are not counted" in cause


def test_lost_answer_about_an_end_without_loss_is_no_doubt(store: FakeStore) -> None:
    """The record of the end stays until the reader presents the new lease."""
    first = answer(store, lease_request(ack=100))
    end_by_master(store)
    answer(store, lease_request(first.id, ack=100))
    again = answer(store, lease_request(first.id, ack=100))
    assert again.broke is not None
    assert (again.broke.events, again.broke.at_least) == (0, False)
    answer(store, lease_request(again.id, ack=100))
    assert lease_breaks.of_flow(store, "web") == {}


def test_end_recorded_by_an_older_flumeng_may_lack_events(store: FakeStore) -> None:
    first = answer(store, lease_request())
    end_by_master(store)
    found = store.read(paths.breaks("web"))
    assert found is not None
    (broke,) = found.value.cursors.values()
    older = replace(broke, newest=0)
    store.write(paths.breaks("web"), Breaks(cursors={"nyc:copy": older}), ANY)
    come_and_go(store, 1, 30)
    back = answer(store, lease_request(first.id))
    assert back.broke is not None
    assert (back.broke.events, back.broke.at_least) == (0, True)
