"""``flow lag``: how far a flow is behind in each partition, by the clock that stamps its events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flumeng.control.commands.flows import apply_flows
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.journal.serving.account import Account
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

TEXT = "flow: {}\nsources: [tail: {{paths: [/a]}}]\nsinks: [noop]\n"
ADDRESS = "n1:7000"


def account(acked: int, safe: int, *, oldest: float, **more: Any) -> Account:
    """An account whose oldest unacked event came so many seconds before noon."""
    return Account(
        term=1, durability="disk", floor=0, acked=acked, safe=safe, bytes=1, max_bytes=1 << 30,
        lost=0, waits_at=None, closed=False, oldest_unacked_us=int((NOON - oldest) * 1e6), **more,
    )  # fmt: skip


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    apply(store, "web")
    come_live(store, "n1", ADDRESS)
    return store


@pytest.fixture
def shell(store: FakeStore) -> Shell:
    shell = Shell(store.tree)
    shell.node_accounts[ADDRESS] = {}
    return shell


def apply(store: FakeStore, *flows: str) -> None:
    texts = {flow: TEXT.format(flow) for flow in flows}
    list(apply_flows(Operator(store, "a", "", 0.0), texts))


def add(store: FakeStore, journal: str, acked: int | None, node: str = "n1") -> None:
    flow = journal.split(".", maxsplit=1)[0]
    add_journal(store, journal, flow=flow, node=node, in_sync=())
    if acked is not None:
        ack = records.Ack(epoch=1, offset=acked)
        store.write(paths.ack(flow, "main", journal), ack, ABSENT)


def discover(store: FakeStore, **partitions: records.Partition) -> None:
    found = records.Partitions(partitions={f"{name}@broker": p for name, p in partitions.items()})
    store.write(paths.partitions("web"), found, ABSENT)


def test_lag_lists_each_partition_latest_first_and_a_total(shell: Shell, store: FakeStore) -> None:
    add(store, "web.n1.0.aa", 100)
    add(store, "web.n1.0.bb", 300)
    add(store, "web.n1.0.cc", None)
    shell.node_accounts[ADDRESS] = {
        "web.n1.0.aa": account(100, 200, oldest=20, acked_minute_ago=40, safe_minute_ago=170),
        "web.n1.0.bb": account(300, 300, oldest=90, acked_minute_ago=300, safe_minute_ago=300),
        "web.n1.0.cc": account(0, 900, oldest=5, acked_minute_ago=0, safe_minute_ago=600),
    }
    found = shell.json("flow", "lag", "web")
    assert {key: found[key] for key in found if key != "partitions"} == {
        "flow": "web",
        "state": "running",
        "events": 1000,
        "seconds": 20.0,
        "acked_per_second": 1.0,
        "added_per_second": 5.5,
        "caught_up_seconds": None,
        "unknown": [],
        "silent": [],
        "problems": [],
        "parts": [],
        "trend": "growing",
        "link": None,
    }
    rows = [
        (row["partition"][-2:], row["ack"], row["end"], row["events"], row["seconds"],
         row["caught_up_seconds"])
        for row in found["partitions"]
    ]  # fmt: skip
    assert rows == [
        ("cc", None, 900, 900, 5.0, None),
        ("aa", 100, 200, 100, 20.0, 200.0),
        ("bb", 300, 300, 0, 0.0, 0.0),
    ]
    assert shell.run("flow", "lag", "web").stdout.splitlines() == [
        "flow web is running, 1000 events behind in 2 of 3 partitions, the oldest for 20 s, "
        "the lag is growing, 1 events/s",
        "PARTITION\tACK\tEND\tBEHIND\tSECONDS\tEVENTS/S\tCAUGHT UP IN\tPROBLEM",
        "web.n1.0.cc\t-\t900\t900\t5.0\t0.0\t-\t-",
        "web.n1.0.aa\t100\t200\t100\t20.0\t1.0\t200.0\t-",
        "web.n1.0.bb\t300\t300\t0\t0.0\t0.0\t0.0\t-",
    ]


def test_clock_is_that_of_the_records_where_the_newest_is_known(
    shell: Shell, store: FakeStore
) -> None:
    """The clock of the asking host may be wrong by hours, and a replay may be of last year."""
    discover(store, p0=records.Partition())
    year_ago = 365 * 86_400.0
    told = account(0, 50, oldest=year_ago)
    shell.node_accounts[ADDRESS] = {"web/p0@broker": told}
    assert shell.json("flow", "lag", "web")["seconds"] == year_ago
    newest = int((NOON - year_ago + 7) * 1e6)
    shell.node_accounts[ADDRESS] = {"web/p0@broker": replace(told, newest_us=newest)}
    assert shell.json("flow", "lag", "web")["seconds"] == 7.0


def test_discovered_partition_is_reported_by_any_node_from_its_start(
    shell: Shell, store: FakeStore
) -> None:
    discover(store, p0=records.Partition(start=40), p1=records.Partition(start=3, end=9))
    shell.node_accounts[ADDRESS] = {"web/p0@broker": account(40, 50, oldest=1)}
    found = shell.json("flow", "lag", "web")
    assert [(row["partition"], row["end"], row["events"]) for row in found["partitions"]] == [
        ("p0@broker", 50, 10),
        ("p1@broker", 9, 6),
    ]
    ended = {row["partition"]: row for row in shell.json("ack", "list")}
    assert ended["p1@broker"]["lag"] == 6


def test_partitions_without_a_reported_end_are_named(shell: Shell, store: FakeStore) -> None:
    add(store, "web.n1.0.aa", 100)
    for number in range(7):
        add(store, f"web.n2.0.{number}", 5, node="n2")
    come_live(store, "n2", "n2:1")
    shell.node_accounts[ADDRESS] = {"web.n1.0.aa": account(100, 200, oldest=20)}
    done = shell.run("flow", "lag", "web")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "flumeng: node n2 does not answer",
        "flumeng: no process reports the end of web.n2.0.0, web.n2.0.1, web.n2.0.2, web.n2.0.3, "
        "web.n2.0.4 and 2 more",
    ]
    assert done.stdout.splitlines()[0] == (
        "flow web is running, 100 events behind in 1 of 8 partitions, 7 unknown, the oldest for "
        "20 s"
    )
    found = shell.json("flow", "lag", "web")
    assert (found["events"], len(found["unknown"]), found["silent"]) == (100, 7, ["n2"])


@pytest.mark.slow
def test_lag_of_one_flow_reads_no_others_and_survives_their_damage(
    shell: Shell, store: FakeStore
) -> None:
    apply(store, *(f"f{number}" for number in range(1000)))
    add(store, "web.n1.0.aa", 100)
    add(store, "f7.n1.0.aa", 5)
    add(store, "f8.n1.0.aa", 5)
    shell.node_accounts[ADDRESS] = {"web.n1.0.aa": account(100, 200, oldest=20)}
    for path in (paths.flow("f7"), paths.ack("f7", "main", "f7.n1.0.aa")):
        store.tree.znodes[str(path)].data = b"{"
    store.tree.znodes[str(paths.journal("f8.n1.0.aa"))].data = b"{"
    found = shell.json("flow", "lag", "web")
    assert [row["partition"] for row in found["partitions"]] == ["web.n1.0.aa"]
    (problem,) = found["problems"]
    assert str(paths.journal("f8.n1.0.aa")) in problem


def test_unreadable_ack_keeps_the_row_of_its_partition(shell: Shell, store: FakeStore) -> None:
    add(store, "web.n1.0.aa", 100)
    store.tree.znodes[str(paths.ack("web", "main", "web.n1.0.aa"))].data = b"{"
    shell.node_accounts[ADDRESS] = {"web.n1.0.aa": account(100, 200, oldest=20)}
    (row,) = shell.json("flow", "lag", "web")["partitions"]
    assert (row["ack"], row["end"], row["events"]) == (None, 200, None)
    assert "/acks/web/main/web.n1.0.aa" in row["problem"]


def test_exit_codes(shell: Shell, store: FakeStore) -> None:
    assert shell.run("flow", "lag", "web").exit_code == 0, "a flow without partitions is not late"
    unknown = shell.run("flow", "lag", "wbe")
    assert (unknown.exit_code, "web" in unknown.stderr) == (2, True)
    store.write(paths.flow("web"), records.Flow(revision=1, state="suspended"), ANY)
    assert shell.run("flow", "lag", "web").stdout.startswith("flow web is suspended, 0 events")
    shell.cut = True
    assert shell.run("flow", "lag", "web").exit_code == 4
