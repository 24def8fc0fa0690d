"""Texts of flows of which nothing runs on a node, and what is said of journals that lack keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cli.journal import _state
from flumeng.agent.node.replicated_journals import CurrentTexts
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.journals import JournalRow
from flumeng.control.zookeeper import ABSENT, tree
from tests.testkit.command_line import Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

FLOW = """
flow: {flow}
sources: [{{syslog: {{listen: "127.0.0.1:{port}"}}}}]
sinks: [noop]
"""
PROBLEM = "readers wait, since key 0123456789abcdef is not on this node: there is no secret k"
J = "web.n1.0.00000000"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 60.0  # all is due
        return self.now


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    tree.init(store)
    return store


def apply(store: FakeStore, flow: str, port: int) -> str:
    text = FLOW.format(flow=flow, port=port)
    apply_flow(Operator(store, "a", "", 0.0), text)
    return text


def test_the_current_revision_is_told(store: FakeStore) -> None:
    texts = CurrentTexts(store, lambda *_: True, Clock())
    first, other = apply(store, "web", 1001), apply(store, "app", 2001)
    assert texts.of({"web", "app"}) == {"web": first, "app": other}
    second = apply(store, "web", 1002)
    assert texts.of({"web"}) == {"web": second}
    assert texts.of(()) == {}


def test_a_text_that_this_node_may_not_act_on_is_not_told(store: FakeStore) -> None:
    """Where ``signers`` say whose flows it runs, they say whose secrets it looks up."""
    trusted = {1, 3}
    texts = CurrentTexts(store, lambda _, one: f":100{max(trusted)}" in one.text, Clock())
    apply(store, "web", 1001)
    assert texts.of({"web"}) == {}
    last = apply(store, "web", 1003)
    assert texts.of({"web"}) == {"web": last}
    apply(store, "web", 1002)
    assert texts.of({"web"}) == {"web": last}, "it goes on with the one that it may act on"


def test_what_is_not_there_or_cannot_be_read_is_left_out(store: FakeStore) -> None:
    texts = CurrentTexts(store, lambda *_: True, Clock())
    apply(store, "web", 1001)
    store.tree.znodes[str(paths.flow("web"))].data = b"{"
    assert texts.of({"web", "nowhere", "../x", ""}) == {}


def test_a_flow_that_stays_the_same_is_looked_at_ever_more_seldom(store: FakeStore) -> None:
    now = [0.0]
    reads: list[int] = []

    class Counted(FakeStore):
        def read_each(self, wanted):  # type: ignore[no-untyped-def]
            reads.append(len(wanted))
            return super().read_each(wanted)

    counted = Counted(store.tree)
    texts = CurrentTexts(counted, lambda *_: True, lambda: now[0])
    apply(store, "web", 1001)
    for _ in range(60):
        texts.of({"web"})
        now[0] += 1.0
    assert 5 <= sum(reads) <= 12


def test_people_are_told_which_journal_waits_for_a_key_and_where(store: FakeStore) -> None:
    apply(store, "web", 1001)
    node = records.Node(uuid="n1", roles=("ingest", "replica"))
    store.write(paths.node("n1"), node, ABSENT)
    live = records.LiveNode(uuid="n1", incarnation="i", pid=1, version="0", since=0.0)
    store.write(paths.live_node("n1"), live, ABSENT)
    status = records.NodeStatus(assignment_version=0, problems={f"journal {J}": PROBLEM})
    store.write(paths.status("n1"), status, ABSENT)
    assert f"node n1: journal {J}: {PROBLEM}" in Shell(store.tree).run("status").output


def test_a_journal_without_its_key_says_so_in_the_list() -> None:
    row = JournalRow(J, "n1", "web", 4, closed=True, end=9)
    assert _state(row) == "closed"
    assert _state(replace(row, problem=PROBLEM)) == f"closed: {PROBLEM}"
