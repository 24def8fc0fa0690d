"""How late an isolated part is, by journals on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.agent.discovery.accounts import PartitionAccounts
from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.connectors.flows.finder import FlowFinder
from flumeng.connectors.flows.options import FlowSource
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.lag import LagOfFlow, lag_of_flow
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from tests.testkit.cluster import new_cluster
from tests.testkit.journal import numbered_events
from tests.testkit.store import FakeStore
from zkschema import paths, records

WEB = (
    "flow: web\nsources: [{syslog: {listen: '127.0.0.1:5514'}}]\n"
    "sinks:\n  - noop\n  - {files: {path: /data/web}, isolated: true}\n"
)
PART = "web~files"
JOURNAL = "web.n1.0.00000000"
AWAY_SECONDS = 190.0


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    apply_flow(Operator(store, "a", "", 0.0), WEB)
    return store


@pytest.fixture
def address(store: FakeStore, tmp_path: Path) -> Iterator[str]:
    journal = Journal.create(tmp_path / "journal", JOURNAL)
    journal.append(numbered_events(0, 5))
    journal.sync()
    server = JournalServer("127.0.0.1", 0, journals=lambda: {JOURNAL: journal})
    record = records.Journal(flow="web", node="n1", primary="n1", term=1, in_sync=())
    live = records.LiveNode(
        uuid="u", incarnation="i", addresses=(server.address,), pid=1, version="1", since=0.0
    )
    store.write(paths.journal(JOURNAL), record, ABSENT)
    store.write(paths.live_node("n1"), live, ABSENT)
    store.write(paths.ack("web", "main", JOURNAL), records.Ack(epoch=1, offset=5), ABSENT)
    yield server.address
    server.stop()
    journal.close()


def lag(store: FakeStore, seconds_later: float) -> LagOfFlow:
    """The lag of the part so long after its last event arrived."""
    task = DiscoveryTask(store, PART, 1, [FlowFinder(FlowSource("web"), store)])
    task.discover()
    accounts = PartitionAccounts(lambda: {PART: task}).accounts()
    came = max(one["ts"] for one in numbered_events(0, 5).to_pylist()).timestamp()
    whole = lag_of_flow(store, lambda _: accounts, "web", came + seconds_later)
    (part,) = whole.parts
    return part


@pytest.mark.usefixtures("address")
def test_lag_of_a_part_is_the_age_of_its_oldest_event_without_new_ones(store: FakeStore) -> None:
    mine = ack_path(PART, f"{JOURNAL}@flow")
    store.write(mine, records.Ack(epoch=1, offset=4), ABSENT)
    part = lag(store, AWAY_SECONDS)
    assert part.events == 1
    assert part.seconds == pytest.approx(AWAY_SECONDS, abs=0.01)
    store.write(mine, records.Ack(epoch=1, offset=5), ANY)
    part = lag(store, AWAY_SECONDS)
    assert (part.events, part.seconds) == (0, 0.0)
