"""A site whose journals are restored from an old copy: its reader tells reused seqs apart."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flumeng.agent.collector.partitions import Partitions
from flumeng.agent.gateway.filter_processes import FilterProcesses
from flumeng.agent.gateway.flow_filters import FlowFilters
from flumeng.agent.gateway.flow_watch import FlowWatch
from flumeng.agent.gateway.server import GatewayServer
from flumeng.config import check_flow
from flumeng.config.policy import UNRESTRICTED
from flumeng.connectors.api.ranged import Gone, Reach
from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.positions import PositionWatcher
from flumeng.connectors.sites.input import SiteInput
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.journal import numbered_events
from tests.testkit.waiting import wait_for

J = "web.n1.0.0a1b2c3d"
PARTITION = f"fra:{J}@site"
WEB = "flow: web\nsources: [{syslog: {listen: '127.0.0.1:5514'}}]\nsinks: [noop]\n"
COPY = "flow: copy\nsources: [{flow: {site: fra, name: web}}]\nsinks: [noop]\n"
SKIPS = COPY + "dead_letters: {files: {path: /tmp/letters}}\n"
BY = ("a", "", 0.0)
FIRST, ACKED = 500, 1000


class Sites:
    """The site fra with a journal on disk, and the flow ``copy`` of nyc that reads it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.fra, self.nyc = new_cluster(), new_cluster()
        self.journal = Journal.create(folder, J)
        stack.callback(self.close)
        name_cluster(Operator(self.fra, *BY), "fra")
        apply_flow(Operator(self.fra, *BY), WEB)
        add_journal(self.fra, J)
        watcher = PositionWatcher(Addresses(self.fra))
        stack.callback(watcher.close)
        watch = FlowWatch(self.fra, watcher)
        processes = FilterProcesses(most=1)
        stack.callback(processes.close)
        filters = FlowFilters(self.fra, UNRESTRICTED, processes)
        gateway = GatewayServer(
            "127.0.0.1", 0, self.fra, watch, policy=UNRESTRICTED, filters=filters
        )
        stack.callback(gateway.stop)
        name_cluster(Operator(self.nyc, *BY), "nyc")
        add_site(Operator(self.nyc, *BY), "fra", [gateway.address], "")
        self.server: JournalServer | None = None
        self.serve()

    def serve(self) -> None:
        if self.server is not None:
            self.server.stop()
        self.server = JournalServer("127.0.0.1", journals=lambda: {J: self.journal})
        self.stack.callback(self.server.stop)
        come_live(self.fra, "n1", self.server.address)

    def close(self) -> None:
        self.journal.close()

    def append(self, to: int) -> None:
        while self.journal.next_seq < to:
            self.journal.append(numbered_events(self.journal.next_seq, 50))
        self.journal.sync()

    def restart(self, directory: Path) -> None:
        self.journal.close()
        self.journal = Journal.open(directory / J)
        self.serve()

    def restore(self, to: int) -> None:
        """Serve the copy of ``FIRST`` events, with other events up to ``to``."""
        self.restart(self.folder / "copy")
        self.append(to)

    def reader(self, text: str) -> tuple[Partitions, Callable[[], Reach | None]]:
        """The partitions of a task that has acked ``ACKED`` in the journal's present term."""
        positions = SiteInput(self.nyc).positions(lambda: None)
        self.stack.callback(positions.close)
        partitions = Partitions(positions)
        partitions.open(check_flow(text))
        partitions.follow({PARTITION: self.journal.term})
        return partitions, lambda: partitions.of({PARTITION: ACKED}).get(PARTITION)


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    with ExitStack() as stack:
        made = Sites(tmp_path, stack)
        made.append(FIRST)
        shutil.copytree(tmp_path / J, tmp_path / "copy" / J)
        made.restart(tmp_path)  # the copy will be opened as often
        made.append(ACKED)
        yield made


def test_restart_of_the_source_is_no_restore(sites: Sites) -> None:
    partitions, look = sites.reader(COPY)
    sites.restart(sites.folder)
    sites.append(ACKED + 100)
    wait_for(lambda: (at := look()) is not None and at.safe == ACKED + 100, "it stays away")
    reach = look()
    assert reach is not None
    assert (reach.cut, partitions.trouble) == (None, None)


def test_restored_journal_that_has_grown_is_stopped_at_the_cut(sites: Sites) -> None:
    partitions, look = sites.reader(COPY)
    sites.restore(ACKED + 100)
    wait_for(lambda: bool(look()) and partitions.trouble is not None, "no trouble")
    reach = look()
    assert reach is not None
    assert reach.safe == ACKED, "no event with a reused seq is read"
    assert partitions.trouble is not None
    assert f"fra:{J} has other events from seq 500 on than before, but seq 1000 is acked" in (
        partitions.trouble
    )
    assert f"--to {PARTITION}=500`" in partitions.trouble


def test_restored_journal_that_was_restarted_again_is_found_too(sites: Sites) -> None:
    partitions, look = sites.reader(COPY)
    sites.restore(800)
    sites.restart(sites.folder / "copy")
    sites.append(ACKED + 100)
    wait_for(lambda: bool(look()) and partitions.trouble is not None, "no trouble")
    assert "other events from seq 500 on" in (partitions.trouble or "")


def test_restored_journal_below_the_ack_waits(sites: Sites) -> None:
    partitions, look = sites.reader(SKIPS)
    sites.restore(700)
    wait_for(lambda: look() is None and partitions.trouble is not None, "no trouble")
    assert "ends at seq 700, but seq 1000 is acked" in (partitions.trouble or "")


def test_flow_with_dead_letters_counts_the_reused_seqs_and_goes_on(sites: Sites) -> None:
    partitions, look = sites.reader(SKIPS)
    sites.restore(ACKED + 100)
    wait_for(lambda: (at := look()) is not None and at.cut is not None, "no cut")
    reach = look()
    assert reach is not None
    assert isinstance(reach.cut, Gone)
    assert (reach.cut.start, reach.cut.end, reach.safe) == (500, 1000, ACKED + 100)
    assert "was restored from an old copy" in reach.cut.why
    assert partitions.trouble is None
