"""Leases of other sites over lost answers, late requests and full journals."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from flumeng.agent.gateway.lease_use import LeaseUse
from flumeng.agent.gateway.leases import Leases
from flumeng.control.commands import lease_breaks
from flumeng.control.commands.acks import delete_cursor
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, Path, Remove, Version, Write
from flumeng.control.zookeeper.transaction import MOST_WRITES
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.gateway_wire import LeaseRequest
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import acks_of, add_journal, new_cluster
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import Ack

J = "web.n1.0.0a1b2c3d"
WEB = "flow: web\nsources: [{syslog: {listen: '127.0.0.1:5514'}}]\nsinks: [noop]\n"
LEASE = paths.lease("web", "nyc:copy")


@pytest.fixture
def store() -> FakeStore:
    made = new_cluster()
    apply_flow(Operator(made, "a", "", 0.0), WEB)
    add_journal(made, J)
    return made


class OutdatedStore(FakeStore):
    """Believes once that the cursor is still there."""

    believes = True

    def exists(self, path: Path) -> bool:
        if str(path) == str(paths.cursor("web", "nyc:copy")) and self.believes:
            self.believes = False
            return True
        return super().exists(path)


class Interrupted(FakeStore):
    """Loses ZooKeeper after a transaction."""

    commits = 1

    def commit(self, writes: Sequence[Write]) -> list[Version]:
        if not self.commits:
            raise UnavailableError("ZooKeeper is away")
        self.commits -= 1
        return super().commit(writes)


def asked(
    lease_id: str = "", ack: int = 0, keep_seconds: float = 600.0, made: str = ""
) -> LeaseRequest:
    """A request of a reader that was ``made`` in this transaction; without acks at first."""
    acks = {J: ack} if ack or lease_id or not made else {}
    return LeaseRequest("web", "nyc", "copy", keep_seconds, acks, lease_id, made=made)


def end_lease(store: FakeStore) -> None:
    folder = paths.cursor("web", "nyc:copy")
    acks = [Remove(paths.ack("web", "nyc:copy", name), ANY) for name in store.children(folder)]
    store.commit([*acks, Remove(folder, ANY), Remove(LEASE, ANY)])


def test_end_of_a_lease_is_told_until_its_new_id_is_presented(store: FakeStore) -> None:
    leases = Leases(store)
    old = leases.renew("fra", "nyc", asked())
    end_lease(store)
    lost = leases.renew("fra", "nyc", asked(old.id, 5))
    again = leases.renew("fra", "nyc", asked(old.id, 5))
    assert (lost.ended, again.ended, again.id) == (True, True, lost.id)
    assert leases.renew("fra", "nyc", asked(again.id, 5)).ended is False


def test_late_request_does_not_hide_the_end_of_a_lease(store: FakeStore) -> None:
    leases = Leases(store)
    old = leases.renew("fra", "nyc", asked())
    end_lease(store)
    leases.renew("fra", "nyc", asked())
    assert leases.renew("fra", "nyc", asked(old.id, 5)).ended


def test_late_request_changes_neither_id_nor_acks(store: FakeStore) -> None:
    leases = Leases(store)
    first = leases.renew("fra", "nyc", asked())
    leases.renew("fra", "nyc", asked(first.id, 7))
    assert leases.renew("fra", "nyc", asked("", 3)).id == first.id
    assert acks_of(store, "web", "nyc:copy") == {J: 7}


def test_lease_has_the_time_of_the_last_request(store: FakeStore) -> None:
    leases = Leases(store)
    first = leases.renew("fra", "nyc", asked())
    leases.renew("fra", "nyc", asked(first.id, keep_seconds=60.0))
    held = store.read(LEASE)
    assert held is not None
    assert (held.value.holder, held.value.keep_seconds) == (first.id, 60.0)


def test_lease_is_never_made_without_the_folder_of_its_acks(store: FakeStore) -> None:
    """Journals look there, so it would hold nothing."""
    request = LeaseRequest("web", "nyc", "copy", 600.0, {})
    Leases(OutdatedStore(store.tree)).renew("fra", "nyc", request)
    assert store.exists(LEASE)
    assert store.exists(paths.cursor("web", "nyc:copy"))


def test_full_journal_keeps_an_event_that_shows_the_gap(store: FakeStore) -> None:
    """A closed journal that is acked to its end would be removed, and the gap not counted."""
    leases = Leases(store)
    leases.renew("fra", "nyc", asked())
    store.write(paths.ack("web", "main", J), Ack(epoch=1, offset=100), ABSENT)
    full = Position(1, 0, 100, closed=False, full=True)
    leases.relieve(lambda _flow: {J: full})
    assert acks_of(store, "web", "nyc:copy") == {J: 99}


def test_flow_made_again_has_a_lease_of_its_own_from_its_floor(store: FakeStore) -> None:
    """The old one lives still. Its late requests neither move the new acks nor end the lease."""
    leases = Leases(store)
    old = leases.renew("fra", "nyc", asked(made="a"))
    leases.renew("fra", "nyc", asked(old.id, 400, made="a"))
    new = leases.renew("fra", "nyc", asked(made="b"))
    assert acks_of(store, "web", "nyc:copy") == {}
    assert (new.id != old.id, new.ended) == (True, False)
    assert leases.renew("fra", "nyc", asked(made="b")).id == new.id, "the answer was lost"
    late = leases.renew("fra", "nyc", asked(old.id, 500, made="a"))
    assert (late.ended, acks_of(store, "web", "nyc:copy")) == (True, {})
    end = msgspec.structs.replace(asked(old.id, made="a"), end=True)
    leases.renew("fra", "nyc", end)
    leases.renew("fra", "nyc", asked(new.id, 7, made="b"))
    assert acks_of(store, "web", "nyc:copy") == {J: 7}
    held = store.read(LEASE)
    assert held is not None
    assert (held.value.made, held.value.keep_seconds) == ("b", 600.0)


def test_many_acks_of_an_earlier_reader_are_removed_before_the_lease_is_another(
    store: FakeStore,
) -> None:
    """An interrupted change is repeated: until then the lease names the earlier reader."""
    leases = Leases(store)
    old = leases.renew("fra", "nyc", asked(made="a"))
    many = {f"web.n1.0.{number:08x}": 5 for number in range(2 * MOST_WRITES)}
    for name in many:
        add_journal(store, name)
    leases.renew("fra", "nyc", LeaseRequest("web", "nyc", "copy", 600.0, many, old.id, made="a"))
    interrupted = Interrupted(store.tree)
    with pytest.raises(UnavailableError):
        Leases(interrupted).renew("fra", "nyc", asked(made="b"))
    assert 0 < len(acks_of(store, "web", "nyc:copy")) < len(many)
    leases.renew("fra", "nyc", asked(made="b"))
    assert acks_of(store, "web", "nyc:copy") == {}


@pytest.mark.parametrize(("before", "after"), [("a", "b"), ("", "b"), ("a", "")])
def test_reader_of_an_imported_cluster_or_another_version_keeps_its_lease(
    store: FakeStore, before: str, after: str
) -> None:
    leases = Leases(store)
    first = leases.renew("fra", "nyc", asked(made=before))
    leases.renew("fra", "nyc", asked(first.id, 7, made=before))
    assert leases.renew("fra", "nyc", asked(first.id, 8, made=after)).id == first.id
    assert acks_of(store, "web", "nyc:copy") == {J: 8}
    held = store.read(LEASE)
    assert held is not None
    assert held.value.made == (after or before)


def test_break_of_a_deleted_reader_is_not_that_of_the_next_one(store: FakeStore) -> None:
    """It stays for the operators of the source; the new reader begins at the floors."""
    use, leases = LeaseUse(store), Leases(store)
    old = leases.renew("fra", "nyc", asked(made="a"))
    leases.renew("fra", "nyc", asked(old.id, 4, made="a"))
    store.write(paths.ack("web", "main", J), Ack(epoch=1, offset=100), ABSENT)
    delete_cursor(Operator(store, "ann", "full", 0.0), "web", "nyc:copy")
    request = asked(made="b")
    answer = leases.renew("fra", "nyc", request)
    known = {J: Position(1, 90, 100, closed=False)}
    assert use.described(answer, request, "nyc:copy", lambda: known).broke is None
    assert lease_breaks.of_flow(store, "web")["nyc:copy"].events == 96
    late = asked(old.id, 4, made="a")
    assert use.described(answer, late, "nyc:copy", lambda: known).broke is not None
