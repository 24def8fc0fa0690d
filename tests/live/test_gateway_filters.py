"""Events behind the filters of another site's flow: what arrives, from which filters, refusals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.agent.gateway.filter_processes import FilterProcesses
from flumeng.agent.gateway.flow_filters import FlowFilters
from flumeng.config import SpecError, check_flow
from flumeng.config.policy import UNRESTRICTED
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.sites import remote_columns
from flumeng.connectors.sites.gateways import Gateways
from flumeng.connectors.sites.input import SiteInput
from flumeng.connectors.sites.reader import SiteReader
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ANY, Remove
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.errors import DataLossError, DeniedError
from flumeng.journal.serving import filtered_wire
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.wire import Ticket
from flumeng.platform.errors import CorruptError, UserError
from tests.live.gateway_sites import BY, PARTITION, WEB, J, Sites, secured
from tests.testkit.journal import numbered_events
from tests.testkit.waiting import wait_for
from zkschema import paths

__all__ = ["secured"]
COPY = "flow: copy\nsources: [{flow: {site: fra, name: web, after: filters}}]\nsinks: [noop]\n"
FEW = """filters:
  - where: "seq >= 4"
  - drop: [host]
"""


@pytest.fixture(scope="module")
def processes() -> Iterator[FilterProcesses]:
    """Their start takes seconds."""
    made = FilterProcesses(most=1)
    made.schema(WEB)
    yield made
    made.close()


@pytest.fixture
def sites(tmp_path: Path, processes: FilterProcesses) -> Iterator[Sites]:
    made = Sites(tmp_path, processes=processes)
    with made.stack:
        yield made


def filter_with(sites: Sites, filters: str) -> None:
    apply_flow(Operator(sites.fra, *BY), WEB + filters)


def reader(sites: Sites, filters: str = "") -> SiteReader:
    made = SiteInput(sites.nyc).reader_behind(check_flow(COPY), filters)
    assert made is not None
    return made


def read(sites: Sites, start: int, end: int, made: SiteReader | None = None) -> pa.Table:
    batches = (made or reader(sites)).read(Range(PARTITION, start, end), sites.addresses)
    return pa.Table.from_batches(batches, (made or reader(sites)).schema)


def test_events_arrive_as_the_filters_leave_them(sites: Sites) -> None:
    filter_with(sites, 'filters: [{where: "seq >= 103"}, {select: [ts, "seq AS n"]}]\n')
    events = read(sites, 100, 110)
    assert events.schema.names == ["ts", "n", "journal", "seq", "replayed", "sites"]
    assert events["n"].to_pylist() == events["seq"].to_pylist() == list(range(103, 110))
    assert events["journal"].unique().to_pylist() == [f"fra:{J}"]
    assert events["sites"].unique().to_pylist() == ["fra"]


def test_parsed_columns_arrive(sites: Sites) -> None:
    number = EVENT_SCHEMA.field("body")
    bodies = [f"<{n}>1 2026-11-20T10:00:00Z s c - - - m={n}".encode() for n in range(8)]
    batch = numbered_events(1000, 8).set_column(0, number, pa.array(bodies, pa.binary()))
    sites.journal.append(batch)
    sites.journal.sync()
    filter_with(sites, 'filters: [{parse: {format: syslog}}, {where: "severity <= 2"}]\n')
    events = read(sites, 1000, 1008)
    assert events["message"].to_pylist() == ["m=0", "m=1", "m=2"]
    assert events["severity"].to_pylist() == [0, 1, 2]


def test_range_whose_events_are_all_dropped_is_complete_and_empty(sites: Sites) -> None:
    filter_with(sites, 'filters: [{where: "seq >= 5000"}]\n')
    assert read(sites, 0, 1000).num_rows == 0
    with pytest.raises(CorruptError, match="1000"):
        read(sites, 0, 1001)


def test_range_that_is_cut_in_the_middle_goes_on_behind_the_last_chunk(sites: Sites) -> None:
    """The second half of the range has only dropped events. The rest comes from other gateways."""
    body = pa.array([os.urandom(1000) for _ in range(4000)], pa.binary())
    for _ in range(20):
        batch = numbered_events(0, 4000).set_column(0, EVENT_SCHEMA.field("body"), body)
        sites.journal.append(batch)
    sites.journal.sync()
    filter_with(sites, 'filters: [{where: "seq < 60000"}]\n')
    batches = reader(sites).read(Range(PARTITION, 0, 81_000), sites.addresses)
    seqs = next(batches)["seq"].to_pylist()
    sites.gateways[0].stop(0.5)
    for batch in batches:
        seqs += batch["seq"].to_pylist()
    assert seqs == list(range(60_000))


class ShortFilters(FlowFilters):
    """Ends each answer before the chunk that completes the range; ``lost``: the journal's server
    reads no event above this seq, since these are marked as lost."""

    lost = 0

    def chunks(self, client: JournalClient, ticket: Ticket) -> Iterator[pa.RecordBatch]:
        if self.lost:
            return super().chunks(Lost(client, self.lost), ticket)  # type: ignore[arg-type]
        return (chunk for chunk in super().chunks(client, ticket) if chunk["end"][0].as_py() < 1000)


@dataclass
class Lost:
    client: JournalClient
    end: int

    def read(self, journal: str, start: int, _end: int) -> Iterator[pa.RecordBatch]:
        return self.client.read(journal, start, self.end)


def test_answer_without_the_end_of_the_range_is_no_complete_range(sites: Sites) -> None:
    filter_with(sites, FEW)
    filters = ShortFilters(sites.fra, UNRESTRICTED, sites.processes)
    sites.use([sites.gateway(filters)])
    with pytest.raises(DataLossError, match="seqs 0 to 1000 are missing"):
        read(sites, 0, 1000)
    filters.lost = 6
    assert read(sites, 0, 1000)["seq"].to_pylist() == [4, 5]


def test_changed_bytes_on_the_way_are_noticed() -> None:
    chunk = filtered_wire.chunk(b"events", 7)
    wrong = chunk.set_column(0, chunk.schema.field(0), pa.array([b"evemts"], pa.binary()))
    with pytest.raises(CorruptError, match="wrong checksum"):
        next(filtered_wire.events_of(wrong, "gw1"))
    with pytest.raises(CorruptError, match="gw1 sends no filtered events"):
        next(filtered_wire.events_of(pa.RecordBatch.from_pydict({"frame": [b""]}), "gw1"))


def test_range_read_again_has_the_filters_of_its_first_time(sites: Sites) -> None:
    filter_with(sites, FEW)
    first = reader(sites)
    before = read(sites, 0, 10, first)
    filter_with(sites, FEW.replace(">=", "<"))
    wait_for(lambda: reader(sites).filters != first.filters, "the gateway keeps the old filters")
    assert read(sites, 0, 10, first).equals(before)
    assert read(sites, 0, 10, reader(sites, first.filters)).equals(before)
    assert read(sites, 0, 10)["seq"].to_pylist() == [0, 1, 2, 3]


def test_filters_of_a_removed_revision_are_refused(sites: Sites) -> None:
    filter_with(sites, FEW)
    name = reader(sites).filters
    filter_with(sites, FEW.replace(">=", "<"))
    sites.fra.commit([Remove(paths.revision("web", "2"), ANY)])
    fresh = sites.gateway()
    sites.gateways[0].stop(0.1)
    sites.gateways[1].stop(0.1)
    sites.use([fresh])
    with pytest.raises(UserError, match=f"no kept revision of flow web has the filters {name}"):
        reader(sites, name)


def test_reader_notices_other_filters(sites: Sites) -> None:
    filter_with(sites, FEW)
    given = SiteInput(sites.nyc)
    spec = check_flow(COPY)
    positions = given.positions(lambda: None)
    positions.open(spec)
    first = given.reader(spec)
    assert first is not None
    wait_for(lambda: bool(positions.of([PARTITION])), "no position arrives")
    assert not first.outdated
    filter_with(sites, FEW + "# another comment\n")
    wait_for(lambda: bool(positions.of([PARTITION])), "no position arrives")
    assert not first.outdated
    filter_with(sites, FEW.replace(">=", "<"))
    wait_for(lambda: first.outdated, "the change is not noticed")
    second = given.reader(spec)
    assert second is not None
    assert not second.outdated


@pytest.mark.parametrize(
    ("filters", "why"),
    [
        ('filters: [{sql: "SELECT * FROM events"}]', r"filters\[0\].sql may treat an event by"),
        ("filters: [{dedupe: {by: [host]}}]", r"filters\[0\].dedupe may treat an event by"),
        (
            "filters: [{explode: {column: body}}]",
            r"filters\[0\].explode makes several rows of an event",
        ),
        ('filters: [{where: "seq % 2 = 1"}]', r"filters\[0\].where needs Spark"),
        ('filters: [{select: [ts, "seq + 1 AS n"]}]', r"filters\[0\].select needs Spark"),
        ('filters: [{where: "replayed"}]', r"filters\[0\].where reads the column replayed"),
        ('filters: [{select: [ts, "CAST(host AS BIGINT) AS seq"]}]', "change the column seq"),
        ("filters: [{select: [ts, host AS seq]}]", "the column seq a string"),
        ("filters: [{set: {sites: here}}]", "make a column sites"),
        ('multiline: {starts: "^[0-9]"}', "multiline joins events"),
    ],
)
def test_filters_that_cannot_run_at_a_gateway_have_their_sentence(
    sites: Sites, filters: str, why: str
) -> None:
    filter_with(sites, filters + "\n")
    with pytest.raises(UserError, match=why):
        read(sites, 0, 10)


def test_expressions_are_checked_with_the_columns_of_the_other_site(sites: Sites) -> None:
    parse = "filters: [{parse: {format: syslog}}, {drop: [host]}]\n"
    filter_with(sites, parse)
    fits = COPY + "filters: [{where: \"severity <= 2 AND sites = 'fra' AND seq > 3\"}]\n"
    assert remote_columns.check(sites.nyc, fits) == ""
    with pytest.raises(SpecError, match=r"line 4: filters\[0\].where: there is no column .host"):
        remote_columns.check(sites.nyc, COPY + "filters: [{where: \"host = 'a'\"}]\n")
    filter_with(sites, 'filters: [{where: "seq % 2 = 1"}]\n')
    with pytest.raises(UserError, match=r"filters\[0\].where needs Spark"):
        wait_for(lambda: remote_columns.check(sites.nyc, fits), "the old filters stay")
    for gateway in sites.gateways:
        gateway.stop(0.1)
    assert "checked when it runs" in remote_columns.check(sites.nyc, fits)


def test_sites_passed_before_the_filters_cut_loops(sites: Sites) -> None:
    attrs = [[("sites", "lon")], [("sites", "nyc,lon")], [("a", "b")], [("sites", "nyc2")]]
    batch = numbered_events(1000, 4)
    batch = batch.set_column(3, EVENT_SCHEMA.field("attrs"), pa.array(attrs, EVENT_SCHEMA[3].type))
    sites.journal.append(batch)
    sites.journal.sync()
    filter_with(
        sites,
        'filters: [{where: "seq = 999 OR seq >= 1000 AND seq <= 1001 OR seq = 1003"}, '
        "{drop: [attrs]}]\n",
    )
    events = read(sites, 998, 1004)
    assert events["seq"].to_pylist() == [999, 1000, 1003]
    assert events["sites"].to_pylist() == ["fra", "lon,fra", "nyc2,fra"]


def test_unused_filter_processes_end(sites: Sites) -> None:
    filter_with(sites, FEW)
    read(sites, 0, 10)
    sites.processes.end_unused()
    (process,) = sites.processes._idle
    read(sites, 0, 10)
    sites.processes.end_unused()
    assert sites.processes._idle == [process]
    sites.processes.end_unused()
    assert sites.processes._idle == []
    assert process._process.returncode is not None
    sites.processes.schema(WEB)
    assert read(sites, 0, 10).num_rows == 6


def test_subscriber_needs_a_grant_for_filtered_events_too(secured: Sites) -> None:
    filter_with(secured, FEW)
    secured.processes.schema(WEB)
    assert read(secured, 0, 10).num_rows == 6
    with pytest.raises(DeniedError, match="does not let subscriber nyc read the flow app"):
        Gateways("fra", secured.nyc, answer_seconds=30.0).filters("app")
    foreign = Range("fra:app.n1.0.0a1b2c3d@site", 0, 1)
    with pytest.raises(DeniedError, match="does not let subscriber nyc read the flow app"):
        next(reader(secured).read(foreign, secured.addresses))
    secured.processes.close()


def test_dead_filter_process_costs_a_retry(sites: Sites) -> None:
    filter_with(sites, FEW)
    made = reader(sites)
    for process in sites.processes._idle:  # it has run the check of the filters
        os.kill(process._process.pid, signal.SIGKILL)
    assert read(sites, 0, 10, made)["seq"].to_pylist() == [4, 5, 6, 7, 8, 9]
