"""Leases of other sites over lost answers, late requests and full journals."""

from __future__ import annotations

import pytest

from flumeng.agent.gateway.leases import Leases
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT, ANY, Path, Remove
from flumeng.journal.log.contract import Position
from flumeng.journal.serving.gateway_wire import LeaseRequest
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


def asked(lease_id: str = "", ack: int = 0, keep_seconds: float = 600.0) -> LeaseRequest:
    return LeaseRequest("web", "nyc", "copy", keep_seconds, {J: ack}, lease_id)


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
