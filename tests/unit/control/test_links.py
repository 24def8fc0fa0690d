"""Causes of links and leases, at the site that reads and at the one that is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flumeng.agent.gateway.leases import Leases as GatewayLeases
from flumeng.control.commands import lease_breaks
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.queries import cursors, links
from flumeng.control.queries.acks import Positions
from flumeng.control.queries.causes import Cause
from flumeng.control.queries.health import status
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.queries.zookeeper_clock import SLACK_SECONDS
from flumeng.control.snapshot.leases import Leases
from flumeng.control.zookeeper import ABSENT, Version, Versioned
from flumeng.journal.serving.account import Account
from flumeng.journal.serving.gateway_wire import LeaseRequest
from flumeng.platform.errors import UserError
from tests.testkit.cluster import add_flow, add_journal, new_cluster
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import Ack, Break, Gap, Lease, Link, LiveMaster

NOON = 1_700_000_000.0
J = "web.n1.0.0a1b2c3d"
UP = Link(site="fra", source="web", keep_seconds=1000.0, renewed=NOON)
LEASE = Lease(holder="h", reader="r", keep_seconds=1000.0, renewed=NOON)
BROKE = Break(
    id="b1",
    reader="",
    why="the journal was full",
    time=NOON,
    events=60,
    gaps=(Gap(journal=J, start=40, end=100),),
)


def causes(*found: Link, after: float = 0.0, state: str = "running") -> list[Cause]:
    """Return the causes of the links of flows f0, f1, ..., so many seconds after noon."""
    store = new_cluster()
    for number, link in enumerate(found):
        add_flow(store, f"f{number}")
        store.write(paths.link(f"f{number}"), link, ABSENT)
    names = [f"f{number}" for number in range(len(found))]
    rows = links.links(ReadCache.of(store), names, NOON + after)
    return list(links.causes_of_links(rows, dict.fromkeys(names, state), NOON + after))


DOWN = replace(
    UP, down_since=NOON, why="no gateway of site fra answers: g1:1: refused", downs=(NOON,)
)


def test_link_is_reported_down_after_a_while_and_not_at_a_short_break() -> None:
    assert causes(DOWN, after=29) == []
    (cause,) = causes(DOWN, after=60)
    assert cause.what.startswith(
        "the link to site fra is down since 2023-11-14 22:13:20 UTC (60 s)"
    )
    assert "g1:1: refused" in cause.what


def test_flows_of_a_link_that_is_down_share_one_cause() -> None:
    (cause,) = causes(*[DOWN] * 5, after=60)
    assert "for flow f0, f1, f2 and 2 more" in cause.what


def test_link_of_a_paused_flow_is_not_reported_down() -> None:
    assert causes(DOWN, after=60, state="suspended") == []


def test_link_that_went_down_three_times_flaps() -> None:
    twice = replace(UP, downs=(NOON - 500, NOON - 5))
    assert causes(twice, after=10) == []
    (cause,) = causes(replace(twice, downs=(*twice.downs, NOON)), after=10)
    assert "flaps, for flow f0: it went down at least 3 times in 10 min" in cause.what
    assert causes(replace(twice, downs=(*twice.downs, NOON)), after=200) == []


def test_slow_link_is_reported() -> None:
    (cause,) = causes(replace(UP, answer_seconds=2.5))
    assert cause.what == "the link to site fra is slow, for flow f0: its answers take 2.5 s"


@pytest.mark.parametrize(
    ("after", "about"), [(499, []), (500, ["50%"]), (799, ["50%"]), (800, ["80%"]), (1100, ["80%"])]
)
def test_reader_warns_of_the_time_of_its_lease(after: float, about: list[str]) -> None:
    found = causes(UP, after=after, state="suspended")
    assert [cause.about.rpartition(" ")[2] for cause in found] == about
    assert all("`flumeng flow resume f0`" in cause.advice for cause in found)
    assert [("has ended" in cause.what) for cause in found] == [after >= 1000] * len(about)


@pytest.mark.parametrize(("room", "about"), [(0.49, []), (0.5, ["50%"]), (0.8, ["80%"])])
def test_reader_warns_of_the_room_of_its_lease(room: float, about: list[str]) -> None:
    found = causes(replace(UP, room=room, events=1000, bytes=12_300_000))
    assert [cause.about.rpartition(" ")[2] for cause in found] == about
    assert all("site fra keeps 1000 events (12 MB) for flow f0" in cause.what for cause in found)


def test_reader_reports_a_gap_until_it_is_acknowledged_or_old() -> None:
    (cause,) = causes(replace(UP, broke=BROKE))
    assert "has lost 60 events of flow web at site fra" in cause.what
    assert f"the journal was full: {J} seq 40 to 99" in cause.what
    assert causes(replace(UP, broke=BROKE, acknowledged="b1")) == []
    late = replace(UP, broke=BROKE, renewed=NOON + 700_000)
    assert causes(late, after=604_801) == []


@pytest.fixture
def source() -> FakeStore:
    """The site fra, with a lease of the flow ``copy`` of nyc that has read 40 of 100 events."""
    store = new_cluster()
    operator = Operator(store, "ann", "", NOON)
    name_cluster(operator, "fra")
    apply_flow(operator, "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n")
    add_journal(store, J)
    store.tree.clock = lambda: NOON
    store.write(paths.cursor("web", "nyc:copy"), None, ABSENT)
    store.write(paths.ack("web", "nyc:copy", J), Ack(epoch=0, offset=40), ABSENT)
    store.write(paths.ack("web", "main", J), Ack(epoch=1, offset=100), ABSENT)
    lease = Lease(holder="h", reader="flow copy of site nyc", keep_seconds=1000.0, renewed=NOON)
    store.write(paths.lease("web", "nyc:copy"), lease, ABSENT)
    return store


def account(**fields: Any) -> Account:
    given: dict[str, Any] = {
        "term": 1, "durability": "disk", "floor": 0, "acked": 100, "safe": 100, "bytes": 1000,
        "max_bytes": 1000, "lost": 0, "waits_at": None, "closed": False, "oldest_unacked_us": None,
    }  # fmt: skip
    return Account(**given | fields)


def at_source(store: FakeStore, after: float, found: Account) -> list[Cause]:
    cache = ReadCache.of(store)
    where = Positions({"n1": {J: found}})
    rows = cursors.rows(cache, where, {J: found}, NOON + after, cursors.of_sites(cache))
    return [*links.causes_of_leases(rows), *links.causes_of_breaks(cache, ["web"], NOON + after)]


@pytest.mark.parametrize(
    ("after", "size", "about"),
    [
        (0, 800, []),
        (500, 800, ["time 50%"]),
        (800, 800, ["time 80%"]),
        (0, 834, ["room 50%"]),
        (0, 1334, ["room 80%"]),
        (900, 1334, ["time 80%", "room 80%"]),
    ],
)
def test_source_warns_of_time_and_room(
    source: FakeStore, after: float, size: int, about: list[str]
) -> None:
    """The reader has not read six of ten parts of the journal's bytes."""
    found = at_source(source, after, account(bytes=size))
    assert [cause.about.partition(": ")[2] for cause in found] == about
    assert all("flow copy of site nyc" in cause.what for cause in found)


def test_room_counts_bytes_where_they_are(source: FakeStore) -> None:
    """Small acked events before large unread ones do not hide that the journal is full."""
    (cause,) = at_source(source, 0, account(sizes=((0, 50), (40, 950))))
    assert "has not read 60 events" in cause.what
    assert "95% of its `max_bytes`" in cause.what


def test_ended_lease_is_reported_with_its_gap_until_acknowledged(source: FakeStore) -> None:
    lease = source.read(paths.lease("web", "nyc:copy"))
    assert lease is not None
    write = lease_breaks.ended(source, ("web", "nyc:copy"), lease, "why", NOON)
    assert write is not None
    source.commit([write])
    again = lease_breaks.ended(source, ("web", "nyc:copy"), lease, "why", NOON)
    assert again is None, "an interrupted end counts no events twice"
    (cause,) = at_source(source, 0, account(bytes=0))
    assert "why: 60 unread events are no longer kept" in cause.what
    assert f"{J} seq 40 to 99" in cause.what
    operator = Operator(source, "ann", "", NOON)
    assert lease_breaks.acknowledge(operator, "web", "nyc:copy").events == 60
    assert at_source(source, 0, account(bytes=0)) == []
    with pytest.raises(UserError, match="has no broken lease"):
        lease_breaks.acknowledge(operator, "web", "nyc:copy")


def test_lease_of_a_reader_here_is_no_break(source: FakeStore) -> None:
    lease = Lease(holder="h", reader="r", keep_seconds=1.0, renewed=0.0)
    held = Versioned(lease, Version(0))
    assert lease_breaks.ended(source, ("web", "report"), held, "why", NOON) is None


def test_adjoining_gaps_join() -> None:
    first = lease_breaks.new_break(LEASE, "full", NOON, [Gap(journal=J, start=0, end=10)])
    for start, end in ((10, 15), (20, 21), (5, 5)):
        more = lease_breaks.new_break(LEASE, "full", NOON, [Gap(journal=J, start=start, end=end)])
        first = lease_breaks.with_gaps(first, more)
    assert [(gap.start, gap.end) for gap in first.gaps] == [(0, 15), (20, 21)]
    assert first.events == 16


def test_gap_of_a_reading_flow_is_acknowledged_once() -> None:
    store = new_cluster()
    operator = Operator(store, "ann", "", NOON)
    name_cluster(operator, "nyc")
    add_site(operator, "fra", ["g1:1"], "")
    apply_flow(operator, "flow: f0\nsources: [flow: {site: fra, name: web}]\nsinks: [noop]\n")
    with pytest.raises(UserError, match="no lease at another site that broke"):
        lease_breaks.acknowledge_own(operator, "f0")
    store.write(paths.link("f0"), replace(UP, broke=BROKE), ABSENT)
    assert lease_breaks.acknowledge_own(operator, "f0").events == 60
    with pytest.raises(UserError, match="no lease at another site that broke"):
        lease_breaks.acknowledge_own(operator, "f0")


def test_short_break_leaves_the_flow_as_it_was() -> None:
    row = links.LinkRow(
        flow="f0", site="fra", source="web", state="up", since=NOON, why="w", keep_seconds=1.0,
        renewed_seconds=1.0, time=0.0, room=0.0, events=0, bytes=0, broke=None, downs=1,
    )  # fmt: skip
    assert links.excused([row]) == {("f0", "w")}
    assert links.sentence(row).startswith("its link to flow web of site fra is up since")


@pytest.mark.parametrize(("ahead", "says"), [(-86_400.0, "24 h behind"), (300.0, "5 min ahead of")])
def test_clock_of_a_gateway_is_told_with_its_difference_and_ends_no_lease(
    source: FakeStore, ahead: float, says: str
) -> None:
    """One write has both times: the gateway's in the lease, and ZooKeeper's of the znode."""
    held = source.read(paths.lease("web", "nyc:copy"))
    assert held is not None
    source.write(
        paths.lease("web", "nyc:copy"), replace(held.value, renewed=NOON + ahead), held.version
    )
    (cause,) = at_source(source, 0, account(bytes=0))
    assert f"the clock of a gateway here was {says} ZooKeeper's when it renewed" in cause.what
    store = FakeStore(source.tree)
    assert Leases(store, lambda: 0.0).expired(NOON + 999.0) == ()


@pytest.mark.parametrize("off", [-86_400.0, 86_400.0])
def test_gateway_judges_leases_by_the_clock_of_zookeeper(source: FakeStore, off: float) -> None:
    now = [NOON]
    source.tree.clock = lambda: now[0]
    kept = GatewayLeases(source, lambda: now[0] + off)
    request = LeaseRequest("web", "nyc", "copy", 1000.0, {J: 40}, "h")
    for _ in range(2):
        kept.renew("fra", "nyc", request)
        now[0] += 10.0
    assert kept.ahead_seconds == off


@pytest.mark.parametrize("off", [-86_400.0, 0.0, 86_400.0])
def test_status_judges_leases_by_the_clock_of_zookeeper(source: FakeStore, off: float) -> None:
    live = LiveMaster(host="h", pid=1, version="0", since=0.0, renew_seconds=10.0)
    source.write(paths.live_master("m"), live, ABSENT)
    found = status(source, lambda _: {}, lambda _: [], NOON + 5.0 + off)
    causes = [cause["what"] for cause in found["causes"]]
    assert any("this host's clock is at least" in cause for cause in causes) == bool(off)
    assert not any("has not renewed its lease" in cause for cause in causes), causes
    (lease,) = found["leases"]
    assert 0 <= lease["age_seconds"] <= 10.0 + SLACK_SECONDS


@pytest.mark.parametrize(("silent", "seconds", "told"), [(True, 1, 1), (False, 29, 0)])
def test_gateway_that_lets_calls_time_out_is_named_at_once(
    silent: bool, seconds: float, told: int
) -> None:
    """One that refuses connections is perhaps restarted."""
    down = replace(UP, down_since=NOON, why="no gateway of site fra answers: g1:9", silent=silent)
    found = causes(down, after=seconds)
    assert ["g1:9" in cause.what for cause in found] == [True] * told
