"""A discovery process's accounts of its flows' partitions, and the views that read them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pytest

from flumeng.agent.discovery.accounts import PartitionAccounts
from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.connectors.api.finding import Before, Bounds, Findings, Offer
from flumeng.control.queries import fan_out, journals
from flumeng.control.queries.acks import acks_of, ask_worker, positions
from flumeng.control.queries.offset_lookup import ask_discovery, offsets
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import ABSENT
from flumeng.journal.serving.action_server import PartitionServer
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import UnavailableError, UserError
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_flow, come_live, new_cluster
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import DISCOVER, Ack, Plan, PlannedTask

P, Q = "orders.0.AAAAAAAA@kafka", "orders.1.AAAAAAAA@kafka"


@dataclass
class Broker:
    """A finder of two partitions with the bounds in ``reach``.

    ``gate`` is open unless the broker is frozen.
    """

    reach: dict[str, Bounds] = field(default_factory=lambda: {P: Bounds(10, 100), Q: Bounds(0, 50)})
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def find(self, before: Before) -> Findings:
        return Findings({name: Offer(5) for name in (*self.reach, *before.partitions)})

    def bounds(self, partitions: Collection[str]) -> dict[str, Bounds]:
        if not self.gate.wait(5):
            raise UnavailableError("frozen")
        return {name: self.reach[name] for name in partitions}

    def offsets(self, partitions: Collection[str], to: str) -> dict[str, int]:
        if to not in ("earliest", "latest"):
            raise UserError(f"no time: {to}")
        return {
            n: getattr(self.reach[n], "safe" if to == "latest" else "floor") for n in partitions
        }

    def times(self, at: Mapping[str, int]) -> dict[str, int]:
        return {name: offset * 1_000_000 for name, offset in at.items()}

    def finished(self) -> None: ...

    def close(self) -> None:
        self.gate.set()


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    for flow in ("web", "audit"):
        add_flow(store, flow)
    store.write(paths.ack("web", CURSOR_MAIN, P), Ack(epoch=1, offset=60), ABSENT)
    return store


@pytest.fixture
def brokers() -> dict[str, Broker]:
    return {"web": Broker(), "audit": Broker()}


@pytest.fixture
def told_by(store: FakeStore, brokers: dict[str, Broker], clock: Clock) -> PartitionAccounts:
    tasks = {flow: DiscoveryTask(store, flow, 1, [broker]) for flow, broker in brokers.items()}
    for task in tasks.values():
        task.discover()
    return PartitionAccounts(lambda: tasks, clock)


def test_each_flow_has_accounts_of_its_own(told_by: PartitionAccounts) -> None:
    """Two flows may read the same partitions, and are not equally far."""
    told = told_by.accounts()
    assert {key: (one.floor, one.acked, one.safe) for key, one in told.items()} == {
        f"web/{P}": (10, 60, 100),
        f"web/{Q}": (0, 5, 50),
        f"audit/{P}": (10, 5, 100),
        f"audit/{Q}": (0, 5, 50),
    }
    assert told[f"web/{P}"].oldest_unacked_us == 60_000_000
    assert told[f"web/{P}"].newest_us == 99_000_000
    assert told[f"audit/{P}"].oldest_unacked_us == 10_000_000, "nothing below the floor is there"
    assert told_by.positions()[f"web/{P}"].safe == 100


def test_position_of_a_minute_ago_is_known_after_a_minute(
    told_by: PartitionAccounts, brokers: dict[str, Broker], clock: Clock
) -> None:
    assert told_by.accounts()[f"web/{P}"].safe_minute_ago is None
    clock.now += 61
    brokers["web"].reach[P] = Bounds(10, 300)
    account = told_by.accounts()[f"web/{P}"]
    assert (account.safe, account.safe_minute_ago, account.acked_minute_ago) == (300, 100, 60)


@pytest.mark.slow
def test_a_frozen_broker_holds_up_the_answers_of_no_other_flow(
    told_by: PartitionAccounts, brokers: dict[str, Broker], clock: Clock
) -> None:
    told_by.accounts()
    brokers["audit"].gate.clear()
    brokers["web"].reach[P] = Bounds(10, 300)
    clock.now += 10
    told = told_by.accounts()
    assert (told[f"web/{P}"].safe, told[f"audit/{P}"].safe) == (300, 100), "as it was"
    clock.now += 100
    assert f"audit/{P}" not in told_by.accounts(), "too old to be told"
    brokers["audit"].gate.set()


def test_views_read_the_accounts_of_discovery(store: FakeStore, told_by: PartitionAccounts) -> None:
    server = PartitionServer("127.0.0.1", told_by)
    come_live(store, "a", discovery=server.address, version="1")
    task = PlannedTask(kind=DISCOVER, node="a", epoch=1, state="assigned")
    store.write(paths.plan("web"), Plan(epoch=1, tasks={"discover.0": task}), ABSENT)
    rows = acks_of(store, positions(store, ask_worker))
    assert [(row.flow, row.partition, row.end, row.lag) for row in rows] == [
        ("audit", P, 100, 95),
        ("audit", Q, 50, 45),
        ("web", P, 100, 40),
        ("web", Q, 50, 45),
    ]
    told, silent = fan_out.ask_all(ReadCache(store), journals.ask_worker)
    assert (told["a"][f"web/{P}"].acked, silent) == (60, ())
    assert offsets(store, ask_discovery, "web", [P], "latest") == {P: 100}
    with pytest.raises(UserError, match="no time: never"):
        offsets(store, ask_discovery, "web", [P], "never")
    with pytest.raises(UnavailableError, match="is not running"):
        offsets(store, ask_discovery, "audit", [P], "latest")
    with JournalClient(server.address) as client:
        assert client.counters() == []
        with pytest.raises(UnavailableError, match="no discovery task of flow"):
            client.offsets("other", [P], "latest")


@pytest.mark.slow
def test_flow_with_a_frozen_broker_is_left_out_and_the_others_are_reported(
    told_by: PartitionAccounts, brokers: dict[str, Broker], clock: Clock
) -> None:
    """A decision about the number of tasks uses only present knowledge."""
    assert sorted(told_by.of_flows(["web", "audit", "nothing"])) == ["audit", "web"]
    brokers["web"].gate.clear()
    clock.now += 15
    told = told_by.of_flows(["web", "audit"])
    brokers["web"].gate.set()
    assert {flow: sorted(accounts) for flow, accounts in told.items()} == {"audit": [P, Q]}
