"""Gateways of a site, and their readers at another one: what arrives, leases, refusals."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.agent.gateway.flow_watch import FlowWatch
from flumeng.agent.gateway.leases import Leases
from flumeng.agent.gateway.local_journals import LocalJournals
from flumeng.agent.gateway.server import GatewayServer
from flumeng.config.component import RemoteFlow
from flumeng.config.policy import UNRESTRICTED, Policy
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
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.queries import journal_causes
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import ANY, Remove, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.errors import DeniedError, HeldError
from flumeng.journal.log.frame import FrameHeader, identity
from flumeng.journal.log.journal import Journal
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.gateway_wire import LeaseAnswer, LeaseRequest
from flumeng.journal.serving.proof import Proof
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.security import process
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.roles import DIRECTORY
from tests.testkit.certificates import CLUSTER, Certificates
from tests.testkit.cluster import acks_of, add_journal, come_live, new_cluster
from tests.testkit.journal import numbered_events
from tests.testkit.store import FakeStore, RealZooKeeper
from tests.testkit.waiting import wait_for
from zkschema import paths
from zkschema.records import Ack

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
    policy: Policy = UNRESTRICTED
    keystore: Keystore | None = None
    certificates: Certificates = field(init=False)
    fra: FakeStore = field(default_factory=new_cluster)
    nyc: FakeStore = field(default_factory=new_cluster)
    stack: ExitStack = field(default_factory=ExitStack)

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
        operator = Operator(self.nyc, *BY)
        name_cluster(operator, "nyc")
        add_site(operator, "fra", [gateway.address for gateway in self.gateways], "")

    def append(self, events: int) -> None:
        end = self.journal.next_seq + events
        while (first := self.journal.next_seq) < end:
            self.journal.append(numbered_events(first, min(end - first, 20_000)))
        self.journal.sync()

    def gateway(self, local: LocalJournals | None = None) -> GatewayServer:
        watcher = PositionWatcher(Addresses(self.fra))
        self.stack.callback(watcher.close)
        server = GatewayServer(
            "127.0.0.1",
            0,
            self.fra,
            FlowWatch(self.fra, watcher),
            policy=self.policy,
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
    gateway = sites.gateway(local)
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
    assert found.notes == ("the lease on flow web of site fra had ended: it was not renewed for "
                           "600 s",)  # fmt: skip
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


def test_unknown_flow_has_its_sentence(sites: Sites) -> None:
    finder = SiteFinder(RemoteFlow("fra", "nothing", 600.0), sites.nyc, "copy")
    with pytest.raises(UserError, match="nothing"):
        finder.find(Before())


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    """The site fra is secured; nyc has a certificate of its authority, and reads ``web`` alone."""
    certificates = Certificates(tmp_path / "certificates", "fra")
    host = certificates.folder("node", "collector")
    given = certificates.folder("subscriber", name="nyc")
    (host / "sites").mkdir()
    (host / "sites" / "fra").symlink_to(given)
    monkeypatch.setenv(DIRECTORY, str(host))
    process.serve_as("collector")
    made = Sites(
        tmp_path / "journal", Policy(subscribers={"nyc": ("web",)}), Keystore(host, "collector")
    )
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
    with pytest.raises(UnavailableError, match="do not accept each other's certificates"):
        secured.finder().find(Before())


def test_lease_of_another_site_is_refused(secured: Sites) -> None:
    name_cluster(Operator(secured.nyc, *BY), "lon")
    with pytest.raises(DeniedError, match="your certificate is for the site nyc, not lon"):
        secured.finder().find(Before())


def test_port_without_gateway_does_not_hang(sites: Sites) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        add_site(Operator(sites.nyc, *BY), "fra", [address, sites.gateways[0].address], "")
        assert sites.finder().find(Before()).offers


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


def test_silent_lease_is_a_cause_at_both_shares(sites: Sites) -> None:
    apply_copy(sites)
    sites.fra.tree.clock = lambda: 1000.0
    sites.finder().find(Before())

    def causes(seconds: float) -> list[str]:
        cache = ReadCache.of(sites.fra)
        return [cause.what for cause in journal_causes.of_leases(cache, 1000.0 + seconds)]

    assert causes(299) == []
    assert [("flow copy of site nyc has not" in c, "50%" in c) for c in causes(301)] == [
        (True,) * 2
    ]
    assert ["80%" in cause for cause in causes(490)] == [True]


def test_gateway_of_a_secured_cluster_may_hold_leases(
    certificates: Certificates, secure_zookeeper: RealZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway has the certificate of a collector, which access lists let keep leases."""
    monkeypatch.setenv(DIRECTORY, str(certificates.folder("admin", "collector", "node")))
    address = f"{secure_zookeeper.address}/gateways"
    with closing(connect(address, roles=["admin"])) as admin:
        tree.init(admin)
        secure_cluster(Operator(admin, *BY), cluster=CLUSTER)
        apply_flow(Operator(admin, *BY), WEB)
        add_journal(admin, J)
        with closing(connect(address, roles=["collector"])) as store:
            kept = Leases(store)
            request = LeaseRequest("web", "nyc", "copy", 600.0, {J: 3})
            first = kept.renew("fra", "nyc", request)
            again = msgspec.structs.replace(request, acks={J: 7}, id=first.id)
            assert kept.renew("fra", "nyc", again) == LeaseAnswer("fra", first.id)
        assert acks_of(admin, "web", "nyc:copy") == {J: 7}
