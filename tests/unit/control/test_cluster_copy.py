"""A copy of a cluster's records in memory answers all reads after the first."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import health
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot.cluster_copy import ClusterCopy
from flumeng.control.zookeeper import ABSENT, tree
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import add_journal
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.store import FakeStore
from zkschema import paths, records

R = TypeVar("R", bound=records.Record)
FLOW = "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop]}"


@pytest.fixture
def store() -> ScriptedStore:
    store = ScriptedStore()
    tree.init(store)
    apply_flow(Operator(store, "ann", "", 1.0), FLOW)
    store.write(paths.node("n"), records.Node(uuid="n", roles=("ingest",)), ABSENT)
    add_journal(store, "web.n.0.aa")
    store.write(paths.ack("web", "main", "web.n.0.aa"), records.Ack(epoch=1, offset=4), ABSENT)
    store.reads.clear()
    store.listings.clear()
    return store


def requests(store: ScriptedStore) -> Counter[str]:
    """How often each znode was read, and each folder listed."""
    reads = Counter(str(path) for wanted in store.reads for path in wanted)
    return reads + Counter(f"{path}/*" for folders in store.listings for path in folders)


def nobody(_address: str) -> dict[str, object]:
    raise UnavailableError("away")


def test_status_reads_each_record_once(store: ScriptedStore) -> None:
    health.status(store, nobody, nobody, 1.0)  # type: ignore[arg-type]
    twice = {path for path, times in requests(store).items() if times > 1}
    assert not twice, requests(store)


def test_znode_that_its_folder_does_not_list_is_not_read(store: ScriptedStore) -> None:
    reading = ReadCache(store)
    assert reading.children(paths.nodes()) == ["n"]
    assert reading.read_many([paths.node("gone"), paths.status("gone"), paths.status("n")]) == [
        None,
        None,
        None,
    ]
    assert dict(requests(store)) == {"/nodes/*": 1, "/nodes/n/status": 1}


def test_znode_that_was_never_read_is_not_taken_for_absent() -> None:
    with pytest.raises(KeyError):
        ClusterCopy(FakeStore().scale).read(paths.cluster())
