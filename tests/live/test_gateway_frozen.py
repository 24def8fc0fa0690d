"""A gateway process is stopped and not dead: its readers report it, and its node replaces it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.agent.node.children import DEFAULT_LIMITS
from flumeng.config.component import RemoteFlow
from flumeng.connectors.sites.finder import SiteFinder
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.queries import links
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import FlumengError
from tests.live.chaos import Cluster
from tests.live.gateway_sites import BY, COPY, WEB
from tests.live.test_relay import free_ports
from tests.testkit.cluster import new_cluster
from tests.testkit.store import FakeStore
from tests.testkit.waiting import wait_for
from zkschema import paths

RESTART_SECONDS = 40.0
"""For a new gateway process on a busy host."""


class GatewayCluster(Cluster):
    """A cluster whose node is a gateway, without a master."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_ports(2)

    def node_arguments(self, folder: str = "node", name: str = "n1") -> list[str]:
        ports = ["--port", str(self.port), "--role", "gateway"]
        return [*super().node_arguments(folder, name), *ports]

    def start(self, name: str) -> None:
        if name != "master":
            super().start(name)

    def gateway(self) -> int | None:
        return self.child("gateway")


@pytest.fixture
def fra(tmp_path: Path) -> Iterator[GatewayCluster]:
    cluster = GatewayCluster(tmp_path)
    cluster.start_all()
    with closing(connect(cluster.hosts)) as store:
        name_cluster(Operator(store, *BY), "fra")
        apply_flow(Operator(store, *BY), WEB)
    yield cluster
    cluster.stop()


@pytest.mark.long
def test_frozen_gateway_is_named_at_the_reader_until_its_node_has_replaced_it(
    fra: GatewayCluster,
) -> None:
    nyc = new_cluster()
    name_cluster(Operator(nyc, *BY), "nyc")
    with closing(connect(fra.hosts)) as store:
        address = wait_for(lambda: address_of(store), "no gateway", seconds=120)
    add_site(Operator(nyc, *BY), "fra", [address], "")
    apply_flow(Operator(nyc, *BY), COPY)
    task = DiscoveryTask(nyc, "copy", 1, [SiteFinder(RemoteFlow("fra", "web", 600.0), nyc, "copy")])
    wait_for(lambda: not causes(nyc, task), "the link is not up", seconds=60)
    frozen = fra.gateway()
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    began = time.monotonic()
    (named,) = wait_for(lambda: causes(nyc, task), "it is not named", seconds=15)
    named_after = time.monotonic() - began
    assert "the link to site fra is down" in named
    assert f"{address} made no progress in" in named
    wait_for(lambda: fra.gateway() not in (frozen, None), "it is not replaced", seconds=60)
    replaced_after = time.monotonic() - began
    wait_for(lambda: not links_down(task), "the link stays down", seconds=RESTART_SECONDS)
    assert named_after < replaced_after < DEFAULT_LIMITS.silent_seconds + 10.0
    task.close()


def address_of(store: Store) -> str:
    live = store.read(paths.live_node("n1"))
    return live.value.gateway if live else ""


def causes(nyc: FakeStore, task: DiscoveryTask) -> list[str]:
    """Look at the site, and return what ``status`` says of the link."""
    links_down(task)
    now = time.time()
    rows = links.links(ReadCache.of(nyc), ["copy"], now)
    return [cause.what for cause in links.causes_of_links(rows, {"copy": "running"}, now)]


def links_down(task: DiscoveryTask) -> bool:
    with suppress(FlumengError):
        task.discover()
        return False
    return True
