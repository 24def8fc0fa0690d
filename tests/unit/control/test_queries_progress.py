"""Progress of a flow in its input, for any kind of input."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.acks import Progress, progress
from flumeng.control.snapshot import items
from flumeng.control.zookeeper import ABSENT
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.command_line import Reached
from tests.testkit.store import FakeStore
from zkschema import paths, records

TEXT = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
JOURNAL, TOPIC = "web.n1.0.aa", "orders.0.MkTRfQ2n@kafka"
LANES = [f"lane.{number}.5f2a90c1@objects" for number in (0, 1)]


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    apply_flow(Operator(store, "a", "", 0.0), TEXT)
    come_live(store, "n1", "n1:1")
    return store


def told(store: FakeStore, **reach: tuple[int, int]) -> Progress:
    """``reach`` are the bounds of each partition that the node reports."""

    def ask(_address: str) -> Mapping[str, Reached]:
        return {name: Reached(*bounds) for name, bounds in reach.items()}

    return progress(store, ask, "web")


def discover(store: FakeStore, **found: records.Partition) -> None:
    store.write(paths.partitions("web"), records.Partitions(partitions=found), ABSENT)


def ack(store: FakeStore, partition: str, offset: int) -> None:
    store.write(paths.ack("web", "main", partition), records.Ack(epoch=1, offset=offset), ABSENT)


def test_events_of_journals_and_topics_are_counted(store: FakeStore) -> None:
    add_journal(store, JOURNAL, in_sync=())
    discover(store, **{TOPIC: records.Partition(start=500, end=800)})
    ack(store, JOURNAL, 60)
    assert told(store, **{JOURNAL: (0, 100)}) == Progress("events", 60, 400)
    ack(store, TOPIC, 650)
    assert told(store, **{JOURNAL: (0, 100)}) == Progress("events", 210, 400)
    assert told(store) == Progress("events", 150, 300)


def test_items_of_queues_are_counted_and_a_running_one_is_not_done(store: FakeStore) -> None:
    discover(store, **dict.fromkeys(LANES, records.Partition()))
    ack(store, LANES[0], items.offset_of(2, 77))
    reach = {f"web/{lane}": (0, items.offset_of(5)) for lane in LANES}
    assert told(store, **reach) == Progress("items", 2, 10)


def test_flow_without_input_has_no_progress(store: FakeStore) -> None:
    assert told(store) == Progress("events", 0, 0)
