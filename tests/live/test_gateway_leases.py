"""Leases of another site: renewal, end, breaks, and what both sites learn of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.agent.gateway import lease_use
from flumeng.connectors.api.finding import Before
from flumeng.connectors.sites.finder import SiteFinder
from flumeng.control.commands import lease_breaks, site_failover
from flumeng.control.commands.acks import accept, delete_cursor
from flumeng.control.commands.flows import apply_flow, delete_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import name_cluster
from flumeng.control.master.removals import children_first
from flumeng.control.queries import cursors, links
from flumeng.control.queries.acks import Positions
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot.leases import ENDED_SECONDS
from flumeng.control.zookeeper import ANY, Remove
from flumeng.journal.log.errors import HeldError
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.metrics import table
from tests.live.gateway_sites import (
    BY,
    PARTITION,
    REMOTE,
    WEB,
    J,
    Sites,
    apply_copy,
    lease_of,
    sites,
)
from tests.testkit.cluster import acks_of, add_journal, come_live
from tests.testkit.waiting import wait_for
from zkschema import paths
from zkschema.bootstrap import flow_tops
from zkschema.records import Ack, Gap, Partition

__all__ = ["sites"]


def test_discovery_offers_journals_and_holds_them_with_a_lease(sites: Sites) -> None:
    apply_copy(sites)
    task = sites.discovery()
    assert task.discover().trouble == ""
    assert task.partitions.keys() == {PARTITION}
    assert acks_of(sites.fra, "web", "nyc:copy") == {}
    lease = sites.fra.read(paths.lease("web", "nyc:copy"))
    assert lease is not None
    assert (lease.value.keep_seconds, lease.value.reader) == (600.0, "flow copy of site nyc")
    sites.ack(400)
    task.discover()
    assert acks_of(sites.fra, "web", "nyc:copy") == {J: 400}
    again = sites.fra.read(paths.lease("web", "nyc:copy"))
    assert again is not None
    assert again.value.holder == lease.value.holder
    account = task.accounts()[PARTITION]
    assert (account.floor, account.acked, account.safe) == (0, 400, 1000)


def test_deletion_of_the_reading_flow_ends_its_lease(sites: Sites) -> None:
    """A pause does not, nor a move of the task to another process."""
    apply_copy(sites)
    operator = Operator(sites.nyc, *BY)
    for act in (lambda: None, lambda: set_flow_state(operator, "copy", "suspended")):
        task = sites.discovery()
        task.discover()
        act()
        task.close()
        wait_for(lambda: "end of a lease" not in thread_names(), "it hangs")
        assert lease_of(sites).keep_seconds == 600.0
    task = sites.discovery()
    task.discover()
    delete_flow(operator, "copy")
    task.close()
    wait_for(lambda: lease_of(sites).keep_seconds == ENDED_SECONDS, "the lease stays")


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("lives", [True, False])
def test_flow_made_again_has_a_lease_from_its_floor(sites: Sites, lives: bool) -> None:
    """Its acks are new ones: those of the deleted flow of that name hold nothing for it."""
    apply_copy(sites)
    sites.discovery().discover()
    sites.ack(400)
    sites.discovery().discover()
    assert acks_of(sites.fra, "web", "nyc:copy") == {J: 400}
    before = lease_of(sites)
    if not lives:
        ended = replace(before, keep_seconds=ENDED_SECONDS)
        sites.fra.write(paths.lease("web", "nyc:copy"), ended, ANY)
    tops = [*filter(sites.nyc.exists, flow_tops("copy"))]
    sites.nyc.commit([Remove(path, ANY) for path in children_first(sites.nyc, tops)])
    apply_copy(sites)
    task = sites.discovery()
    task.discover()
    assert acks_of(sites.fra, "web", "nyc:copy") == {}
    assert lease_of(sites).holder != before.holder
    assert lease_of(sites).keep_seconds == 600.0
    sites.ack(3)
    assert task.discover().trouble == ""
    assert acks_of(sites.fra, "web", "nyc:copy") == {J: 3}


def end_lease(sites: Sites) -> None:
    """As masters do with an expired one."""
    for name in sites.fra.children(paths.cursor("web", "nyc:copy")):
        sites.fra.commit([Remove(paths.ack("web", "nyc:copy", name), ANY)])
    sites.fra.commit([Remove(paths.cursor("web", "nyc:copy"), ANY)])
    sites.fra.commit([Remove(paths.lease("web", "nyc:copy"), ANY)])


def test_ended_lease_is_reported_and_begins_again(sites: Sites) -> None:
    apply_copy(sites)
    task, finder = sites.discovery(), sites.finder()
    task.discover()
    sites.ack(400)
    end_lease(sites)
    record = sites.nyc.read(paths.partitions("copy"))
    assert record is not None
    found = finder.find(Before(record.value.partitions, record.value.scope))
    assert found.notes == ("the lease on flow web of site fra had ended: not renewed for 600 s",)
    assert acks_of(sites.fra, "web", "nyc:copy") == {J: 400}


def test_unread_journal_that_ended_with_its_lease_waits_for_an_operator(sites: Sites) -> None:
    apply_copy(sites)
    task = sites.discovery()
    task.discover()
    sites.ack(400)
    end_lease(sites)
    sites.fra.commit([Remove(paths.journal(J), ANY)])
    wait_for(lambda: not sites.finder().find(Before()).offers, "the journal stays")
    end_lease(sites)
    for _ in range(5):
        trouble = task.discover().trouble
        assert f"journal {J} of site fra ended after the lease did: events from seq 400" in trouble
    assert task.partitions[PARTITION].end is None


def test_journal_that_was_read_whole_is_not_missed_when_the_lease_has_ended(sites: Sites) -> None:
    apply_copy(sites)
    record = sites.fra.read(paths.journal(J))
    assert record is not None
    closed = replace(record.value, closed=True, end=1000)
    sites.fra.write(paths.journal(J), closed, record.version)
    task = sites.discovery()
    task.discover()
    sites.ack(1000)
    end_lease(sites)
    sites.fra.commit([Remove(paths.journal(J), ANY)])
    wait_for(lambda: not sites.finder().find(Before()).offers, "the journal stays")
    end_lease(sites)
    assert task.discover().trouble == ""


def test_flow_made_anew_at_the_source_is_another_one(sites: Sites) -> None:
    """Its journals are read from their floors; the unread rest of the old one waits for a word."""
    apply_copy(sites)
    task = sites.discovery()
    task.discover()
    sites.ack(400)
    operator = Operator(sites.fra, *BY)
    end_lease(sites)
    delete_flow(operator, "web")
    sites.gateways[0].stop(0.1)  # it takes the flow as readable for some seconds
    with pytest.raises(UserError, match="flow web is being deleted"):
        sites.finder().find(Before())
    tops = [paths.journal(J), *filter(sites.fra.exists, flow_tops("web"))]
    sites.fra.commit([Remove(path, ANY) for path in children_first(sites.fra, tops)])
    apply_flow(operator, WEB)
    anew = "web.n1.0.9d8e7f60"
    add_journal(sites.fra, anew)
    sites.journal.close()
    sites.journal = MemoryJournal.create(sites.folder, anew, limits=Limits(128 << 20))
    sites.append(50)
    server = JournalServer("127.0.0.1", journals=lambda: {anew: sites.journal})
    sites.stack.callback(server.stop)
    come_live(sites.fra, "n1", server.address)
    wait_for(lambda: f"fra:{anew}@site" in discovered(task), "the new journal stays unknown")
    assert task.partitions[f"fra:{anew}@site"].start == 0
    trouble = task.discover().trouble
    assert f"journal {J} of site fra ended after the lease did: events from seq 400" in trouble
    accept(Operator(sites.nyc, *BY), "copy", {PARTITION: "earliest"})
    wait_for(lambda: not task.discover().trouble, "the acceptance has no effect")
    wait_for(lambda: discovered(task)[PARTITION].end == 400, "the old journal stays open")
    assert acks_of(sites.nyc, "copy") == {PARTITION: 400}


def discovered(task: DiscoveryTask) -> Mapping[str, Partition]:
    with contextlib.suppress(UserError, UnavailableError):
        task.discover()
    return task.partitions


def test_journal_that_a_restored_site_brings_back_is_not_read_again(sites: Sites) -> None:
    """Its acks stay for as long as a lease would, not only for the time of a short absence."""
    apply_copy(sites)
    now = [1e6]
    sites.nyc.tree.clock = lambda: now[0]
    finder = SiteFinder(replace(REMOTE, keep_seconds=86_400.0), sites.nyc, "copy")
    task = DiscoveryTask(sites.nyc, "copy", 1, [finder], clock=lambda: now[0], wall=lambda: now[0])
    task.discover()
    sites.ack(1000)
    sites.fra.commit([Remove(paths.journal(J), ANY)])
    for seconds, kept in ((0, True), (700, True), (86_400, False)):
        now[0] += seconds
        wait_for(lambda: not sites.finder().find(Before()).offers, "the journal stays")
        for _ in range(4):
            task.discover()
        assert acks_of(sites.nyc, "copy") == ({PARTITION: 1000} if kept else {})
    assert not task.partitions


def test_gateway_of_a_wrong_site_makes_no_lease(sites: Sites) -> None:
    name_cluster(Operator(sites.fra, *BY), "lon")
    with pytest.raises(UserError, match="is of site lon, not fra"):
        sites.finder().find(Before())
    assert sites.fra.children(paths.leases()) == []


def test_full_journal_gives_up_what_only_another_site_has_not_read(sites: Sites) -> None:
    apply_copy(sites)
    task = sites.discovery()
    task.discover()
    sites.ack(100)
    task.discover()
    sites.fra.write(paths.ack("web", "main", J), Ack(epoch=1, offset=900), ANY)
    gateway = sites.gateways[0]
    gateway.relieve()
    assert acks_of(sites.fra, "web", "nyc:copy") == {J: 100}, "the journal is not full"
    lease = sites.fra.read(paths.lease("web", "nyc:copy"))
    sites.journal.limits = Limits(1)
    with pytest.raises(HeldError):
        sites.append(1)
    assert sites.journal.full

    def relieved() -> bool:
        gateway.relieve()
        return acks_of(sites.fra, "web", "nyc:copy") == {J: 900}

    wait_for(relieved, "a full journal is held")
    assert sites.fra.read(paths.lease("web", "nyc:copy")) == lease, "the lease is not renewed"
    broke = lease_breaks.of_flow(sites.fra, "web")["nyc:copy"]
    assert (broke.events, broke.away) == (800, False)
    assert broke.gaps == (Gap(journal=J, start=100, end=900),)
    task.discover()
    link = sites.nyc.read(paths.link("copy"))
    assert link is not None
    assert link.value.broke is not None, "the reader learns it from the next answer"
    assert (link.value.broke.events, link.value.broke.gaps) == (800, broke.gaps)
    assert link.value.broke.why == "the journal was full, and its senders waited"


def test_journal_full_of_what_is_read_gives_up_the_little_that_is_not(sites: Sites) -> None:
    """Few large events may fill a journal whose many small ones are acked by all."""
    apply_copy(sites)
    task = sites.discovery()
    task.discover()
    sites.ack(990)
    task.discover()
    sites.fra.write(paths.ack("web", "main", J), Ack(epoch=1, offset=1000), ANY)
    sites.journal.limits = Limits(1)
    with pytest.raises(HeldError):
        sites.append(1)

    def relieved() -> bool:
        sites.gateways[0].relieve()
        return acks_of(sites.fra, "web", "nyc:copy") == {J: 999}  # the last one shows the gap

    wait_for(relieved, "senders wait for ever")


def test_slow_flow_here_is_no_reason_to_give_events_up(sites: Sites) -> None:
    apply_copy(sites)
    task = sites.discovery()
    task.discover()
    sites.ack(100)
    task.discover()
    sites.fra.write(paths.ack("web", "main", J), Ack(epoch=1, offset=500), ANY)
    sites.journal.limits = Limits(1)
    with pytest.raises(HeldError):
        sites.append(1)
    for _ in range(20):
        sites.gateways[0].relieve()
        time.sleep(0.05)
    assert acks_of(sites.fra, "web", "nyc:copy") == {J: 100}


def end_by_operator(sites: Sites) -> None:
    delete_cursor(Operator(sites.fra, "ann", "the disk is needed", 0.0), "web", "nyc:copy")


def test_reader_of_an_ended_lease_gets_the_sentence_and_what_is_really_gone(sites: Sites) -> None:
    apply_copy(sites)
    task, finder = sites.discovery(), sites.finder()
    task.discover()
    sites.ack(400)
    task.discover()
    sites.append(200_000)
    sites.fra.write(paths.ack("web", "main", J), Ack(epoch=1, offset=150_000), ANY)
    end_by_operator(sites)
    assert lease_breaks.of_flow(sites.fra, "web")["nyc:copy"].events == 149_600
    sites.journal.trim(150_000)
    floor = sites.journal.floor
    wait_for(
        lambda: sites.gateways[0]._watch.positions("", "web").positions[J].floor == floor,
        "the floor does not arrive",
    )
    record = sites.nyc.read(paths.partitions("copy"))
    assert record is not None
    found = finder.find(Before(record.value.partitions, record.value.scope))
    assert found.notes == (
        "the lease on flow web of site fra had ended: ann ended the lease: the disk is needed",
    )
    broke = lease_breaks.of_flow(sites.fra, "web")["nyc:copy"]
    assert (broke.away, broke.events) == (False, floor - 400)
    link = sites.nyc.read(paths.link("copy"))
    assert link is not None
    assert link.value.broke is not None
    assert link.value.broke.gaps == (Gap(journal=J, start=400, end=floor),)


def test_ended_lease_of_which_nothing_is_gone_is_forgotten_when_the_reader_returns(
    sites: Sites,
) -> None:
    apply_copy(sites)
    task = sites.discovery()
    task.discover()
    sites.ack(400)
    task.discover()
    sites.fra.write(paths.ack("web", "main", J), Ack(epoch=1, offset=1000), ANY)
    end_by_operator(sites)
    assert lease_breaks.of_flow(sites.fra, "web")["nyc:copy"].events == 600
    sites.finder().find(Before())
    assert lease_breaks.of_flow(sites.fra, "web") == {}
    link = sites.nyc.read(paths.link("copy"))
    assert link is not None
    assert link.value.broke is not None
    assert link.value.broke.events == 0


def test_reader_learns_what_its_lease_holds(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    apply_copy(sites)
    sites.journal.limits = Limits(2 * sites.journal.bytes)
    task = sites.discovery()
    task.discover()
    monkeypatch.setattr(lease_use, "ASKED_SECONDS", 0.0)
    for gateway in sites.gateways:
        gateway.relieve()
    task.discover()
    link = sites.nyc.read(paths.link("copy"))
    assert link is not None
    assert (link.value.events, round(link.value.room, 2)) == (1000, 0.5)
    readings = list(sites.gateways[0].readings())
    labels = ("nyc", "copy", "web")
    assert table.LEASE_EVENTS.of(1000, *labels) in readings
    assert table.LEASE_LOST.of(0, *labels) in readings


def test_source_learns_of_a_failover_and_of_its_end(sites: Sites) -> None:
    apply_copy(sites)
    task = sites.discovery()
    task.discover()
    operator = Operator(sites.nyc, "ann", "", 7.0)
    site_failover.carry_out(operator, site_failover.plan(sites.nyc, "fra", "failover", 7.0))

    def rows() -> list[float]:
        task.discover()
        cache = ReadCache.of(sites.fra)
        found = cursors.rows(cache, Positions(), {}, 8.0, cursors.of_sites(cache))
        return [row.failover for row in found]

    assert rows() == [7.0]
    found = sites.nyc.read(paths.site("fra"))
    assert found is not None
    sites.nyc.write(paths.site("fra"), replace(found.value, failover=None), found.version)
    assert rows() == [0.0]


def test_silent_lease_is_a_cause_at_both_shares(sites: Sites) -> None:
    apply_copy(sites)
    now = time.time()
    sites.fra.tree.clock = lambda: now
    sites.finder().find(Before())

    def causes(seconds: float) -> list[str]:
        cache = ReadCache.of(sites.fra)
        rows = cursors.rows(cache, Positions(), {}, now + seconds, cursors.of_sites(cache))
        return [cause.what for cause in links.causes_of_leases(rows)]

    assert causes(299) == []
    assert [("flow copy of site nyc has not" in c, "50%" in c) for c in causes(301)] == [
        (True,) * 2
    ]
    assert ["82%" in cause for cause in causes(490)] == [True]
    ended = replace(lease_of(sites), keep_seconds=ENDED_SECONDS)
    sites.fra.write(paths.lease("web", "nyc:copy"), ended, ANY)
    assert causes(490) == []
