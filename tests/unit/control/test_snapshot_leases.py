"""Leases run out by ZooKeeper's clock; the clocks of readers and masters do not count."""

from __future__ import annotations

import pytest

from flumeng.control.snapshot.leases import READ_SECONDS, Leases, ServerClock
from flumeng.control.snapshot.reader import Reader
from flumeng.control.zookeeper import ABSENT, ANY
from tests.testkit.clock import Clock
from tests.testkit.store import FakeStore
from zkschema import paths, records

DAY = 86400.0


class World:
    """ZooKeeper's clock, in seconds since the epoch, and a reader that renews its lease."""

    def __init__(self, store: FakeStore) -> None:
        self.store, self.now = store, 1_000_000.0
        store.tree.clock = lambda: self.now

    def renew(self, clock_off_by: float = 0.0) -> None:
        lease = records.Lease(
            holder="h", reader="r", keep_seconds=DAY, renewed=self.now + clock_off_by
        )
        self.store.write(paths.lease("web", "report"), lease, ANY)

    def start_master(self) -> None:
        master = records.LiveMaster(host="h", pid=1, version="0", since=0.0)
        self.store.write(paths.live_master("m"), master, ABSENT)


@pytest.mark.parametrize("off", [-25 * 3600.0, 0.0, 25 * 3600.0])
def test_wrong_clock_of_a_reader_neither_ends_nor_prolongs_its_lease(
    store: FakeStore, off: float
) -> None:
    world = World(store)
    world.renew(off)
    leases = Leases(store, lambda: world.now)
    assert leases.expired(world.now) == ()
    world.now += DAY - 1
    assert leases.expired(world.now) == ()
    world.now += READ_SECONDS
    assert [one.cursor for one in leases.expired(world.now)] == ["report"]


@pytest.mark.parametrize("off", [-25 * 3600.0, 25 * 3600.0])
def test_wrong_clock_of_a_master_does_not_end_a_lease(store: FakeStore, off: float) -> None:
    world = World(store)
    world.start_master()
    world.renew()
    reader = Reader(store, "m", lambda: world.now, lambda: world.now + off)
    assert reader.snapshot().expired_leases == ()
    world.now += DAY / 2
    assert reader.snapshot().expired_leases == ()
    world.now += DAY / 2 + READ_SECONDS
    assert [one.cursor for one in reader.snapshot().expired_leases] == ["report"]


def test_server_clock_is_never_ahead() -> None:
    """The master may have stood still between its write and the first look at it."""
    local = Clock()
    clock = ServerClock(local)
    assert clock.now(5000.0) == 5000.0
    local.now += 10
    assert clock.now(5000.0) == 5010.0
    assert clock.now(5011.0) == 5011.0
