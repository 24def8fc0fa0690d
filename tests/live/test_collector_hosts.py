"""A watcher over a dozen journal servers, of which some freeze and some die: real processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.connectors.journals.addresses import Addresses
from flumeng.connectors.journals.positions import PositionWatcher
from flumeng.control.zookeeper import ABSENT, tree
from tests.testkit.cluster import add_journal
from tests.testkit.light_servers import LightServers
from tests.testkit.store import FakeStore
from tests.testkit.waiting import wait_for
from zkschema import paths
from zkschema.records import LiveNode

NAMES = [f"web.n{number}.0.00000000" for number in range(12)]
FROZEN, DEAD, HEALTHY = NAMES[:2], NAMES[2:4], NAMES[4:]


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[LightServers]:
    yield from started(tmp_path / "frozen", FROZEN)


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[LightServers]:
    yield from started(tmp_path / "dead", DEAD)


@pytest.fixture
def healthy(tmp_path: Path) -> Iterator[LightServers]:
    yield from started(tmp_path / "healthy", HEALTHY)


def started(directory: Path, names: list[str]) -> Iterator[LightServers]:
    servers = LightServers(directory, names)
    yield servers
    servers.kill()


@pytest.fixture
def watcher(
    frozen: LightServers, dead: LightServers, healthy: LightServers
) -> Iterator[PositionWatcher]:
    store = FakeStore()
    tree.init(store)
    for name, address in (frozen.addresses | dead.addresses | healthy.addresses).items():
        node = name.split(".")[1]
        add_journal(store, name, flow="web", node=node)
        live = LiveNode(
            uuid=node, incarnation="i", addresses=(address,), pid=1, version="0", since=0.0
        )
        store.write(paths.live_node(node), live, ABSENT)
    watcher = PositionWatcher(Addresses(store))
    watcher.watch("task", NAMES, lambda: None)
    yield watcher
    watcher.close()


def test_healthy_journals_keep_moving_while_others_are_frozen_or_dead(
    watcher: PositionWatcher, frozen: LightServers, dead: LightServers, healthy: LightServers
) -> None:
    wait_for(lambda: len(watcher.of(NAMES)) == len(NAMES))
    frozen.freeze()
    dead.kill()
    healthy.commit(8 * len(HEALTHY))
    delays = []
    deadline = time.monotonic() + 12
    while time.monotonic() < deadline:
        before = watcher.of(HEALTHY)
        assert before.keys() == set(HEALTHY)
        began = time.monotonic()
        wait_for(
            lambda: all(
                reach.safe > before[name].safe  # noqa: B023
                for name, reach in watcher.of(HEALTHY).items()
            )
        )
        delays.append(time.monotonic() - began)
    assert max(delays) < 5.0
    wait_for(lambda: watcher.of(NAMES).keys() == set(HEALTHY))
    frozen.thaw()
    wait_for(lambda: watcher.of(NAMES).keys() == {*HEALTHY, *FROZEN})
