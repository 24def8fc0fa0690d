"""The store that tests script: it records requests, and its hooks fail or interrupt them."""

from __future__ import annotations

import pytest

from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import new_cluster
from tests.testkit.scripted_store import (
    ScriptedStore,
    concerns,
    fail,
    fail_at,
    fail_from,
    once,
    puts,
    removes,
)
from zkschema import paths
from zkschema.records import Flow

GONE = UnavailableError("gone")
WEB, APP = paths.flow("web"), paths.flow("app")


def test_requests_are_recorded() -> None:
    store = ScriptedStore(new_cluster().tree)
    store.write(WEB, Flow(revision=1), ABSENT)
    store.read_many([WEB, APP])
    store.children_many([paths.flows(), paths.nodes()])
    assert store.children(paths.flows()) == ["web"]
    assert [[write.path for write in writes] for writes in store.transactions] == [[WEB]]
    assert store.reads == [[WEB, APP]]
    assert store.listings == [[paths.flows(), paths.nodes()], [paths.flows()]]


def test_request_that_fails_before_is_not_done_and_after_it_is() -> None:
    store = ScriptedStore(new_cluster().tree, before_commit=fail(GONE, puts(WEB)))
    with pytest.raises(UnavailableError):
        store.write(WEB, Flow(revision=1), ABSENT)
    assert store.read(WEB) is None
    lossy = ScriptedStore(store.tree, after_commit=fail(GONE))
    with pytest.raises(UnavailableError):
        lossy.write(WEB, Flow(revision=1), ABSENT)
    assert store.read(WEB) is not None


def test_request_of_a_number_fails_or_all_from_it() -> None:
    store = ScriptedStore(new_cluster().tree, before_read=fail_at(2, GONE, concerns(paths.flow)))
    store.read(paths.node("n1"))
    store.read(WEB)
    with pytest.raises(UnavailableError):
        store.read(APP)
    store.read(APP)
    store.before_read = fail_from(2, GONE)
    store.read(WEB)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            store.read(WEB)


def test_interruption_happens_once_and_before_the_request_it_is_for() -> None:
    store = ScriptedStore(new_cluster().tree)
    done: list[str] = []
    store.before_commit = once(lambda: done.append(str(store.read(WEB) is not None)), removes)
    store.write(WEB, Flow(revision=1), ABSENT)
    assert done == []
    store.remove(WEB, ANY)
    store.write(WEB, Flow(revision=1), ABSENT)
    store.remove(WEB, ANY)
    assert done == ["True"]
