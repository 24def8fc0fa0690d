"""Reading a flow through the gateways of another site: its events, and the limits of rates."""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.agent.collector import gaps
from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.agent.gateway import leases, limits
from flumeng.agent.gateway.local_journals import LocalJournals
from flumeng.config import check_flow, parse_flow
from flumeng.config.component import RemoteFlow
from flumeng.connectors.api.finding import Before
from flumeng.connectors.api.ranged import Range, Reach, Standstill
from flumeng.connectors.sites import fetching
from flumeng.connectors.sites.finder import SiteFinder
from flumeng.connectors.sites.input import SiteInput
from flumeng.connectors.sites.reader import SiteReader
from flumeng.control.commands import lease_breaks
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper import ANY, Remove
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.frame import FrameHeader, identity
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import UnavailableError, UserError
from tests.live.gateway_sites import BY, COPY, PARTITION, REMOTE, J, Sites, apply_copy, sites
from tests.testkit.journal import numbered_events
from tests.testkit.waiting import wait_for
from zkschema import paths
from zkschema.records import Gap, Lease

__all__ = ["sites"]


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


def test_last_answer_is_noted_for_a_failover(sites: Sites) -> None:
    apply_copy(sites)
    sites.ack(400)
    sites.discovery().discover()
    noted = sites.nyc.read(paths.contact("copy"))
    assert noted is not None
    assert noted.value.unread == {J: (0, 1000)}


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
    why = "site fra, in term 1, no longer keeps them: this flow's lease had ended, or"
    assert counts()[PARTITION].gone_why.startswith(why)


@pytest.mark.parametrize("why", [leases.FULL, "the lease was not renewed for 600 s"])
def test_gap_names_the_term_and_why_the_lease_broke(sites: Sites, why: str) -> None:
    """The break is recorded before its events are trimmed, by whichever gateway answers."""
    positions = SiteInput(sites.nyc).positions(lambda: None)
    positions.open(check_flow(COPY + "dead_letters: {files: {path: /tmp/letters}}\n"))
    wait_for(lambda: bool(positions.of([PARTITION])), "no position arrives")
    sites.append(200_000)
    lease = Lease(holder="h", reader="r", keep_seconds=600.0, renewed=0.0)
    broke = lease_breaks.new_break(lease, why, 0.0, [Gap(journal=J, start=0, end=150_000)])
    for cursor in ("nyc:copy", "lon:copy"):
        other = replace(broke, why="of another site") if cursor != "nyc:copy" else broke
        write = lease_breaks.recorded(sites.fra, "web", cursor, lambda _: other)  # noqa: B023  called at once
        assert write is not None
        sites.fra.commit([write])
    sites.journal.trim(150_000)
    floor = sites.journal.floor

    def reach() -> Reach:
        return positions.of([PARTITION])[PARTITION]

    wait_for(lambda: reach().gone_below == floor, "the floor does not arrive")
    assert reach().gone_why == f"site fra, in term 1, no longer keeps them: {why}"
    (gap,) = gaps.gaps({PARTITION: 40}, {PARTITION: reach()}, 1)
    assert gap.reason.startswith(f"gap: the events of {PARTITION} from 40 to {floor - 1}: site fra")
    stopped = Standstill("gone", PARTITION, floor, 40)
    assert why in positions.describe(stopped)
    positions.close()


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
