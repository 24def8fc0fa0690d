"""Two sites for tests: one with a journal and two gateways, and one that reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.agent.gateway.filter_processes import FilterProcesses
from flumeng.agent.gateway.flow_filters import FlowFilters
from flumeng.agent.gateway.flow_watch import FlowWatch
from flumeng.agent.gateway.local_journals import LocalJournals
from flumeng.agent.gateway.server import GatewayServer
from flumeng.config.component import RemoteFlow
from flumeng.config.policy import UNRESTRICTED, Policy
from flumeng.config.policy_file import PolicyFile
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.positions import PositionWatcher
from flumeng.connectors.sites.credentials import fingerprints
from flumeng.connectors.sites.finder import SiteFinder
from flumeng.connectors.sites.gateways import Gateways
from flumeng.connectors.sites.reader import SiteReader
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper import ANY
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.security import process
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.roles import DIRECTORY
from tests.testkit.certificates import Certificates
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.journal import numbered_events
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import Ack, Lease

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


def lease_of(sites: Sites) -> Lease:
    lease = sites.fra.read(paths.lease("web", "nyc:copy"))
    assert lease is not None
    return lease.value


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
