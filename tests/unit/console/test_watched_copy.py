"""The copy that all viewers share: never older than the watches, and read once for all."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.console.watched_copy import WatchedCopy
from flumeng.control.queries import overview
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import add_flow, add_node, new_cluster
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import Flow, Node
from zkschema.table import ZPath


def _states(copy: WatchedCopy) -> dict[str, str]:
    with copy.query(whole=True) as cache:
        return {flow.flow: flow.state for flow in overview.flows(cache, checked=False)}


def test_a_second_query_reads_no_watched_znode() -> None:
    store = new_cluster()
    for number in range(20):
        add_flow(store, f"f{number}")
    copy = WatchedCopy(store)
    _states(copy)
    first = copy.reads
    _states(copy)
    assert first > 40
    assert copy.reads == first


def test_a_change_is_seen_by_the_next_query() -> None:
    store = new_cluster()
    add_flow(store, "web")
    add_node(store, "n1")
    copy = WatchedCopy(store)
    assert _states(copy) == {"web": "running"}
    store.write(paths.flow("web"), Flow(revision=1, state="stopped"), ANY)
    add_flow(store, "new")
    assert _states(copy) == {"web": "stopped", "new": "running"}
    assert [row.live for row in _nodes(copy)] == [True]
    store.remove(paths.live_node("n1"), ANY)
    assert [row.live for row in _nodes(copy)] == [False]
    store.remove(paths.node("n1"), ANY)
    assert _nodes(copy) == []


def test_a_change_during_a_query_is_not_kept_as_old() -> None:
    store = new_cluster()
    add_flow(store, "web")
    copy = WatchedCopy(store)
    with copy.query() as cache:
        assert cache.read(paths.flow("web")) is not None
        store.write(paths.flow("web"), Flow(revision=1, state="stopped"), ANY)
    assert _states(copy) == {"web": "stopped"}


def test_without_zookeeper_queries_see_what_was_there_and_nothing_else() -> None:
    store = new_cluster()
    add_flow(store, "web")
    add_node(store, "n1")
    copy = WatchedCopy(store)
    _states(copy)
    store.cut()
    assert copy.away
    assert _states(copy) == {"web": "running"}
    with copy.query() as cache, pytest.raises(UnavailableError):
        cache.read(paths.node("n1"))
    store.heal()
    store.write(paths.flow("web"), Flow(revision=1, state="stopped"), ANY)
    assert _states(copy) == {"web": "stopped"}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "remove", "cut", "heal", "begin", "end"]),
        st.sampled_from(["a", "b", "c"]),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_a_query_is_never_older_than_its_beginning(steps: list[tuple[str, str]]) -> None:
    store = new_cluster()
    other = FakeStore(store.tree)
    copy = WatchedCopy(store)
    begun = ExitStack()
    for step, name in steps:
        path = paths.node(name)
        if step == "write":
            _write(other, path)
        elif step == "remove" and other.exists(path):
            other.remove(path, ANY)
        elif step == "cut" and store.connected:
            store.cut()
        elif step == "heal" and not store.connected:
            store.heal()
        elif step == "begin" and store.connected:
            assert overview.nodes(begun.enter_context(copy.query())) == overview.nodes(other)
        elif step == "end" and store.connected:
            begun.close()


def _write(store: FakeStore, path: ZPath[Node]) -> None:
    found = store.read(path)
    if found is None:
        store.write(path, Node(uuid="0", roles=("ingest",)), ABSENT)
    else:
        changed = replace(found.value, zone=f"{found.version.number}")
        store.write(path, changed, found.version)


def _nodes(copy: WatchedCopy) -> list[overview.NodeRow]:
    with copy.query() as cache:
        return overview.nodes(cache)
