"""What was read of a cluster is looked at in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import health
from flumeng.control.queries.reading import Reading
from flumeng.control.snapshot.cluster_copy import ClusterCopy
from flumeng.control.zookeeper import ABSENT, Found, Path, tree
from flumeng.platform.errors import UnavailableError
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.table import ZPath

R = TypeVar("R", bound=records.Record)
FLOW = "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], sinks: [noop]}"


class Counting(FakeStore):
    """``asked``: how often each znode was read, and each folder listed."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        self.asked.update(map(str, wanted))
        return super().read_each(wanted)

    def children(self, path: Path) -> list[str]:
        self.asked[f"{path}/*"] += 1
        return super().children(path)


@pytest.fixture
def store() -> Counting:
    store = Counting()
    tree.init(store)
    apply_flow(Operator(store, "ann", "", 1.0), FLOW)
    store.write(paths.node("n"), records.Node(uuid="n", roles=("ingest",)), ABSENT)
    journal = records.Journal(flow="web", node="n", primary="n", term=1, in_sync=("n",))
    store.write(paths.journal("web.n.0.aa"), journal, ABSENT)
    store.write(paths.ack("web", "main", "web.n.0.aa"), records.Ack(epoch=1, offset=4), ABSENT)
    store.asked.clear()
    return store


def nobody(_address: str) -> dict[str, object]:
    raise UnavailableError("away")


def test_status_reads_each_record_once(store: Counting) -> None:
    health.status(store, nobody, nobody, 1.0)  # type: ignore[arg-type]
    twice = {path for path, times in store.asked.items() if times > 1}
    assert not twice, store.asked


def test_what_a_folder_does_not_list_is_not_asked_for(store: Counting) -> None:
    reading = Reading(store)
    assert reading.children(paths.nodes()) == ["n"]
    assert reading.read_many([paths.node("gone"), paths.status("gone"), paths.status("n")]) == [
        None,
        None,
        None,
    ]
    assert dict(store.asked) == {"/nodes/*": 1, "/nodes/n/status": 1}


def test_what_was_never_read_is_not_taken_for_absent() -> None:
    with pytest.raises(KeyError):
        ClusterCopy(FakeStore().scale).read(paths.cluster())
