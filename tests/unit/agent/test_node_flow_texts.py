"""Texts of flows without tasks on a node, and reports of journals that lack keys."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from cli.journal import _state
from flumeng.agent.node.replicated_journals import CurrentTexts
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.journals import JournalRow
from flumeng.control.zookeeper import ABSENT
from tests.testkit.clock import Clock
from tests.testkit.cluster import add_node
from tests.testkit.command_line import Shell
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.store import FakeStore
from zkschema import paths, records

FLOW = """
flow: {flow}
sources: [{{syslog: {{listen: "127.0.0.1:{port}"}}}}]
sinks: [noop]
"""
PROBLEM = "readers wait, since key 0123456789abcdef is not on this node: there is no secret k"
J = "web.n1.0.00000000"


def all_is_due() -> Callable[[], float]:
    """A clock that is a minute further each time."""
    return itertools.count(60.0, 60.0).__next__


def apply(store: FakeStore, flow: str, port: int) -> str:
    text = FLOW.format(flow=flow, port=port)
    apply_flow(Operator(store, "a", "", 0.0), text)
    return text


def test_current_revision_is_returned(store: FakeStore) -> None:
    texts = CurrentTexts(store, lambda *_: True, all_is_due())
    first, other = apply(store, "web", 1001), apply(store, "app", 2001)
    assert texts.of({"web", "app"}) == {"web": first, "app": other}
    second = apply(store, "web", 1002)
    assert texts.of({"web"}) == {"web": second}
    assert texts.of(()) == {}


def test_text_that_this_node_may_not_act_on_is_left_out(store: FakeStore) -> None:
    """Where ``signers`` restrict the flows that it runs, they restrict the secrets that it
    reads."""
    trusted = {1, 3}
    texts = CurrentTexts(store, lambda _, one: f":100{max(trusted)}" in one.text, all_is_due())
    apply(store, "web", 1001)
    assert texts.of({"web"}) == {}
    last = apply(store, "web", 1003)
    assert texts.of({"web"}) == {"web": last}
    apply(store, "web", 1002)
    assert texts.of({"web"}) == {"web": last}, "it goes on with the one that it may act on"


def test_missing_or_unreadable_text_is_left_out(store: FakeStore) -> None:
    texts = CurrentTexts(store, lambda *_: True, all_is_due())
    apply(store, "web", 1001)
    store.tree.znodes[str(paths.flow("web"))].data = b"{"
    assert texts.of({"web", "nowhere", "../x", ""}) == {}


def test_unchanged_flow_is_read_ever_more_rarely(store: FakeStore) -> None:
    clock = Clock(0.0)

    counted = ScriptedStore(store.tree)
    texts = CurrentTexts(counted, lambda *_: True, clock)
    apply(store, "web", 1001)
    for _ in range(60):
        texts.of({"web"})
        clock.now += 1.0
    assert 5 <= sum(map(len, counted.reads)) <= 12


def test_status_names_the_journal_and_node_that_wait_for_a_key(store: FakeStore) -> None:
    apply(store, "web", 1001)
    add_node(store, "n1", ("ingest", "replica"))
    status = records.NodeStatus(assignment_version=0, problems={f"journal {J}": PROBLEM})
    store.write(paths.status("n1"), status, ABSENT)
    assert f"node n1: journal {J}: {PROBLEM}" in Shell(store.tree).run("status").output


def test_list_shows_a_journal_without_its_key() -> None:
    row = JournalRow(J, "n1", "web", 4, closed=True, end=9)
    assert _state(row) == "closed"
    assert _state(replace(row, problem=PROBLEM)) == f"closed: {PROBLEM}"
