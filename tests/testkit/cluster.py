"""A cluster in a store: what its operators, nodes and masters would have written there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flumeng.control.master.daemon import Master
from flumeng.control.zookeeper import ABSENT, ANY, Store, tree
from tests.testkit.store import FakeStore, FakeTree
from zkschema import bootstrap, paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Flow, Journal, LiveNode, Node


def new_cluster(shared: FakeTree | None = None) -> FakeStore:
    """A session with a cluster that was just initialised."""
    store = FakeStore(shared)
    tree.init(store)
    return store


def add_flow(store: Store, name: str = "web") -> None:
    """A flow in revision 1, without a text."""
    store.write(paths.flow(name), Flow(revision=1), ABSENT)
    for folder in bootstrap.flow_folders(name):
        store.write(folder, None, ABSENT)


def add_node(
    store: Store, name: str, roles: Sequence[str] = ("ingest", "collect"), **live: Any
) -> None:
    """A node that is live; ``live`` are fields of ``LiveNode``."""
    store.write(paths.node(name), Node(uuid=name, roles=tuple(roles)), ABSENT)
    come_live(store, name, **live)


def come_live(store: Store, name: str, *addresses: str, **fields: Any) -> None:
    """The node's live znode, or another in its place; ``fields`` are those of ``LiveNode``."""
    said: dict[str, Any] = {
        "uuid": name,
        "incarnation": "i",
        "pid": 1,
        "version": "0",
        "since": 0.0,
        **fields,
    }
    live = LiveNode(**{"addresses": addresses, **said})
    path = paths.live_node(name)
    store.write(path, live, ANY if store.exists(path) else ABSENT)


def add_journal(store: Store, name: str, flow: str = "", node: str = "", **fields: Any) -> None:
    """A journal of one replica in term 1; flow and node are those in its name, unless given."""
    own_flow, own_node, *_ = [*name.split("."), ""]
    node = node or own_node
    record: dict[str, Any] = {"primary": node, "term": 1, "in_sync": (node,), **fields}
    journal = Journal(flow=flow or own_flow, node=node, **record)
    store.write(paths.journal(name), journal, ABSENT)


def acks_of(store: Store, flow: str = "web", cursor: str = CURSOR_MAIN) -> dict[str, int]:
    """Up to where each partition is acked."""
    names = store.children(paths.cursor(flow, cursor))
    acks = store.read_many([paths.ack(flow, cursor, name) for name in names])
    return {name: ack.value.offset for name, ack in zip(names, acks, strict=True) if ack}


def settle(*masters: Master) -> None:
    """Tick all until none has anything to do."""
    for _ in range(20):
        if {master.tick() for master in masters} == {"nothing to do"}:
            return
    pytest.fail("the masters did not come to rest")
