"""``flow handoff``: received events are delivered now, and ``--wait`` ends when they are."""

from __future__ import annotations

import pytest

from flumeng.control.commands.flows import apply_flow, delete_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.command_line import Reached, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

TEXT = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
JOURNALS = ("web.n1.0.aa", "web.n1.0.bb")


@pytest.fixture
def store() -> FakeStore:
    """Two journals, acked up to 10 of 50."""
    store = new_cluster()
    apply_flow(Operator(store, "ann", "", 0.0), TEXT)
    come_live(store, "n1", "n1:1")
    for name in JOURNALS:
        add_journal(store, name, flow="web", node="n1")
        ack(store, name, 10)
    return store


@pytest.fixture
def shell(store: FakeStore) -> Shell:
    return Shell(store.tree, {"n1:1": dict.fromkeys(JOURNALS, Reached(0, 50))})


def ack(store: FakeStore, journal: str, offset: int) -> None:
    store.write(paths.ack("web", "main", journal), records.Ack(epoch=1, offset=offset), ANY)


def handoffs(store: FakeStore) -> int:
    found = store.read(paths.flow("web"))
    assert found is not None
    return found.value.handoff


def test_each_handoff_has_a_number_of_its_own(shell: Shell, store: FakeStore) -> None:
    done = shell.run("flow", "handoff", "web")
    assert (done.exit_code, done.stdout) == (
        0,
        "flow web: its tasks deliver all events read so far\n",
    )
    assert shell.json("flow", "handoff", "web") == {"flow": "web", "handoff": 2, "partitions": 0}
    assert handoffs(store) == 2
    apply_flow(Operator(store, "ann", "", 0.0), TEXT + "# 2\n")
    assert handoffs(store) == 2, "a new revision asks for nothing"


def test_wait_ends_when_acks_reach_the_ends_of_the_request(shell: Shell, store: FakeStore) -> None:
    steps = iter([("web.n1.0.aa", 50), ("web.n1.0.bb", 30), ("web.n1.0.bb", 50)])

    def work() -> None:
        assert handoffs(store) == 1
        shell.positions["n1:1"] = dict.fromkeys(JOURNALS, Reached(0, 9000))
        ack(store, *next(steps))

    shell.meanwhile = work
    done = shell.run("flow", "handoff", "web", "--wait")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "delivered, in 2 partitions")
    assert list(steps) == []


def test_wait_that_times_out_lists_the_missing_partitions(shell: Shell, store: FakeStore) -> None:
    ack(store, "web.n1.0.aa", 50)
    done = shell.run("flow", "handoff", "web", "--wait", "--timeout", "5")
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "flumeng: not within 5 s; still missing:",
        "- web.n1.0.bb is acked up to 10 of 50",
    ]


def test_partition_with_an_unknown_end_is_named_and_not_waited_for(
    shell: Shell, store: FakeStore
) -> None:
    found = {"p0@broker": records.Partition()}
    store.write(paths.partitions("web"), records.Partitions(partitions=found), ABSENT)
    for name in JOURNALS:
        ack(store, name, 50)
    done = shell.run("flow", "handoff", "web", "--wait")
    assert done.exit_code == 0
    assert done.stderr == (
        "flumeng: no process reports the end of p0@broker: it is not waited for\n"
    )


def test_partition_that_goes_meanwhile_counts_as_delivered(shell: Shell, store: FakeStore) -> None:
    ack(store, "web.n1.0.aa", 50)

    def drained() -> None:
        store.remove(paths.ack("web", "main", "web.n1.0.bb"), ANY)
        store.remove(paths.journal("web.n1.0.bb"), ANY)

    shell.meanwhile = drained
    assert shell.run("flow", "handoff", "web", "--wait").exit_code == 0


def test_suspended_or_deleted_flow_is_refused(shell: Shell, store: FakeStore) -> None:
    set_flow_state(Operator(store, "ann", "", 0.0), "web", "suspended")
    paused = shell.run("flow", "handoff", "web")
    assert (paused.exit_code, "flumeng flow resume web" in paused.stderr) == (3, True)
    set_flow_state(Operator(store, "ann", "", 0.0), "web", "stopped")
    assert shell.run("flow", "handoff", "web").exit_code == 0, "it is collected to its end"
    delete_flow(Operator(store, "ann", "", 0.0), "web")
    assert shell.run("flow", "handoff", "web").exit_code == 3


def test_pause_of_the_flow_ends_the_wait(shell: Shell, store: FakeStore) -> None:
    shell.meanwhile = lambda: set_flow_state(Operator(store, "ann", "", 0.0), "web", "suspended")
    done = shell.run("flow", "handoff", "web", "--wait")
    assert (done.exit_code, "was paused meanwhile" in done.stderr) == (1, True)


def test_exit_codes(shell: Shell, store: FakeStore) -> None:
    assert shell.run("flow", "handoff", "wbe").exit_code == 2
    assert shell.run("flow", "handoff", "web", "--if-revision", "9").exit_code == 3
    assert handoffs(store) == 0
    shell.cut = True
    assert shell.run("flow", "handoff", "web").exit_code == 4
