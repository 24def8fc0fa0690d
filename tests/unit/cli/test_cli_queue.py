"""``flumeng queue``: waiting, running, done and failed items, also where parts cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from flumeng.connectors.api.finding import Before, FindingTask
from flumeng.connectors.objects.finder import ObjectsFinder
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot import items, queues
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.zookeeper import ABSENT, tree
from flumeng.journal.serving.account import Account
from tests.testkit.cluster import come_live
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.records import COLLECT

ADDRESS = "n1:7000"
TEXT = 'flow: {}\nsources: [objects: {{paths: ["{}/*"], settle_seconds: 0}}]\nsinks: [noop]\n'


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    store.tree.clock = lambda: NOON
    tree.init(store)
    come_live(store, "n1", ADDRESS)
    return store


@pytest.fixture
def shell(store: FakeStore, tmp_path: Path) -> Shell:
    for name in "abcdef":
        (tmp_path / name).write_text("x" * 1000)
    fill(store, "web", tmp_path)
    shell = Shell(store.tree)
    shell.node_accounts[ADDRESS] = {}
    return shell


def fill(store: FakeStore, flow: str, folder: Path) -> None:
    apply_flow(Operator(store, "test", "", 0.0), TEXT.format(flow, folder))
    source = ObjectsSource(paths=(f"{folder}/*",), settle_seconds=0.0, lanes=2)
    ObjectsFinder(source, store, FindingTask(flow, 1)).find(Before())


def partition(store: FakeStore, lane: str, flow: str = "web") -> str:
    head = queues.head(store, flow)
    assert head is not None
    return queues.lane_partition(lane, head.value.id)


def ack(store: FakeStore, lane: str, number: int, position: int = 0) -> None:
    path = ack_path("web", partition(store, lane))
    store.write(path, records.Ack(epoch=1, offset=items.offset_of(number, position)), ABSENT)


def run(store: FakeStore, lane: str, state: str = "running") -> None:
    """Give this lane to a task on n1."""
    task = records.PlannedTask(
        kind=COLLECT, partitions=(partition(store, lane),), node="n1", epoch=3, state="assigned"
    )
    store.write(paths.plan("web"), records.Plan(epoch=3, tasks={"collect.0": task}), ABSENT)
    said = records.TaskStatus(epoch=3, revision=1, state=state)
    status = records.NodeStatus(assignment_version=1, tasks={"web/collect.0": said})
    store.write(paths.node("n1"), records.Node(uuid="n1", roles=("collect",)), ABSENT)
    store.write(paths.status("n1"), status, ABSENT)


def account(acked: int, safe: int, left: int, *, ago: int, left_ago: int) -> Account:
    """The numbers of items now and a minute ago, and the bytes."""
    return Account(
        term=0,
        durability="",
        floor=0,
        acked=items.offset_of(acked),
        safe=items.offset_of(safe),
        bytes=0,
        max_bytes=0,
        lost=0,
        waits_at=None,
        closed=False,
        oldest_unacked_us=int((NOON - 60) * 1e6) if acked < safe else None,
        acked_minute_ago=items.offset_of(ago),
        safe_minute_ago=items.offset_of(safe),
        step=1 << 38,
        unacked_bytes=left,
        unacked_bytes_minute_ago=left_ago,
    )


def fail(store: FakeStore, item: str, wanted: str = "") -> None:
    record = records.QueueFailure(
        location="/in/bad", size=7, modified=5, position=3, why="bits", time=1.0, wanted=wanted
    )
    store.write(paths.queue_failure("web", item), record, ABSENT)


def test_list_shows_waiting_running_done_and_failed_items_and_the_end(
    shell: Shell, store: FakeStore
) -> None:
    ack(store, "0", 1, position=400)
    ack(store, "1", 3)
    run(store, "0")
    fail(store, "1.0")
    shell.node_accounts[ADDRESS] = {
        f"web/{partition(store, '0')}": account(1, 3, 1600, ago=1, left_ago=2800),
        f"web/{partition(store, '1')}": account(3, 3, 0, ago=0, left_ago=3000),
    }
    (row,) = shell.json("queue", "list")
    assert row == {
        "flow": "web",
        "state": "running",
        "lanes": 2,
        "waiting": 2,
        "running": 1,
        "bytes": 1600,
        "oldest": NOON - 60,
        "done": 3,
        "failed": 1,
        "items_per_second": 0.05,
        "end_seconds": 80.0,
        "problem": "",
    }
    first, second = shell.json("queue", "list", "web")
    assert first["node"] == "n1"
    assert (first["running"], first["since"], first["position"]) == (True, NOON, 400)
    assert (first["waiting"], first["bytes"], first["end_seconds"]) == (2, 1600, 80.0)
    assert (second["running"], second["waiting"], second["at"]) == (False, 0, "")
    assert (second["done"], second["failed"], second["items_per_second"]) == (2, 1, 0.05)
    headline, _, *lines = shell.run("queue", "list", "web").stdout.splitlines()
    assert headline == (
        "flow web is running, 2 items wait in 2 lanes, 1 of them read now, 1600 bytes, 3 done, "
        "1 failed, done in about 80 s"
    )
    assert len(lines) == 2


def test_list_shows_the_counts_of_zookeeper_where_no_node_reports(
    shell: Shell, store: FakeStore
) -> None:
    run(store, "0", state="starting")
    (row,) = shell.json("queue", "list")
    assert (row["waiting"], row["running"], row["done"]) == (6, 0, 0)
    assert row["bytes"] is row["oldest"] is row["end_seconds"] is None
    lanes = shell.json("queue", "list", "web")
    assert [lane["bytes"] for lane in lanes] == [3000, 3000]
    assert [lane["node"] for lane in lanes] == ["n1", ""]


def test_unreadable_parts_are_named_and_all_others_shown(
    shell: Shell, store: FakeStore, tmp_path: Path
) -> None:
    fill(store, "other", tmp_path)
    head = store.tree.znodes["/queues/other"]
    good, head.data = head.data, b"{"
    found = shell.run("queue", "list")
    assert "/queues/other cannot be read" in found.stderr
    shown = {line.split("\t")[0]: line for line in found.stdout.splitlines()[1:]}
    assert shown["web"].split("\t")[3] == "6"
    assert "/queues/other" in shown["other"]

    head.data = good
    ack(store, "0", 1)
    store.tree.znodes[str(ack_path("web", partition(store, "0")))].data = b"no ack"
    store.tree.znodes["/queues/web/lanes/1/0000000000"].data = b"no segment"
    found = shell.run("queue", "list", "web")
    assert "no segment" not in found.stdout
    assert found.stderr.count("cannot be read") == 2
    first, second = shell.json("queue", "list", "web")
    assert first["bytes"] is None
    assert "cannot" in first["problem"] or "ack" in first["problem"]
    assert (second["waiting"], second["bytes"]) == (3, None)


@pytest.mark.parametrize(("data", "code"), [(b"{", 1), (b'{"v": 99}', 2)], ids=["damaged", "newer"])
def test_items_of_an_unreadable_queue_fail_with_its_path(
    shell: Shell, store: FakeStore, data: bytes, code: int
) -> None:
    store.tree.znodes["/queues/web"].data = data
    found = shell.run("queue", "show", "web")
    assert found.exit_code == code
    assert "/queues/web: " in found.stderr


def test_node_that_does_not_answer_is_named(shell: Shell, store: FakeStore) -> None:
    come_live(store, "n2", "n2:1")
    found = shell.run("queue", "list")
    assert found.stderr == "flumeng: node n2 does not answer\n"
    assert found.exit_code == 0


def test_items_are_shown_as_failed_running_and_waiting(shell: Shell, store: FakeStore) -> None:
    ack(store, "1", 1)
    run(store, "1")
    fail(store, "1.0")
    rows = shell.json("queue", "show", "web")
    assert [(row["item"], row["state"]) for row in rows] == [
        ("1.0", "failed"),
        ("1.1", "running"),
        *((item, "waiting") for item in ("0.0", "0.1", "0.2", "1.2")),
    ]
    assert (rows[1]["node"], rows[1]["since"]) == ("n1", NOON)
    assert len(shell.json("queue", "show", "web", "--limit", "2")) == 2


def test_status_reports_failed_items_until_somebody_has_decided(
    shell: Shell, store: FakeStore
) -> None:
    fail(store, "0.0")
    fail(store, "1.0", wanted="skip")
    said = [c["what"] for c in shell.json("status")["causes"] if "queue" in c["what"]]
    assert said == ["1 item of the queue of flow web could not be fully read"]
    shell.run("queue", "retry", "web", "0.0")
    assert not [c for c in shell.json("status")["causes"] if "queue" in c["what"]]
    assert [row["state"] for row in shell.json("queue", "show", "web")][:1] == ["retry"]
    assert shell.json("queue", "list")[0]["failed"] == 2
