"""``flumeng ack intents`` and ``drop``: batches that are decided and not acked, or never can be."""

from __future__ import annotations

import pytest

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.intents import Intents
from flumeng.agent.collector.publisher import Publisher
from flumeng.connectors.api.ranged import Range
from flumeng.control.commands.cluster import export_cluster, import_cluster
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.revisions import KEEP_REVISIONS
from flumeng.control.commands.unfinished_writes import decided_batches
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform.errors import ConflictError, CorruptError
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.command_line import NOON, Reached, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records
from zkschema.records import Ack

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\nlag: {seconds: %d}\n"
SIGN = ("ann", "", NOON)
A, B = "web.n1.0.aaaaaaaa", "web.n1.0.bbbbbbbb"


@pytest.fixture
def store() -> FakeStore:
    """Flow web, with two journals on n1, which is live and answers."""
    store = new_cluster()
    apply_flow(Operator(store, *SIGN), FLOW % 1)
    come_live(store, "n1", "n1:1")
    for name in (A, B):
        add_journal(store, name, flow="web", node="n1", in_sync=())
    return store


@pytest.fixture
def shell(store: FakeStore) -> Shell:
    return Shell(store.tree, {"n1:1": {A: Reached(50, 90), B: Reached(0, 10)}})


def owner(store: FakeStore, epoch: int = 1) -> Intents:
    acks = Acks.claim(store, Publisher(store, gap_seconds=0.0), "web", epoch, (A, B))
    return Intents(store, acks, "web", "collect.0")


@pytest.fixture
def decided(store: FakeStore) -> Intents:
    intents = owner(store)
    intents.decide([Range(A, 0, 5), Range(B, 0, 7)], 1, 1)
    return intents


@pytest.mark.usefixtures("decided")
def test_batch_that_no_owner_can_finish_is_shown_and_given_up(
    shell: Shell, store: FakeStore
) -> None:
    store.remove(paths.ack("web", "main", A), ANY)
    store.remove(paths.journal(A), ANY)
    with pytest.raises(CorruptError, match="`flumeng ack intents`"):
        owner(store, 2)
    assert f"web\tcollect.0\t1\t1\t12\t{A} 0-5, {B} 0-7\t{A} is gone" in (
        shell.run("ack", "intents", "web").stdout
    )
    (row,) = shell.json("ack", "intents")
    assert (row["events"], row["ranges"]) == (12, {A: [0, 5], B: [0, 7]})
    asked = shell.run("ack", "drop", "web", "collect.0", typed="n\n")
    assert (asked.exit_code, len(decided_batches(store))) == (1, 1)
    assert "If the target has these 12 events, they will be duplicated" in asked.stderr
    done = shell.run("ack", "drop", "web", "collect.0", "--yes", "--reason", "the host burnt")
    assert done.stdout == (
        "given up: batch 1 of web/collect.0, 12 events, which are delivered again\n"
    )
    next_owner = owner(store, 2)
    assert next_owner.open is None
    assert next_owner.last.number == 1, "the target may have taken that number"
    entries = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    told = {(entry.value.command, entry.value.reason) for entry in entries if entry}
    command = f"ack drop web collect.0: gave up batch 1 ({A} 0-5, {B} 0-7)"
    assert (command, "the host burnt") in told


def test_batch_of_a_discovered_partition_is_unfinishable_once_that_is_gone(
    shell: Shell, store: FakeStore
) -> None:
    found = {"p0@broker": records.Partition()}
    store.write(paths.partitions("web"), records.Partitions(partitions=found), ABSENT)
    acks = Acks.claim(store, Publisher(store, gap_seconds=0.0), "web", 1, ["p0@broker"])
    Intents(store, acks, "web", "collect.0").decide([Range("p0@broker", 0, 5)], 1, 1)
    assert [row["problem"] for row in shell.json("ack", "intents")] == [""]
    store.write(paths.partitions("web"), records.Partitions(), ANY)
    assert [row["problem"] for row in shell.json("ack", "intents")] == ["p0@broker is gone"]


def test_acked_batch_is_not_dropped(shell: Shell, store: FakeStore, decided: Intents) -> None:
    store.commit([decided.end()])
    assert shell.run("ack", "drop", "web", "collect.0", "--yes").exit_code == 2
    assert shell.run("ack", "drop", "web", "collect.7", "--yes").exit_code == 2
    assert shell.json("ack", "intents") == []


def test_owner_whose_batch_was_given_up_cannot_ack_it(
    shell: Shell, store: FakeStore, decided: Intents
) -> None:
    assert shell.run("ack", "drop", "web", "collect.0", "--yes").exit_code == 0
    with pytest.raises(ConflictError):
        store.commit([decided.end()])


@pytest.mark.usefixtures("decided")
def test_ack_in_a_decided_batch_is_not_advanced(shell: Shell, store: FakeStore) -> None:
    refused = shell.run("ack", "advance", A)
    assert refused.exit_code == 3
    assert "is in batch 1, which task web/collect.0 has decided to write" in refused.stderr
    assert "`flumeng ack drop web collect.0`" in refused.stderr
    found = store.read(paths.ack("web", "main", A))
    assert found
    assert found.value == Ack(epoch=1, offset=0)
    assert shell.run("ack", "drop", "web", "collect.0", "--yes").exit_code == 0
    assert shell.run("ack", "advance", A).exit_code == 0


@pytest.mark.usefixtures("decided")
def test_unreadable_intent_can_be_dropped_and_another_series_begins(
    shell: Shell, store: FakeStore
) -> None:
    store.tree.znodes["/intents/web/collect.0"].data = b"damaged"
    assert "not JSON" in shell.run("ack", "intents").stdout
    assert shell.run("ack", "drop", "web", "collect.0", "--yes").exit_code == 0
    assert owner(store, 2).last.series.startswith("web.collect.0.")


@pytest.mark.usefixtures("decided")
def test_intent_of_a_newer_version_is_not_dropped(shell: Shell, store: FakeStore) -> None:
    store.tree.znodes["/intents/web/collect.0"].data = b'{"v":2}'
    refused = shell.run("ack", "drop", "web", "collect.0", "--yes")
    assert (refused.exit_code, "can finish the batch" in refused.stderr) == (3, True)


@pytest.mark.usefixtures("decided")
def test_the_revision_of_a_decided_batch_is_kept(store: FakeStore) -> None:
    for seconds in range(2, KEEP_REVISIONS + 4):
        apply_flow(Operator(store, *SIGN), FLOW % seconds)
    kept = sorted(map(int, store.children(paths.revisions("web"))))
    assert kept == [1, *range(4, KEEP_REVISIONS + 4)]
    store.remove(paths.revision("web", "1"), ANY)
    (batch,) = decided_batches(store)
    assert batch.problem == "revision 1 is gone"


@pytest.mark.usefixtures("decided")
def test_import_begins_another_series_of_batches(store: FakeStore) -> None:
    """The targets may have taken batches since the export."""
    exported = export_cluster(store)
    anew = FakeStore()
    import_cluster(Operator(anew, *SIGN), exported)
    assert decided_batches(anew) == []
    first, second = owner(store, 2).last, owner(anew, 2).last
    assert (first.series != second.series, second.number) == (True, 0)
