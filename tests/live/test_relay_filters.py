"""A site reads another site's flow after its filters: the events that these keep arrive once, also
while the filters change and processes die."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import child_of
from tests.live.one_host import delivered
from tests.live.test_relay import WEB, SiteCluster
from tests.testkit.daemons import module_of
from tests.testkit.waiting import wait_for

FILTERS = """filters:
  - parse: {{format: syslog}}
  - where: "severity <= {severity}"
"""
COPY = """
flow: copy
sources: [{{flow: {{site: fra, name: web, after: filters, discovery_seconds: 0.5}}}}]
filters: [{{where: "severity <> 1"}}, {{drop: [structured]}}]
delivery: exactly-once
batch: {{seconds: 0.3, events: 3000}}
sinks: [{{files: {{path: "{lake}"}}}}]
"""
EVENTS = 4000
CHANGE_SECONDS = 3.0
"""Positions that a gateway sends later come with the new filters."""


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[SiteCluster, SiteCluster]]:
    fra, nyc = SiteCluster(tmp_path / "fra", "fra"), SiteCluster(tmp_path / "nyc", "nyc")
    with contextlib.ExitStack() as stack:
        for site, other in ((fra, nyc), (nyc, fra)):
            site.start_all()
            stack.callback(site.stop)
            site.meet(other)
        fra.start("gateway node")
        filter_with(fra, FILTERS.format(severity=3))
        with contextlib.closing(connect(nyc.hosts)) as store:
            apply_flow(Operator(store, "test", "", 0.0), COPY.format(lake=nyc.lake))
        wait_for(lambda: fra.listens(fra.syslog_port), "no source", seconds=60)
        yield fra, nyc


def filter_with(site: SiteCluster, filters: str) -> None:
    with contextlib.closing(connect(site.hosts)) as store:
        text = WEB.format(port=site.syslog_port) + filters
        apply_flow(Operator(store, "test", "", 0.0), text)


def send(site: SiteCluster, first: int, count: int) -> None:
    lines = [
        f"<{number % 8}>1 2026-11-20T10:00:00Z s c - - - tcp={number}\n"
        for number in range(first, first + count)
    ]
    with socket.create_connection(("127.0.0.1", site.syslog_port), timeout=30) as sender:
        sender.sendall("".join(lines).encode())


def arrived(site: SiteCluster) -> Counter[int]:
    files = delivered(site.lake)
    if not files:
        return Counter()
    rows = ds.dataset(files).to_table(columns=["message", "severity", "journal", "sites"])
    assert set(rows["sites"].to_pylist()) <= {"fra"}
    assert all(name.startswith("fra:web.") for name in rows["journal"].to_pylist())
    found = [int(text.partition("=")[2]) for text in rows["message"].to_pylist()]
    assert [number % 8 for number in found] == rows["severity"].to_pylist()
    return Counter(found)


def kill(site: SiteCluster, kind: str) -> None:
    if (process := site.child(kind)) is not None:
        os.kill(process, signal.SIGKILL)


def filter_processes(site: SiteCluster) -> list[int]:
    nodes = [site.tops["node"].pid, site.tops["gateway node"].pid]
    gateways = filter(None, (child_of(node, module_of("gateway")) for node in nodes))
    found = (child_of(gateway, module_of("filtering")) for gateway in gateways)
    return [process for process in found if process is not None]


@pytest.mark.long
def test_filtered_events_arrive_once_while_filters_change_and_processes_die(
    sites: tuple[SiteCluster, SiteCluster],
) -> None:
    fra, nyc = sites
    expected: Counter[int] = Counter()

    def arrives(first: int, *severities: int) -> None:
        expected.update(n for n in range(first, first + EVENTS) if n % 8 in severities)
        wait_for(
            lambda: len(arrived(nyc)) >= len(expected),
            lambda: f"{len(arrived(nyc))} of {len(expected)}: {nyc.command('status')}",
            seconds=180,
            pause_seconds=1.0,
        )
        assert arrived(nyc) == expected

    send(fra, 0, EVENTS)
    arrives(0, 0, 2, 3)
    send(fra, EVENTS, EVENTS // 2)
    for process in filter_processes(fra):
        os.kill(process, signal.SIGKILL)
    kill(fra, "gateway")
    kill(nyc, "collector")
    send(fra, EVENTS + EVENTS // 2, EVENTS // 2)
    arrives(EVENTS, 0, 2, 3)

    filter_with(fra, FILTERS.format(severity=5))
    time.sleep(CHANGE_SECONDS)
    send(fra, 2 * EVENTS, EVENTS)
    arrives(2 * EVENTS, 0, 2, 3, 4, 5)

    filter_with(fra, 'filters: [{sql: "SELECT * FROM events LIMIT 3"}]\n')
    time.sleep(CHANGE_SECONDS)
    send(fra, 3 * EVENTS, EVENTS)
    wait_for(
        lambda: "filters[0].sql may treat an event by the others" in nyc.command("status"),
        lambda: nyc.command("status"),
        seconds=60,
    )
    filter_with(fra, FILTERS.format(severity=0))
    arrives(3 * EVENTS, 0)
