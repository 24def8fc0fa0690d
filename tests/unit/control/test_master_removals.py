"""Removal of deleted flows and expired cursors takes a bounded portion of each tick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from flumeng.control.commands import lease_breaks
from flumeng.control.commands.flows import apply_flow, delete_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.master.daemon import Master
from flumeng.control.master.execution import carry_out
from flumeng.control.master.removals import PORTION, Removals
from flumeng.control.master.tidying import remove_gone
from flumeng.control.planner.actions import Drop, Release
from flumeng.control.snapshot.assignment_pages import read_assignment
from flumeng.control.snapshot.leases import ENDED_SECONDS
from flumeng.control.snapshot.snapshot import Snapshot
from flumeng.control.zookeeper import ABSENT, Path, Remove, Store, Version, Write
from flumeng.platform.errors import ConflictError, ForbiddenError
from tests.testkit.cluster import add_node, new_cluster, settle
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths, records

ACKS = 5 * PORTION // 2
FLOW = """
flow: {name}
sources: [{{tail: {{paths: ["/var/log/{name}.log"]}}}}]
place: {{collect: {{tasks: 1}}}}
sinks: [{{console: {{}}}}]
"""
NOTHING = Snapshot(flows={}, nodes={}, journals={}, drained=frozenset(), mine=frozenset())


class Counting(FakeStore):
    """``requests``: round trips; ``listed``: names; ``removed``: znodes."""

    requests = listed = removed = 0

    def children_many(self, wanted: Sequence[Path]) -> list[list[str]]:
        self.requests += 1
        found = [super(Counting, self).children(path) for path in wanted]
        self.listed += sum(map(len, found))
        return found

    def children(self, path: Path) -> list[str]:
        return self.children_many([path])[0]

    def exists(self, path: Path) -> bool:
        self.requests += 1
        return super().exists(path)

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        self.removed += sum(isinstance(write, Remove) for write in writes)
        return super().commit(writes)


@pytest.fixture
def cluster() -> FakeTree:
    return new_cluster().tree


def add_acks(store: Store, flow: str, cursor: str, count: int) -> None:
    if not store.exists(paths.cursor(flow, cursor)):
        store.write(paths.cursor(flow, cursor), None, ABSENT)
    for number in range(count):
        path = paths.ack(flow, cursor, f"{flow}.n1.0.{number:08d}")
        store.write(path, records.Ack(epoch=1, offset=number), ABSENT)


def apply(store: Store, name: str) -> None:
    apply_flow(Operator(store, "a", "", 0.0), FLOW.format(name=name))


def collectors(store: Store, flow: str) -> list[str]:
    return [
        node
        for node in ("n1", "n2")
        if (found := read_assignment(store, node))
        and (flow, "collect.0") in [(task.flow, task.task) for task in found.value.tasks]
    ]


def test_recovery_does_not_wait_for_large_deleted_flow(cluster: FakeTree) -> None:
    nodes = {name: FakeStore(cluster) for name in ("n1", "n2")}
    for name, own in nodes.items():
        add_node(own, name)
    store, counting = FakeStore(cluster), Counting(cluster)
    apply(store, "big")
    apply(store, "small")
    add_acks(store, "big", "main", ACKS)
    master = Master(counting, "m1")
    settle(master)
    delete_flow(Operator(store, "a", "", 0.0), "big", discard=True)
    ticks = listings = 0
    (owner,) = collectors(store, "small")
    while store.exists(paths.flow("big")):
        counting.requests = counting.removed = counting.listed = 0
        if ticks == 1:
            nodes[owner].expire()
        said = master.tick()
        assert counting.removed <= PORTION
        assert counting.requests < 100
        listings += counting.listed > PORTION
        if ticks == 1:
            assert collectors(store, "small") != [owner]
            assert "removal continues" in said
        ticks += 1
        assert ticks < 20
    assert ticks > ACKS // PORTION
    assert listings == 1
    left = [path for path in store.dump() if "/big" in path]
    assert left == ["/tombstones/big"]


def test_flow_applied_again_meanwhile_keeps_its_znodes(cluster: FakeTree) -> None:
    """A master that was frozen in the middle of a removal finds another flow of that name."""
    store = FakeStore(cluster)
    apply(store, "big")
    add_acks(store, "big", "main", 3 * PORTION // 2)
    delete_flow(Operator(store, "a", "", 0.0), "big", discard=True)
    removals = Removals(store)
    assert not removals.carry_out(Drop("big", ()))
    assert removals.unfinished
    found = store.read(paths.flow("big"))
    assert found is not None
    store.write(paths.flow("big"), records.Flow(revision=1), found.version)
    removals.next_tick()
    with pytest.raises(ConflictError):
        removals.carry_out(Drop("big", ()))
    assert len(store.children(paths.cursor("big", "main"))) > 0


def test_ack_written_meanwhile_is_removed_too(cluster: FakeTree) -> None:
    """Its collector was frozen; the listing that is continued lacks it."""
    store = FakeStore(cluster)
    apply(store, "big")
    add_acks(store, "big", "main", 3 * PORTION // 2)
    delete_flow(Operator(store, "a", "", 0.0), "big", discard=True)
    removals, drop = Removals(store), Drop("big", ())
    assert carry_out(store, [drop], NOTHING, removals).unfinished
    store.write(paths.ack("big", "main", "late"), records.Ack(epoch=1, offset=1), ABSENT)
    outcomes = [carry_out(store, [drop], NOTHING, removals) for _ in range(4)]
    assert [outcome for outcome in outcomes if outcome.done == [drop]]
    assert not store.exists(paths.acks("big"))


def test_large_expired_cursor_is_removed_in_portions(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    apply(store, "web")
    add_acks(store, "web", "report", ACKS)
    lease = records.Lease(holder="h", reader="r", keep_seconds=60.0, renewed=0.0)
    version = store.write(paths.lease("web", "report"), lease, ABSENT)
    release = Release("web", "report", version, ("it ran out",))
    removals = Removals(store)
    outcomes = [carry_out(store, [release], NOTHING, removals) for _ in range(ACKS // PORTION)]
    assert all(outcome.unfinished and not outcome.done for outcome in outcomes)
    assert store.exists(paths.lease("web", "report"))
    outcome = carry_out(store, [release], NOTHING, removals)
    assert outcome.done == [release] and not outcome.unfinished
    assert not store.exists(paths.lease("web", "report"))
    assert not store.exists(paths.cursor("web", "report"))


def test_expired_lease_of_another_site_is_recorded_with_what_it_kept(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    apply(store, "web")
    names = [f"web.n1.{number}.0a1b2c3d" for number in range(2)]
    store.write(paths.cursor("web", "nyc:copy"), None, ABSENT)
    for name, own, main in zip(names, (40, 100), (100, 100), strict=True):
        store.write(paths.ack("web", "nyc:copy", name), records.Ack(epoch=0, offset=own), ABSENT)
        store.write(paths.ack("web", "main", name), records.Ack(epoch=1, offset=main), ABSENT)
    lease = records.Lease(holder="h", reader="flow copy", keep_seconds=60.0, renewed=0.0)
    version = store.write(paths.lease("web", "nyc:copy"), lease, ABSENT)
    outcome = carry_out(store, [Release("web", "nyc:copy", version, ())], NOTHING)
    assert len(outcome.done) == 1
    broke = lease_breaks.of_flow(store, "web")["nyc:copy"]
    assert (broke.events, broke.away) == (60, True)
    assert broke.gaps == (records.Gap(journal=names[0], start=40, end=100),)
    assert broke.why == "the lease was not renewed for 60 s"


def test_ended_lease_of_a_deleted_reader_is_no_break(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    apply(store, "web")
    store.write(paths.cursor("web", "nyc:copy"), None, ABSENT)
    ack = records.Ack(epoch=0, offset=40)
    store.write(paths.ack("web", "nyc:copy", "web.n1.0.0a1b2c3d"), ack, ABSENT)
    keep = ENDED_SECONDS
    lease = records.Lease(holder="h", reader="flow copy", keep_seconds=keep, renewed=0.0)
    version = store.write(paths.lease("web", "nyc:copy"), lease, ABSENT)
    outcome = carry_out(store, [Release("web", "nyc:copy", version, ())], NOTHING)
    assert len(outcome.done) == 1
    assert lease_breaks.of_flow(store, "web") == {}


def test_lease_of_a_flow_that_is_gone_can_expire(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    lease = records.Lease(holder="h", reader="flow copy", keep_seconds=60.0, renewed=0.0)
    version = store.write(paths.lease("gone", "nyc:copy"), lease, ABSENT)
    outcome = carry_out(store, [Release("gone", "nyc:copy", version, ())], NOTHING)
    assert len(outcome.done) == 1


def test_renewed_lease_keeps_its_cursor(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    apply(store, "web")
    add_acks(store, "web", "report", 3)
    lease = records.Lease(holder="h", reader="r", keep_seconds=60.0, renewed=0.0)
    version = store.write(paths.lease("web", "report"), lease, ABSENT)
    store.write(paths.lease("web", "report"), lease, version)
    outcome = carry_out(store, [Release("web", "report", version, ())], NOTHING)
    assert not outcome.done and not outcome.unfinished and not outcome.conflicts
    assert len(store.children(paths.cursor("web", "report"))) == 3


def forbid(_writes: Sequence[Write]) -> None:
    raise ForbiddenError("no")


def test_cursor_that_cannot_be_removed_is_reported(cluster: FakeTree) -> None:
    store = FakeStore(cluster)
    apply(store, "web")
    add_acks(store, "web", "report", 3)
    lease = records.Lease(holder="h", reader="r", keep_seconds=60.0, renewed=0.0)
    version = store.write(paths.lease("web", "report"), lease, ABSENT)
    refusing = ScriptedStore(cluster, before_commit=forbid)
    outcome = carry_out(refusing, [Release("web", "report", version, ())], NOTHING)
    assert isinstance(outcome.cluster, ForbiddenError)
    assert not outcome.flows, "the flow is planned nevertheless"


def test_registration_that_may_not_be_removed_is_reported(cluster: FakeTree) -> None:
    gone = records.Journal(
        flow="web", node="n1", primary="n1", term=1, in_sync=(), replicas=(), lineage="", gone=True
    )
    FakeStore(cluster).write(paths.journal("web.n1.0.a"), gone, ABSENT)
    snapshot = replace(NOTHING, journals={"web.n1.0.a": gone})
    lines = list(remove_gone(ScriptedStore(cluster, before_commit=forbid), snapshot))
    assert lines == ["cannot remove the registration of journal web.n1.0.a: no"]
