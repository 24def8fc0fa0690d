"""In a secured cluster of 20,000 members and 10,000 flows every request fits."""

from __future__ import annotations

import pytest

from flumeng.control.commands.flows import apply_flows
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.securing import secure_cluster
from tests.testkit.cluster import new_cluster
from tests.testkit.store import FakeStore
from zkschema import paths

MEMBERS = 20_000
FLOWS = 10_000


def text(name: str) -> str:
    return f"flow: {name}\nsources: [tail: {{paths: [/var/log/{name}.log]}}]\nsinks: [noop]\n"


def secure(store: FakeStore, *members: str) -> int:
    return secure_cluster(Operator(store, "a", "", 1.0), cluster="c", admit=members)


@pytest.mark.long
def test_members_and_flows_of_a_large_secured_cluster_are_made() -> None:
    store = new_cluster()
    secure(store, *(f"node:ingest-{number:05}.fra1.example.net" for number in range(MEMBERS)))
    texts = {name: text(name) for name in (f"f{number}" for number in range(FLOWS))}
    made = apply_flows(Operator(store, "a", "", 1.0), texts)
    assert sum(one.changed for part in made for one in part) == FLOWS
    assert len(store.children(paths.flows())) == FLOWS
    assert secure(store, "node:one-more") == 0
    assert max(len(znode.access) for znode in store.tree.znodes.values()) < 20
