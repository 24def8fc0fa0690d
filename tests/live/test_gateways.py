"""Gateways of a site, and their readers at another one: what arrives, leases, refusals."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.agent.gateway import lease_use, limits
from flumeng.agent.gateway.filter_processes import FilterProcesses
from flumeng.agent.gateway.flow_filters import FlowFilters
from flumeng.agent.gateway.flow_watch import FlowWatch
from flumeng.agent.gateway.leases import Leases
from flumeng.agent.gateway.local_journals import LocalJournals
from flumeng.agent.gateway.server import GatewayServer
from flumeng.config import parse_flow, policy
from flumeng.config.component import RemoteFlow
from flumeng.config.policy import UNRESTRICTED, Policy
from flumeng.config.policy_file import REREAD_SECONDS, PolicyFile
from flumeng.connectors.api.finding import Before
from flumeng.connectors.api.ranged import Range, Reach
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.positions import PositionWatcher
from flumeng.connectors.sites import fetching
from flumeng.connectors.sites.credentials import fingerprints
from flumeng.connectors.sites.finder import SiteFinder
from flumeng.connectors.sites.gateways import Gateways
from flumeng.connectors.sites.input import SiteInput
from flumeng.connectors.sites.reader import SiteReader
from flumeng.control.commands import lease_breaks
from flumeng.control.commands.acks import accept, delete_cursor
from flumeng.control.commands.flows import apply_flow, delete_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.master.removals import children_first
from flumeng.control.queries import cursors, links
from flumeng.control.queries.acks import Positions
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot.leases import ENDED_SECONDS
from flumeng.control.zookeeper import ANY, Remove, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.errors import DeniedError, HeldError
from flumeng.journal.log.frame import FrameHeader, identity
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.serving import wire
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.gateway_wire import LeaseAnswer, LeaseRequest
from flumeng.journal.serving.proof import Proof
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.metrics import table
from flumeng.platform.security import process
from flumeng.platform.security.authority import Authority, new_authority
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.expiry import utc_now
from flumeng.platform.security.identity import Identity
from flumeng.platform.security.roles import DIRECTORY, Role
from tests.testkit.certificates import CLUSTER, HOSTS, Certificates
from tests.testkit.clock import Clock
from tests.testkit.cluster import acks_of, add_journal, come_live, new_cluster
from tests.testkit.journal import numbered_events
from tests.testkit.store import FakeStore, RealZooKeeper
from tests.testkit.waiting import wait_for
from zkschema import paths
from zkschema.bootstrap import flow_tops
from zkschema.records import Ack, Gap, Lease, Partition

J = "web.n1.0.0a1b2c3d"
PARTITION = f"fra:{J}@site"
REMOTE = RemoteFlow("fra", "web", 600.0)
WEB = "flow: web\nsources: [{syslog: {listen: '127.0.0.1:5514'}}]\nsinks: [noop]\n"
COPY = "flow: copy\nsources: [{flow: {site: fra, name: web}}]\nsinks: [noop]\n"
BY = ("a", "", 0.0)


@dataclass
class Sites:
    """The site fra with a journal of 1000 events and two gateways, and the site nyc beside it."""

    folder: Path
    policy: Policy | PolicyFile = UNRESTRICTED
    keystore: Keystore | None = None
    certificates: Certificates = field(init=False)
    fra: FakeStore = field(default_factory=new_cluster)
    nyc: FakeStore = field(default_factory=new_cluster)
    stack: ExitStack = field(default_factory=ExitStack)
    processes: FilterProcesses = field(default_factory=FilterProcesses)

    def __post_init__(self) -> None:
        self.journal = MemoryJournal.create(self.folder, J, limits=Limits(128 << 20))
        self.append(1000)
        self.server = JournalServer(
            "127.0.0.1", journals=lambda: {J: self.journal}, keystore=self.keystore
        )
        self.stack.callback(self.server.stop)
        operator = Operator(self.fra, *BY)
        name_cluster(operator, "fra")
        apply_flow(operator, WEB)
        add_journal(self.fra, J)
        come_live(self.fra, "n1", self.server.address)
        self.gateways = [self.gateway(), self.gateway()]
        name_cluster(Operator(self.nyc, *BY), "nyc")
        self.use(self.gateways)

    def use(self, gateways: list[GatewayServer]) -> None:
        self.gateways = gateways
        addresses = [gateway.address for gateway in gateways]
        add_site(Operator(self.nyc, *BY), "fra", addresses, "")

    def append(self, events: int) -> None:
        end = self.journal.next_seq + events
        while (first := self.journal.next_seq) < end:
            self.journal.append(numbered_events(first, min(end - first, 20_000)))
        self.journal.sync()

    def gateway(
        self, filters: FlowFilters | None = None, local: LocalJournals | None = None
    ) -> GatewayServer:
        watcher = PositionWatcher(Addresses(self.fra))
        self.stack.callback(watcher.close)
        server = GatewayServer(
            "127.0.0.1",
            0,
            self.fra,
            FlowWatch(self.fra, watcher),
            policy=self.policy,
            filters=filters or FlowFilters(self.fra, UNRESTRICTED, self.processes),
            keystore=self.keystore,
            local=local,
        )
        self.stack.callback(server.stop)
        return server

    def reader(self) -> SiteReader:
        return SiteReader("fra", "nyc", gateways=Gateways("fra", self.nyc))

    @property
    def addresses(self) -> str:
        return ",".join(gateway.address for gateway in self.gateways)

    def read(self, start: int, end: int) -> pa.Table:
        return pa.Table.from_batches(
            self.reader().read(Range(PARTITION, start, end), self.addresses)
        )

    def finder(self) -> SiteFinder:
        return SiteFinder(REMOTE, self.nyc, "copy")

    def discovery(self) -> DiscoveryTask:
        return DiscoveryTask(self.nyc, "copy", 1, [self.finder()])

    def ack(self, offset: int) -> None:
        self.nyc.write(paths.ack("copy", "main", PARTITION), Ack(epoch=1, offset=offset), ANY)


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    made = Sites(tmp_path)
    with made.stack:
        yield made


def apply_copy(sites: Sites) -> None:
    apply_flow(Operator(sites.nyc, *BY), COPY)


def test_range_arrives_once_with_the_identity_of_the_source(sites: Sites) -> None:
    events = sites.read(100, 900)
    assert events["seq"].to_pylist() == list(range(100, 900))
    assert events["journal"].unique().to_pylist() == [f"fra:{J}"]
    assert events["sites"].unique().to_pylist() == ["fra"]
    assert events["body"][0].as_py() == b"100.........".ljust(12, b".")


def test_reader_goes_on_at_another_gateway_when_one_dies_within_a_range(sites: Sites) -> None:
    """The range is larger than what buffers on the way hold."""
    body = pa.array([os.urandom(1000) for _ in range(4000)], pa.binary())
    for _ in range(20):
        batch = numbered_events(0, 4000).set_column(0, EVENT_SCHEMA.field("body"), body)
        sites.journal.append(batch)
    sites.journal.sync()
    batches = sites.reader().read(Range(PARTITION, 0, 81_000), sites.addresses)
    seqs = next(batches)["seq"].to_pylist()
    sites.gateways[0].stop(0.5)
    for batch in batches:
        seqs += batch["seq"].to_pylist()
    assert seqs == list(range(81_000))
    sites.gateways[1].stop(0.5)
    with pytest.raises(UnavailableError):
        sites.read(0, 10)


def test_no_frame_crosses_the_link_twice(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a range begin where frames begin; the range itself may cut its first frame."""
    monkeypatch.setattr(fetching, "FIRST_EVENTS", 150)
    monkeypatch.setattr(fetching, "PIECE_BYTES", 5_000)
    monkeypatch.setattr(fetching, "LEAST_PIECE_BYTES", 5_000)
    monkeypatch.setattr(fetching, "_events", {})
    for _ in range(50):
        sites.append(100)
    place = fetching.Place(tuple(sites.addresses.split(",")), None)
    frames = list(fetching.frames(place, J, 1050, 5950))
    firsts = [FrameHeader.unpack(frame, 0, identity(J)).first_seq for frame in frames]
    assert firsts == list(range(1000, 6000, 100))
    assert sites.read(1050, 5950)["seq"].to_pylist() == list(range(1050, 5950))


def test_gateway_reads_journals_of_its_node_without_their_server(
    sites: Sites, tmp_path: Path
) -> None:
    """An encrypted or foreign journal, and what is above the safe seq, it leaves to the server."""
    journal = Journal.create(tmp_path / "data" / "journals" / "0", J)
    journal.append(numbered_events(0, 500))
    journal.sync()
    local = LocalJournals(sites.fra, "n1", tmp_path / "data")
    here = Reach(sites.server.address, 500)

    def found(reach: Reach, end: int) -> int:
        return sum(len(window.offsets) - 1 for window in local.windows(J, reach, 0, end))

    assert found(here, 500) == 1
    assert found(replace(here, address="10.0.0.1:9000"), 500) == 0
    assert found(replace(here, safe=400), 500) == 0
    assert found(replace(here, floor=1), 500) == 0
    assert found(replace(here, held=1), 500) == 0
    gateway = sites.gateway(local=local)
    sites.server._reading.count = 0
    place = fetching.Place((gateway.address,), None)
    (frame,) = fetching.frames(place, J, 0, 500)
    assert FrameHeader.unpack(frame, 0, identity(J)).count == 500
    with pytest.raises(UnavailableError):
        list(fetching.frames(place, J, 0, 501))
    journal.close()


def test_events_that_passed_this_site_are_dropped(sites: Sites) -> None:
    attrs = [[("sites", "lon")], [("sites", "nyc,lon")], [("a", "b")], [("sites", "nyc2")]]
    batch = numbered_events(1000, 4)
    batch = batch.set_column(3, EVENT_SCHEMA.field("attrs"), pa.array(attrs, EVENT_SCHEMA[3].type))
    sites.journal.append(batch)
    sites.journal.sync()
    events = sites.read(998, 1004)
    assert events["seq"].to_pylist() == [998, 999, 1000, 1002, 1003]
    assert events["sites"].to_pylist() == ["fra", "fra", "lon,fra", "fra", "nyc2,fra"]


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


def test_last_answer_is_noted_for_a_failover(sites: Sites) -> None:
    apply_copy(sites)
    sites.ack(400)
    sites.discovery().discover()
    noted = sites.nyc.read(paths.contact("copy"))
    assert noted is not None
    assert noted.value.unread == {J: (0, 1000)}


def lease_of(sites: Sites) -> Lease:
    lease = sites.fra.read(paths.lease("web", "nyc:copy"))
    assert lease is not None
    return lease.value


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


def test_flow_made_again_keeps_its_lease_from_the_floor(sites: Sites) -> None:
    """Its acks are new ones: those of the deleted flow of that name hold nothing for it."""
    apply_copy(sites)
    sites.discovery().discover()
    sites.ack(400)
    sites.discovery().discover()
    assert acks_of(sites.fra, "web", "nyc:copy") == {J: 400}
    sites.nyc.commit([Remove(paths.ack("copy", "main", PARTITION), ANY)])
    sites.nyc.commit([Remove(paths.partitions("copy"), ANY)])
    ended = replace(lease_of(sites), keep_seconds=ENDED_SECONDS)
    sites.fra.write(paths.lease("web", "nyc:copy"), ended, ANY)
    sites.discovery().discover()
    assert acks_of(sites.fra, "web", "nyc:copy") == {}


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


def reaches(sites: Sites, text: str) -> Callable[[], dict[str, Reach]]:
    from flumeng.config import check_flow  # noqa: PLC0415

    positions = SiteInput(sites.nyc).positions(lambda: None)
    positions.open(check_flow(text))
    return lambda: positions.of([PARTITION])


def test_positions_follow_the_journal(sites: Sites) -> None:
    look = reaches(sites, COPY)
    wait_for(lambda: bool(look()), "no position arrives")
    assert look()[PARTITION].safe == 1000
    sites.append(10)
    wait_for(lambda: look()[PARTITION].safe == 1010, "the end does not arrive", seconds=0.9)
    sites.gateways[0].stop(0.1)
    sites.append(10)
    wait_for(lambda: bool(look()) and look()[PARTITION].safe == 1020, "the other does not answer")


def test_events_below_the_floor_are_a_gap_where_there_are_dead_letters(sites: Sites) -> None:
    stops = reaches(sites, COPY)
    counts = reaches(sites, COPY + "dead_letters: {files: {path: /tmp/letters}}\n")
    sites.append(200_000)
    sites.journal.trim(150_000)
    wait_for(lambda: bool(stops()) and bool(counts()), "no position arrives")
    floor = sites.journal.floor
    assert floor > 0
    assert stops()[PARTITION].floor == floor
    assert (counts()[PARTITION].floor, counts()[PARTITION].gone_below) == (0, floor)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: name_cluster(Operator(s.fra, *BY), "lon"), "is of site lon, not fra"),
        (lambda s: [g.stop(0.1) for g in s.gateways], "no gateway of site fra answers"),
        (lambda s: s.fra.commit([Remove(paths.revision("web", "1"), ANY)]), "web"),
    ],
)
def test_unusable_site_has_its_sentence(
    sites: Sites, change: Callable[[Sites], object], why: str
) -> None:
    change(sites)
    with pytest.raises((UserError, UnavailableError), match=why):
        sites.finder().find(Before())


def test_gateway_of_a_wrong_site_makes_no_lease(sites: Sites) -> None:
    name_cluster(Operator(sites.fra, *BY), "lon")
    with pytest.raises(UserError, match="is of site lon, not fra"):
        sites.finder().find(Before())
    assert sites.fra.children(paths.leases()) == []


def test_unknown_flow_has_its_sentence(sites: Sites) -> None:
    finder = SiteFinder(RemoteFlow("fra", "nothing", 600.0), sites.nyc, "copy")
    with pytest.raises(UserError, match="nothing"):
        finder.find(Before())


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    """The site fra is secured; nyc has a certificate of its authority, and reads ``web`` alone."""
    with secured_sites(tmp_path, monkeypatch, Policy(subscribers={"nyc": ("web",)})) as made:
        yield made


@contextmanager
def secured_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: Policy | PolicyFile
) -> Iterator[Sites]:
    certificates = Certificates(tmp_path / "certificates", "fra")
    host = certificates.folder("node", "gateway", "collector")
    given = certificates.folder("subscriber", name="nyc")
    (host / "sites").mkdir()
    (host / "sites" / "fra").symlink_to(given)
    monkeypatch.setenv(DIRECTORY, str(host))
    process.serve_as("gateway")
    made = Sites(tmp_path / "journal", allowed, Keystore(host, "gateway"))
    (tmp_path / "journal").mkdir(exist_ok=True)
    made.certificates = certificates
    addresses = [gateway.address for gateway in made.gateways]
    add_site(Operator(made.nyc, *BY), "fra", addresses, fingerprints(certificates.authority.pem)[0])
    with made.stack:
        yield made


def test_subscriber_reads_what_the_policy_grants(secured: Sites) -> None:
    assert secured.finder().find(Before()).offers.keys() == {PARTITION}
    assert secured.read(0, 1000).num_rows == 1000
    finder = SiteFinder(RemoteFlow("fra", "app", 600.0), secured.nyc, "copy")
    with pytest.raises(DeniedError, match="does not let subscriber nyc read the flow app"):
        finder.find(Before())
    foreign = Range("fra:app.n1.0.0a1b2c3d@site", 0, 1)
    with pytest.raises(DeniedError, match="does not let subscriber nyc read the flow app"):
        next(secured.reader().read(foreign, secured.addresses))


@pytest.mark.parametrize("revoked", ["{}", "{nyc: [app]}"])
def test_revoked_flow_ends_a_running_read_and_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revoked: str
) -> None:
    path, clock = tmp_path / "node.yaml", Clock()
    path.write_text("subscribers: {nyc: {flows: [web], bytes_per_second: 1MB}}")
    file = PolicyFile(path, policy.load(path), clock)
    monkeypatch.setattr(fetching, "_events", {})  # a first piece of few events
    with secured_sites(tmp_path, monkeypatch, file) as sites:
        sites.append(300_000)
        reading = sites.reader().read(Range(PARTITION, 0, 301_000), sites.addresses)
        next(reading)
        path.write_text(f"subscribers: {revoked}")
        clock.now += REREAD_SECONDS
        with pytest.raises(DeniedError, match="does not let subscriber nyc read the flow web"):
            list(reading)
        with pytest.raises(DeniedError, match="does not let subscriber nyc read the flow web"):
            sites.finder().find(Before())
        path.write_text("subscribers: {nyc: [web]}")
        clock.now += REREAD_SECONDS
        assert sites.read(0, 301_000).num_rows == 301_000


def test_subscriber_without_a_grant_reads_no_watched_journal(secured: Sites) -> None:
    assert secured.finder().find(Before()).offers.keys() == {PARTITION}
    folder = Certificates(secured.folder.parent / "more", "fra")
    folder.authority = secured.certificates.authority
    credentials = Keystore(folder.folder("subscriber", name="lon"), "subscriber").load()
    address = secured.gateways[0].address
    with JournalClient(address, prove=lambda: Proof.of(credentials)) as client:
        for read in (client.read, client.copy):
            with pytest.raises(DeniedError, match="does not let subscriber lon read the flow web"):
                next(read(J, 0, 10))


@pytest.mark.parametrize("role", ["collector", "admin", "gateway"])
def test_gateway_serves_no_other_certificate_of_its_cluster(secured: Sites, role: Role) -> None:
    """A stolen one reads no event at the port that other sites reach."""
    assert secured.finder().find(Before()).offers.keys() == {PARTITION}
    credentials = Keystore(secured.certificates.folder(role, name="eve"), role).load()
    with JournalClient(secured.gateways[0].address, prove=lambda: Proof.of(credentials)) as client:
        with pytest.raises(DeniedError, match="serves subscribers, not"):
            next(client.read(J, 0, 10))
        with pytest.raises(DeniedError, match="serves subscribers, not"):
            client.ask(wire.FLOW_POSITIONS, b"{}", lambda answer: answer)


def test_site_of_another_authority_is_refused_before_a_call(secured: Sites) -> None:
    add_site(Operator(secured.nyc, *BY), "fra", secured.addresses.split(","), "ab" * 32)
    with pytest.raises(UserError, match="has the authority"):
        secured.finder().find(Before())


def test_failed_handshake_has_its_sentence(secured: Sites, tmp_path: Path) -> None:
    """The subscriber trusts another authority than that of the gateways."""
    other = Certificates(tmp_path / "other", "fra")
    identity = Path(os.environ[DIRECTORY])
    (identity / "sites" / "fra").unlink()
    (identity / "sites" / "fra").symlink_to(other.folder("subscriber", name="nyc"))
    fingerprint = fingerprints(other.authority.pem)[0]
    add_site(Operator(secured.nyc, *BY), "fra", secured.addresses.split(","), fingerprint)
    with pytest.raises(
        UnavailableError, match=r"gateway \S+ has a certificate of another authority"
    ):
        secured.finder().find(Before())


def issued(
    sites: Sites,
    role: Role,
    *,
    begins: float,
    authority: Authority | None = None,
    hosts: Sequence[str] = HOSTS,
) -> None:
    """Replace a certificate by one that begins so many days from now, and is valid for 9."""
    own = Path(os.environ[DIRECTORY])
    folder = own / "sites" / "fra" if role == "subscriber" else own
    identity = Identity("fra", role, "nyc" if role == "subscriber" else "n1")
    by = authority or sites.certificates.authority
    pair = by.issue(identity, hosts, days=9, now=utc_now() + timedelta(days=begins))
    keystore = Keystore(folder, role)
    keystore.key.write_bytes(pair.key)
    keystore.certificate.write_bytes(pair.certificate)


@pytest.mark.parametrize(
    ("role", "begins", "sentence"),
    [
        ("gateway", -10, r"certificate of gateway \S+ has expired by this host's clock"),
        ("gateway", 1, r"certificate of gateway \S+ is not valid yet by this host's clock"),
        ("subscriber", -10, "this subscriber's certificate for site fra expired at"),
        ("subscriber", 1, "this subscriber's certificate for site fra is valid from .* on, but"),
    ],
)
def test_certificate_that_is_not_valid_now_is_named(
    secured: Sites, role: Role, begins: float, sentence: str
) -> None:
    issued(secured, role, begins=begins)
    gateway = secured.gateway() if role == "gateway" else secured.gateways[0]
    fingerprint = fingerprints(secured.certificates.authority.pem)[0]
    add_site(Operator(secured.nyc, *BY), "fra", [gateway.address], fingerprint)
    with pytest.raises(UnavailableError, match=f"no gateway of site fra answers: .*{sentence}"):
        secured.finder().find(Before())
    with pytest.raises(UnavailableError, match=sentence):
        next(secured.reader().read(Range(PARTITION, 0, 10), gateway.address))


@pytest.mark.parametrize(
    ("role", "hosts", "sentence"),
    [
        ("gateway", HOSTS, r"gateway \S+ has a certificate of another authority"),
        ("gateway", ("gw.example",), r"certificate of gateway \S+ is for other names"),
        ("subscriber", HOSTS, "certificate for site fra is of another authority than its ca.pem"),
    ],
)
def test_foreign_certificate_is_named(
    secured: Sites, role: Role, hosts: tuple[str, ...], sentence: str
) -> None:
    other = None if hosts != HOSTS else new_authority("fra", utc_now())
    issued(secured, role, begins=0, authority=other, hosts=hosts)
    gateway = secured.gateway() if role == "gateway" else secured.gateways[0]
    fingerprint = fingerprints(secured.certificates.authority.pem)[0]
    add_site(Operator(secured.nyc, *BY), "fra", [gateway.address], fingerprint)
    with pytest.raises(UnavailableError, match=sentence):
        secured.finder().find(Before())


@pytest.mark.parametrize(
    ("differs", "sentence"),
    [
        (86_400.0, "a gateway of site fra is 24 hours behind this host's"),
        (-86_400.0, "a gateway of site fra is 24 hours ahead of this host's"),
        (-300.0, "a gateway of site fra is 5 minutes ahead of this host's"),
    ],
)
def test_clocks_that_differ_are_reported_and_nothing_stops(
    sites: Sites, differs: float, sentence: str
) -> None:
    apply_copy(sites)
    finder = SiteFinder(REMOTE, sites.nyc, "copy", wall=lambda: time.time() + differs)
    task = DiscoveryTask(sites.nyc, "copy", 1, [finder])
    assert sentence in task.discover().trouble
    assert list(task.partitions) == [PARTITION]
    assert "clock" not in sites.discovery().discover().trouble


def test_lease_of_another_site_is_refused(secured: Sites) -> None:
    name_cluster(Operator(secured.nyc, *BY), "lon")
    with pytest.raises(DeniedError, match="your certificate is for the site nyc, not lon"):
        secured.finder().find(Before())


def test_port_without_gateway_does_not_hang(sites: Sites) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        add_site(Operator(sites.nyc, *BY), "fra", [address, sites.gateways[0].address], "")
        assert sites.finder().find(Before()).offers


def choked(sites: Sites, *, link: int = 0, of_flow: int = 0) -> SiteReader:
    """The reader of a flow with these limits, as an executor gets it."""
    addresses = [gateway.address for gateway in sites.gateways]
    add_site(Operator(sites.nyc, *BY), "fra", addresses, "", bytes_per_second=link)
    limit = f", bytes_per_second: {of_flow}" if of_flow else ""
    reader = SiteInput(sites.nyc).reader(parse_flow(COPY.replace("name: web", f"name: web{limit}")))
    made = pickle.loads(pickle.dumps(reader))
    assert isinstance(made, SiteReader)
    return made


@pytest.mark.parametrize("given", [{"link": 2**20}, {"of_flow": 2**20}])
def test_gateway_keeps_to_the_limits_of_a_reader(sites: Sites, given: dict[str, int]) -> None:
    """Two streams share them; each event arrives once all the same."""
    sites.append(100_000)
    reader = choked(sites, **given)
    stored = sum(
        frames.nbytes
        for frames in JournalClient(sites.server.address).copy(J, 0, sites.journal.next_seq)
    )
    found: list[int] = []

    def read(start: int, end: int) -> None:
        for batch in reader.read(Range(PARTITION, start, end), sites.addresses):
            found.extend(batch.column("seq").to_pylist())

    end = sites.journal.next_seq
    began = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(read, (0, end // 2), (end // 2, end)))
    seconds = time.monotonic() - began
    assert sorted(found) == list(range(end))
    assert stored > 2**21, "the limit holds up the read"
    assert seconds >= stored / 2**20 - 1.5, "the bucket may be overdrawn by a piece a stream"


def test_reader_that_is_throttled_goes_on_at_the_same_gateway(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway's answer after its longest wait is no failure of the read."""
    monkeypatch.setattr(limits, "MOST_SECONDS", 0.05)
    sites.append(30_000)
    reader = choked(sites, link=2**18)
    answers: list[int] = []
    for batch in reader.read(Range(PARTITION, 0, 31_000), sites.addresses):
        answers.append(batch.num_rows)
    assert sum(answers) == 31_000
    sent = [[each for each in it.readings() if each.labels] for it in sites.gateways]
    assert [len(each) for each in sent] == [1, 0], "the other gateway has a bucket of its own"


def test_input_rests_outside_of_the_windows_of_flow_and_site(sites: Sites) -> None:
    moment = datetime(2026, 12, 7, 20, tzinfo=UTC)
    night = "22:00-06:00 Europe/Berlin"
    of = SiteInput(sites.nyc, lambda: moment)
    own = of.positions(lambda: None)
    limited = f"name: web, at: '{night}', bytes_per_second: 100KB"
    own.open(parse_flow(COPY.replace("name: web", limited)))
    other = of.positions(lambda: None)
    other.open(parse_flow(COPY))
    wait_for(lambda: PARTITION in other.of([PARTITION]), "the end is known at any time")
    assert (own.rests(), other.rests()) == (True, False)
    assert (own.rate(), other.rate()) == (100_000, 0)
    addresses = [gateway.address for gateway in sites.gateways]
    add_site(Operator(sites.nyc, *BY), "fra", addresses, "", at=night, bytes_per_second=90_000)
    wait_for(other.rests, "the site's window is read within seconds")
    assert other.rate() == 90_000
    moment += timedelta(hours=1)
    assert (own.rests(), other.rests()) == (False, False)
    for positions in (own, other):
        positions.close()


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


def test_times_of_the_other_site_are_by_the_clocks_here(sites: Sites) -> None:
    apply_copy(sites)
    finder = sites.finder()
    finder.find(Before())
    (time_us,) = finder.times({PARTITION: 10}).values()
    event = numbered_events(10, 1)["ts"].cast("int64")[0].as_py()
    assert abs(time_us - event) < 2e6
    finder._link.ahead_seconds = 86_400.0
    (shifted,) = finder.times({PARTITION: 10}).values()
    assert event - shifted == 86_400 * 1e6


def test_link_that_is_down_is_noted_with_the_gateways_that_were_tried(sites: Sites) -> None:
    apply_copy(sites)
    finder = sites.finder()
    finder.find(Before())
    for gateway in sites.gateways:
        gateway.stop(0.1)
    with pytest.raises(UnavailableError):
        finder.find(Before())
    link = sites.nyc.read(paths.link("copy"))
    assert link is not None
    assert link.value.down_since > 0
    tried = [f"{gateway.address}: Connection refused" for gateway in sites.gateways]
    assert all(text in link.value.why for text in tried), link.value.why


def test_silent_lease_is_a_cause_at_both_shares(sites: Sites) -> None:
    apply_copy(sites)
    sites.fra.tree.clock = lambda: 1000.0
    sites.finder().find(Before())

    def causes(seconds: float) -> list[str]:
        cache = ReadCache.of(sites.fra)
        rows = cursors.rows(cache, Positions(), {}, 1000.0 + seconds, cursors.of_sites(cache))
        return [cause.what for cause in links.causes_of_leases(rows)]

    assert causes(299) == []
    assert [("flow copy of site nyc has not" in c, "50%" in c) for c in causes(301)] == [
        (True,) * 2
    ]
    assert ["82%" in cause for cause in causes(490)] == [True]
    ended = replace(lease_of(sites), keep_seconds=ENDED_SECONDS)
    sites.fra.write(paths.lease("web", "nyc:copy"), ended, ANY)
    assert causes(490) == []


def test_gateway_of_a_secured_cluster_may_hold_leases(
    certificates: Certificates, secure_zookeeper: RealZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY, str(certificates.folder("admin", "gateway", "node")))
    address = f"{secure_zookeeper.address}/gateways"
    with closing(connect(address, roles=["admin"])) as admin:
        tree.init(admin)
        secure_cluster(Operator(admin, *BY), cluster=CLUSTER)
        apply_flow(Operator(admin, *BY), WEB)
        add_journal(admin, J)
        with closing(connect(address, roles=["gateway"])) as store:
            kept = Leases(store, lambda: 1000.0)
            request = LeaseRequest("web", "nyc", "copy", 600.0, {J: 3})
            first = kept.renew("fra", "nyc", request)
            again = msgspec.structs.replace(request, acks={J: 7}, id=first.id)
            assert kept.renew("fra", "nyc", again) == LeaseAnswer("fra", first.id, time=1000.0)
            broke = lease_breaks.new_break("r", "w", 0.0, [Gap(journal=J, start=1, end=3)])
            write = lease_breaks.recorded(store, "web", "nyc:copy", lambda _: broke)
            assert write is not None
            store.commit([write])
        assert acks_of(admin, "web", "nyc:copy") == {J: 7}
