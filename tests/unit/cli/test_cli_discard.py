"""A node whose host is gone for good: the events that are given up are counted, and the rest goes
on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flumeng.control.commands.cluster import verify_cluster
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.nodes import discard_node
from flumeng.control.commands.operator import Operator
from flumeng.control.master.daemon import Master
from flumeng.control.snapshot.task_map import read_plan
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.control.zookeeper.transaction import MOST_WRITES
from flumeng.platform.errors import ConflictError
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.command_line import Shell
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.table import ZPath
from zkschema.verify import verify

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
SIGN = ("ann", "", 0.0)
ROLES = ("ingest", "collect")


@pytest.fixture
def store() -> FakeStore:
    """Flow web over n1, which is dead and has three journals, and n2, which is live."""
    store = new_cluster()
    apply_flow(Operator(store, *SIGN), FLOW)
    for name in ("n1", "n2"):
        store.write(paths.node(name), records.Node(uuid=name, roles=ROLES), ABSENT)
        come_live(store, name)
    for name, acked, end in (("closed", 40, 100), ("open", 7, None), ("new", None, None)):
        add_acked_journal(store, f"web.n1.0.{name}", "n1", acked, end)
    add_acked_journal(store, "web.n2.0.aa", "n2", 5, None)
    Master(FakeStore(store.tree), "m").tick()
    store.write(paths.story("n1"), records.Story(), ABSENT)
    store.write(paths.status("n1"), records.NodeStatus(assignment_version=0), ABSENT)
    store.remove(paths.live_node("n1"), ANY)
    return store


def add_acked_journal(
    store: FakeStore, name: str, node: str, acked: int | None, end: int | None
) -> None:
    add_journal(store, name, flow="web", node=node, closed=end is not None, end=end)
    if acked is not None:
        ack = records.Ack(epoch=1, offset=acked)
        store.write(paths.ack("web", "main", name), ack, ABSENT)


SAID = [
    "journal web.n1.0.closed of flow web: 60 events are given up "
    "(acked up to 40 by cursor main, its end is 100)",
    "journal web.n1.0.new of flow web: an unknown number of events are given up "
    "(acked up to 0 by cursor main, its end is unknown)",
    "journal web.n1.0.open of flow web: an unknown number of events are given up "
    "(acked up to 7 by cursor main, its end is unknown)",
]


def test_discard_lists_the_losses_and_asks_before_it_changes_anything(
    shell: Shell, store: FakeStore
) -> None:
    before = store.dump()
    refused = shell.run("node", "decommission", "n1", "--discard", typed="n\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.splitlines()[:3] == SAID
    assert store.dump() == before


def test_discarded_node_is_gone_with_its_journals_and_the_plan_heals(
    shell: Shell, store: FakeStore
) -> None:
    plain = shell.run("node", "decommission", "n1")
    assert (plain.exit_code, "with --discard" in plain.stderr) == (3, True)
    done = shell.run("node", "decommission", "n1", "--discard", "--yes", "--reason", "fire")
    assert (done.exit_code, done.stdout) == (0, "node n1 is gone\n")
    assert done.stderr.splitlines() == SAID
    assert not [path for path in store.dump() if "n1" in path]
    assert store.exists(paths.ack("web", "main", "web.n2.0.aa"))
    assert verify(store.dump()) == verify_cluster(store) == []
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    assert [(e.value.command, e.value.reason) for e in entries if e][-1] == (
        "node decommission n1 --discard: gave up web.n1.0.closed of web for main: 60 events; "
        "web.n1.0.new of web for main: unknown events; "
        "web.n1.0.open of web for main: unknown events",
        "fire",
    )
    Master(FakeStore(store.tree), "m").tick()
    plan = read_plan(store, "web")
    assert plan is not None
    assert {name: task.node for name, task in plan.value.tasks.items()} == {
        "collect.0": "n2", "ingest.n2": "n2",
    }  # fmt: skip
    assert plan.value.tasks["collect.0"].partitions == ("web.n2.0.aa",)


def test_unreadable_ack_does_not_keep_a_node(shell: Shell, store: FakeStore) -> None:
    store.tree.znodes[str(paths.ack("web", "main", "web.n1.0.closed"))].data = b"{"
    said = shell.run("node", "decommission", "n1", "--discard", "--yes", "--reason", "gone")
    assert said.exit_code == 0, said.stderr
    told = [row.value.command for row in map(store.read, audited(store)) if row]
    assert "web.n1.0.closed of web for main: unknown events" in told[-1]
    assert "n1" not in store.children(paths.nodes())


def audited(store: FakeStore) -> list[ZPath[records.Audit]]:
    return [paths.audit(name) for name in store.children(paths.audits())]


def test_losses_are_listed_for_every_cursor_of_a_journal(shell: Shell, store: FakeStore) -> None:
    store.write(paths.cursor("web", "slow"), None, ABSENT)
    ack = records.Ack(epoch=1, offset=10)
    store.write(paths.ack("web", "slow", "web.n1.0.closed"), ack, ABSENT)
    shown = shell.run("node", "decommission", "n1", "--discard", "--yes").stderr
    assert "60 events are given up (acked up to 40 by cursor main" in shown
    assert "90 events are given up (acked up to 10 by cursor slow" in shown
    assert not [path for path in store.dump() if "n1" in path]


def test_a_node_without_journals_is_removed_without_a_question(
    shell: Shell, store: FakeStore
) -> None:
    store.write(paths.node("n3"), records.Node(uuid="n3", roles=ROLES), ABSENT)
    done = shell.run("node", "decommission", "n3", "--discard")
    assert (done.exit_code, done.stderr) == (0, "")
    assert not store.exists(paths.node("n3"))


def test_a_live_node_is_not_discarded(shell: Shell, store: FakeStore) -> None:
    come_live(store, "n1")
    before = store.dump()
    refused = shell.run("node", "decommission", "n1", "--discard", "--yes")
    assert (refused.exit_code, "n1 is live" in refused.stderr) == (3, True)
    assert store.dump() == before


def test_a_node_that_comes_back_meanwhile_keeps_everything(store: FakeStore) -> None:
    late = ScriptedStore(store.tree, before_commit=lambda _: come_live(store, "n1"))
    before = set(store.dump())
    with pytest.raises(ConflictError, match="/live/nodes/n1 exists already"):
        discard_node(Operator(late, *SIGN), "n1")
    assert before <= set(store.dump())


def test_a_node_with_very_many_journals_goes_in_several_transactions(store: FakeStore) -> None:
    count = MOST_WRITES
    for number in range(count):
        add_acked_journal(store, f"web.n1.1.{number}", "n1", number, None)
    lost = discard_node(Operator(store, *SIGN), "n1")
    assert len(lost) == count + 3
    assert not [path for path in store.dump() if "n1" in path]


def test_journal_of_a_removed_flow_does_not_prevent_a_discard(
    shell: Shell, store: FakeStore
) -> None:
    journal = store.read(paths.journal("web.n1.0.open"))
    assert journal is not None
    gone = replace(journal.value, flow="gone")
    store.write(paths.journal("web.n1.0.open"), gone, ANY)
    assert shell.run("node", "decommission", "n1", "--discard", "--yes").exit_code == 0
    assert not store.exists(paths.journal("web.n1.0.open"))
