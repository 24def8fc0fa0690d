"""Three sites that read each other: ``lon`` reads ``fra``, ``nyc`` reads both, and ``fra`` reads
``lon``. Flows of ``fra`` and ``lon`` send on what they read, so events could run in circles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.agent.gateway.filter_processes import FilterProcesses
from flumeng.agent.gateway.flow_filters import FlowFilters
from flumeng.agent.gateway.flow_watch import FlowWatch
from flumeng.agent.gateway.server import GatewayServer
from flumeng.config.component import RemoteFlow
from flumeng.config.policy import UNRESTRICTED
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.positions import PositionWatcher
from flumeng.connectors.sites.finder import SiteFinder
from flumeng.connectors.sites.gateways import Gateways
from flumeng.connectors.sites.names import journal_of
from flumeng.connectors.sites.reader import SiteReader
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.queries import links
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import ANY
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.limits import Limits
from flumeng.journal.log.memory import MemoryJournal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform.errors import FlumengError, UnavailableError
from tests.live.gateway_sites import BY, WEB
from tests.testkit.cluster import acks_of, add_journal, come_live, new_cluster
from tests.testkit.store import FakeStore
from tests.testkit.waiting import wait_for
from tests.testkit.wide_link import WideLink
from zkschema import paths
from zkschema.records import Ack

COPY = "flow: from-{site}\nsources: [{{flow: {{site: {site}, name: web}}}}]\nsinks: [noop]\n"
EVENTS = 500


@dataclass
class Place:
    """A site with a journal and a gateway. ``lake``: events of all its readers, by body and
    path."""

    name: str
    folder: Path
    stack: ExitStack
    store: FakeStore = field(default_factory=new_cluster)
    lake: Counter[tuple[bytes, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        journal = f"web.n1.0.{self.name.encode().hex()}00"
        self.journal = MemoryJournal.create(self.folder, journal, limits=Limits(128 << 20))
        server = JournalServer("127.0.0.1", journals=lambda: {journal: self.journal})
        self.stack.callback(server.stop)
        name_cluster(Operator(self.store, *BY), self.name)
        apply_flow(Operator(self.store, *BY), WEB)
        add_journal(self.store, journal)
        come_live(self.store, "n1", server.address)
        watcher = PositionWatcher(Addresses(self.store))
        self.stack.callback(watcher.close)
        self.gateway = GatewayServer(
            "127.0.0.1",
            0,
            self.store,
            FlowWatch(self.store, watcher),
            policy=UNRESTRICTED,
            filters=FlowFilters(self.store, UNRESTRICTED, FilterProcesses()),
        )
        self.stack.callback(self.gateway.stop)

    def accept(self, first: int) -> None:
        bodies = [b"%s %d" % (self.name.encode(), number) for number in range(first, first + 100)]
        self.append(bodies, [None] * len(bodies))

    def append(self, bodies: list[bytes], passed: list[str | None]) -> None:
        """Append events that have ``passed`` these sites, as their senders say."""
        columns = {
            "body": bodies,
            "ts": [0] * len(bodies),
            "host": ["h"] * len(bodies),
            "attrs": [[("sites", sites)] if sites else [] for sites in passed],
        }
        arrays = [pa.array(columns[it.name], it.type) for it in EVENT_SCHEMA]
        self.journal.append(pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA))
        self.journal.sync()


class Reading:
    """A flow at ``here`` that reads ``web`` of ``there``, as a discovery task and a collector; it
    sends events on into the journal ``here`` if it ``forwards``."""

    def __init__(self, here: Place, there: str, address: str, *, forwards: bool) -> None:
        self.here, self.there, self._forwards = here, there, forwards
        self.flow = f"from-{there}"
        add_site(Operator(here.store, *BY), there, [address], "")
        apply_flow(Operator(here.store, *BY), COPY.format(site=there))
        finder = SiteFinder(RemoteFlow(there, "web", 600.0), here.store, self.flow)
        self._task = DiscoveryTask(here.store, self.flow, 1, [finder])
        self._gateways = Gateways(there, here.store)
        self._reader = SiteReader(there, here.name, gateways=self._gateways)

    def step(self) -> None:
        """Read what there is and deliver it with its ack. Raises FlumengError."""
        self._task.discover()
        ends = self._gateways.positions("web").positions
        acks = acks_of(self.here.store, self.flow)
        for name in self._task.partitions:
            start, end = acks.get(name, 0), ends[journal_of(name)].safe
            if start == end:
                continue
            address = ",".join(self._gateways.addresses)
            batches = list(self._reader.read(Range(name, start, end), address))
            for batch in batches:
                bodies, sites = batch["body"].to_pylist(), batch["sites"].to_pylist()
                self.here.lake.update(zip(bodies, sites, strict=True))
                if self._forwards and bodies:
                    self.here.append(bodies, sites)
            self.here.store.write(paths.ack(self.flow, "main", name), Ack(epoch=1, offset=end), ANY)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, Place]]:
    with ExitStack() as stack:
        made = {}
        for name in ("fra", "lon", "nyc"):
            (tmp_path / name).mkdir()
            made[name] = Place(name, tmp_path / name, stack)
        yield made


def test_three_sites_cut_loops_and_deliver_each_event_once_over_a_cut_link(
    places: dict[str, Place],
) -> None:
    fra, lon, nyc = places.values()
    link = WideLink([lon.gateway.address])
    fra_of_nyc = Reading(nyc, "fra", fra.gateway.address, forwards=False)
    lon_of_nyc = Reading(nyc, "lon", link.proxies[0], forwards=False)
    readings = [
        Reading(lon, "fra", fra.gateway.address, forwards=True),
        Reading(fra, "lon", lon.gateway.address, forwards=True),
        fra_of_nyc,
        lon_of_nyc,
    ]
    with link_closed(link):
        for first in range(0, EVENTS, 100):
            fra.accept(first)
            lon.accept(first)
            if first == 200:
                link.cut()
                before = nyc.lake.copy()
            for reading in readings:
                with suppress(FlumengError):
                    reading.step()
            if first == 300:
                with pytest.raises(UnavailableError, match="no gateway of site lon answers"):
                    lon_of_nyc.step()
                (row,) = links.links(ReadCache.of(nyc.store), ["from-lon"], 0.0)
                assert row.since, "the link is noted as down"
                arrived = nyc.lake - before
                assert {path.split(",")[-1] for _, path in arrived} == {"fra"}
                link.heal()

        def at_rest() -> bool:
            sizes = [place.journal.next_seq for place in places.values()]
            for reading in readings:
                reading.step()
            return sizes == [place.journal.next_seq for place in places.values()]

        wait_for(lambda: at_rest() and nyc.lake == expected(("fra", "fra,lon"), ("lon", "lon,fra")),
                 lambda: Counter(path for _, path in nyc.lake), seconds=60)  # fmt: skip
        assert lon.lake == expected(("fra",), ())
        assert fra.lake == expected((), ("lon",))
        assert [place.journal.next_seq for place in places.values()] == [2 * EVENTS, 2 * EVENTS, 0]
        for reading in readings:
            reading.step()  # the leases follow the acks
        for source, reader in ((fra, "lon"), (lon, "fra"), (fra, "nyc"), (lon, "nyc")):
            lease = f"{reader}:from-{source.name}"
            assert source.store.exists(paths.lease("web", lease))
            acked = list(acks_of(source.store, "web", lease).values())
            assert acked == [2 * EVENTS]


def link_closed(link: WideLink) -> ExitStack:
    stack = ExitStack()
    stack.callback(link.close)
    return stack


def expected(of_fra: tuple[str, ...], of_lon: tuple[str, ...]) -> Counter[tuple[bytes, str]]:
    """Each event of both sites once on each of these paths."""
    return Counter(
        (b"%s %d" % (name, number), path)
        for name, ways in ((b"fra", of_fra), (b"lon", of_lon))
        for path in ways
        for number in range(EVENTS)
    )
