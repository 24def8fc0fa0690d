"""Chokes and counters of flows, by command: on a fake store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ANY
from tests.testkit.cluster import add_node, new_cluster
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore
from zkschema import paths

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"


@pytest.fixture
def store() -> FakeStore:
    store = new_cluster()
    apply_flow(Operator(store, "ann", "", NOON), FLOW)
    for name, addresses in (("n1", ("n1:1", "n1:2")), ("n2", ("n2:1",))):
        add_node(store, name, ("ingest",), addresses=addresses, since=NOON)
    return store


def chokes(store: FakeStore) -> dict[str, float]:
    found = store.read(paths.cluster())
    assert found is not None
    return dict(found.value.chokes)


def test_choke_for_an_invalid_node_name_is_wrong_input(shell: Shell) -> None:
    refused = shell.run("flow", "choke", "web", "10MB", "--node", "b b")
    assert (refused.exit_code, 'there is no node "b b"' in refused.stderr) == (2, True)


def test_choke_is_set_and_removed_for_all_nodes_or_one(shell: Shell, store: FakeStore) -> None:
    assert shell.run("flow", "choke", "web", "10MB").stdout == "choke of flow web is 10MB\n"
    shell.run("flow", "choke", "web", "1 MiB/s", "--node", "n1")
    assert chokes(store) == {"web": 1e7, "web@n1": 2**20}
    shown = shell.run("flow", "counters", "web", "--json")
    assert json.loads(shown.stdout) == {"chokes": {"": 1e7, "n1": 2**20}, "sources": []}
    assert shell.run("flow", "counters", "web").stdout.splitlines()[:2] == [
        "choke: 10000000 bytes per second on each node",
        "choke: 1048576 bytes per second on n1",
    ]
    again = shell.run("flow", "choke", "web", "10MB")
    assert again.stdout == "choke of flow web is 10MB already\n"
    shell.run("flow", "choke", "web", "off", "--reason", "enough")
    assert chokes(store) == {"web@n1": 2**20}
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    last = max((entry.value for entry in entries if entry), key=lambda entry: len(entry.reason))
    assert (last.who, last.command, last.reason) == ("ann@ops", "flow choke web off", "enough")


def test_choke_goes_with_its_flow(shell: Shell, store: FakeStore) -> None:
    """The next flow of that name is not held back by a forgotten choke."""
    apply_flow(Operator(store, "ann", "", NOON), FLOW.replace("web", "app"))
    for words in (("web", "10MB"), ("web", "1MB", "--node", "n1"), ("app", "2MB")):
        shell.run("flow", "choke", *words)
    assert shell.run("flow", "delete", "web").exit_code == 0
    assert chokes(store) == {"app": 2e6}
    late = shell.run("flow", "choke", "web", "1MB")
    assert (late.exit_code, "is being deleted" in late.stderr) == (3, True)
    assert chokes(store) == {"app": 2e6}


@pytest.mark.parametrize("words", [(), ("--discard", "--yes")])
def test_choke_is_removed_with_its_node(
    shell: Shell, store: FakeStore, words: tuple[str, ...]
) -> None:
    for node in ("n1", "n2"):
        shell.run("flow", "choke", "web", "1MB", "--node", node)
    store.remove(paths.live_node("n1"), ANY)
    assert shell.run("node", "decommission", "n1", *words).exit_code == 0
    assert chokes(store) == {"web@n2": 1e6}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("web", "fast"), "a whole number of bytes per second, such as 10MB, or off\n"),
        (("web", "0"), "to let nothing through, pause the flow"),
        (("wob", "1MB"), 'there is no flow "wob"'),
        (("web", "1MB", "--node", "n3"), 'there is no node "n3"'),
    ],
)
def test_invalid_choke_changes_nothing(
    shell: Shell, store: FakeStore, words: tuple[str, ...], said: str
) -> None:
    wrong = shell.run("flow", "choke", *words)
    assert wrong.exit_code == 2
    assert said in wrong.stderr
    assert chokes(store) == {}


def counted(flow: str, source: str, **counters: int) -> dict[str, Any]:
    return {"flow": flow, "source": source, "events": 0, "bytes": 0, "refused": 0, **counters}


def test_counters_are_summed_over_the_workers_of_a_node(shell: Shell) -> None:
    shell.counted = {
        "n1:1": [counted("web", "tcp :1", events=3, bytes=30), counted("other", "udp", events=9)],
        "n1:2": [counted("web", "tcp :1", events=4, bytes=40, refused=2)],
    }
    shown = shell.run("flow", "counters", "web")
    assert shown.stderr == "flumeng: node n2 does not answer; it is not counted\n"
    assert shown.stdout.split() == [
        *("NODE", "SOURCE", "EVENTS", "BYTES", "ELSE"),
        *("n1", "tcp", ":1", "7", "70", "refused", "2"),
    ]
    (row,) = json.loads(shell.run("flow", "counters", "web", "--json").stdout)["sources"]
    assert row == {
        "node": "n1",
        "source": "tcp :1",
        "counters": {"events": 7, "bytes": 70, "refused": 2},
        "held_by": "",
        "held_seconds": 0.0,
    }


def test_counters_show_the_cause_and_duration_of_a_held_source(shell: Shell) -> None:
    """Of two workers, that which has been held for longest."""
    full = {"held_by": "journal full: 1.0 GiB of 1.0 GiB", "held_seconds": 41.3}
    choked = {"held_by": "rate limit: 1.0 MiB a second", "held_seconds": 7.0}
    free = {"held_by": "", "held_seconds": 0.0}
    shell.counted = {
        "n1:1": [counted("web", "tail", unread_bytes=5) | choked],
        "n1:2": [counted("web", "tail", unread_bytes=2) | full],
        "n2:1": [counted("web", "tail") | free],
    }
    shown = shell.run("flow", "counters", "web").stdout.splitlines()
    assert shown[1].endswith("held for 41 s, journal full: 1.0 GiB of 1.0 GiB, unread_bytes 7")
    assert shown[2].split() == ["n2", "tail", "0", "0", "-"]
    rows = json.loads(shell.run("flow", "counters", "web", "--json").stdout)["sources"]
    assert [(row["held_by"], row["held_seconds"]) for row in rows] == [
        ("journal full: 1.0 GiB of 1.0 GiB", 41.3),
        ("", 0.0),
    ]
