"""A replicated journal of the source is taken over while another site reads it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import Cluster
from tests.live.replica_hosts import Hosts, can_make_hosts, node_command, running
from tests.live.test_relay import free_ports
from tests.live.test_replicas_chaos import lake_of
from tests.live.test_replicas_takeover import Web
from tests.testkit.daemons import start_logged
from tests.testkit.waiting import wait_for

COPY = """
flow: copy
sources: [{{flow: {{site: fra, name: web, discovery_seconds: 0.5}}}}]
delivery: exactly-once
batch: {{seconds: 0.3, events: 100}}
sinks: [{{files: {{path: "{lake}"}}}}]
"""


class Reader(Cluster):
    """The site nyc, whose flow ``copy`` reads ``web`` of fra."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.lake = folder / "lake"

    def read(self, gateway: str) -> None:
        with contextlib.closing(connect(self.hosts)) as store:
            operator = Operator(store, "test", "", 0.0)
            name_cluster(operator, "nyc")
            add_site(operator, "fra", [gateway], "")
            apply_flow(operator, COPY.format(lake=self.lake))

    def wait_for(self, events: int) -> None:
        wanted = dict.fromkeys(range(events), 1)
        wait_for(
            lambda: lake_of(self.lake) == wanted, lambda: str(len(lake_of(self.lake))), seconds=120
        )


def start_gateway(fra: Hosts, port: int) -> None:
    command = [*node_command(fra.zk, "gw"), "--data", str(fra.folder / "gw"), "--role", "gateway"]
    log = fra.folder / "gateway.log"
    fra.others.append(start_logged(log, *command, "--port", str(port)))


@pytest.mark.long
@pytest.mark.skipif(not can_make_hosts(), reason="hosts need root and ip")
def test_reader_goes_on_at_the_replica_that_takes_over(tmp_path: Path) -> None:
    (tmp_path / "fra").mkdir()
    with contextlib.ExitStack() as stack:
        fra = stack.enter_context(running(tmp_path / "fra", 2))
        nyc = Reader(tmp_path / "nyc")
        stack.callback(nyc.stop)
        nyc.start_all()
        name_cluster(Operator(fra.store, "test", "", 0.0), "fra")
        web = Web(fra)
        web.begin(least=1)
        port = free_ports(4)
        start_gateway(fra, port)
        nyc.read(f"127.0.0.1:{port + 3}")
        web.send(500)
        nyc.wait_for(500)
        (name,) = fra.journals
        term = fra.journals[name].term

        collector = nyc.child("collector")
        assert collector is not None
        os.kill(collector, signal.SIGSTOP)  # the rest is read after the takeover
        web.send(500)
        web.first.kill()
        wait_for(lambda: fra.journals[name].primary == "n2", "no replica takes over")
        assert fra.journals[name].term > term
        os.kill(collector, signal.SIGCONT)
        nyc.wait_for(1000)

        web.first.start("ingest", "replica", label="role=web")
        wait_for(lambda: len(fra.journals) == 2, "no other journal is made")
        web.wait_in_sync()
        web.send(500)
        nyc.wait_for(1500)
