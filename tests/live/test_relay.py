"""Two sites read each other's flows: each event arrives once, whatever dies meanwhile."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import Cluster, child_of, kill_at_random, numbers, tcp_line
from tests.live.one_host import delivered
from tests.testkit.cluster import acks_of
from tests.testkit.daemons import module_of, start_logged
from tests.testkit.waiting import wait_for
from zkschema import paths

EVENTS = 20_000
CHUNK = 200
WEB = """
flow: web
sources: [{{syslog: {{listen: "127.0.0.1:{port}", protocol: tcp}}}}]
journal: {{max_bytes: 16777216}}
sinks: [noop]
"""
COPY = """
flow: copy
sources: [{{flow: {{site: {site}, name: web, discovery_seconds: 0.5}}}}]
delivery: exactly-once
batch: {{seconds: 0.3, events: 3000}}
sinks: [{{files: {{path: "{lake}"}}}}]
dead_letters: {{files: {{path: "{dead}", format: json}}}}
"""
LARGE_EVENTS, LARGE_BYTES = 4000, 6000
ROLES = ("ingest", "collect", "gateway")


class SiteCluster(Cluster):
    """A cluster with a node, and a node that is a gateway alone; addresses of gateways stay."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.name = name
        self.port, self.syslog_port, self.gateway_port = map(free_ports, (4, 1, 4))
        self.lake, self.dead = folder / "lake", folder / "dead"

    def node_arguments(self, folder: str = "node", name: str = "n1") -> list[str]:
        roles = [word for role in ROLES for word in ("--role", role)]
        return [*super().node_arguments(folder, name), "--port", str(self.port), *roles]

    def start(self, name: str) -> None:
        if name != "gateway node":
            super().start(name)
            return
        command = [*super().node_arguments("gateway", "gw"), "--role", "gateway"]
        command += ["--port", str(self.gateway_port)]
        log = self.folder / "gateway.log"
        self.tops[name] = start_logged(log, sys.executable, "-m", module_of("node"), *command)

    def child(self, kind: str) -> int | None:
        if kind != "gateway":
            return super().child(kind)
        nodes = [self.tops["node"].pid, self.tops["gateway node"].pid]
        found = [pid for node in nodes if (pid := child_of(node, module_of(kind))) is not None]
        return random.choice(found) if found else None

    @property
    def gateways(self) -> list[str]:
        return [f"127.0.0.1:{port + 3}" for port in (self.port, self.gateway_port)]

    def meet(self, other: SiteCluster) -> None:
        with contextlib.closing(connect(self.hosts)) as store:
            operator = Operator(store, "test", "", 0.0)
            name_cluster(operator, self.name)
            add_site(operator, other.name, other.gateways, "")
            apply_flow(operator, WEB.format(port=self.syslog_port))

    def read(self, other: SiteCluster) -> None:
        with contextlib.closing(connect(self.hosts)) as store:
            text = COPY.format(site=other.name, lake=self.lake, dead=self.dead)
            apply_flow(Operator(store, "test", "", 0.0), text)

    def send(self, first: int, count: int) -> None:
        with socket.create_connection(("127.0.0.1", self.syslog_port), timeout=30) as sender:
            sender.sendall(b"".join(map(tcp_line, range(first, first + count))))

    def listens(self, port: int) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    def copied(self) -> Counter[int]:
        files = delivered(self.lake)
        if not files:
            return Counter()
        return Counter(numbers(ds.dataset(files).to_table(columns=["body"])["body"], "tcp"))

    def command(self, *words: str) -> str:
        command = [sys.executable, "-m", "cli.main", *words, "--zk", self.hosts]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def free_ports(count: int) -> int:
    """The first of so many consecutive free ports."""
    while True:
        first = random.randrange(20_000, 30_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[SiteCluster, SiteCluster]]:
    fra, nyc = SiteCluster(tmp_path / "fra", "fra"), SiteCluster(tmp_path / "nyc", "nyc")
    with contextlib.ExitStack() as stack:
        for site, other in ((fra, nyc), (nyc, fra)):
            site.start_all()
            stack.callback(site.stop)
            site.start("gateway node")
            site.meet(other)
        for site, other in ((fra, nyc), (nyc, fra)):
            site.read(other)
            wait_for(lambda s=site: s.listens(s.syslog_port), "no source", seconds=60)  # type: ignore[misc]
        yield fra, nyc


@pytest.mark.long
def test_each_event_arrives_once_at_the_other_site_whatever_dies(
    sites: tuple[SiteCluster, SiteCluster],
) -> None:
    chance = random.Random()
    sent = 0

    def send_more() -> None:
        nonlocal sent
        for _ in range(EVENTS // 2 // 10 // CHUNK):
            if sent < EVENTS // 2:
                for site in sites:
                    site.send(sent, CHUNK)
                sent += CHUNK
        time.sleep(chance.uniform(0.5, 2.0))

    send_more()
    for site in sites:
        wait_for(lambda s=site: bool(s.copied()), f"nothing at {site.name}", seconds=120)  # type: ignore[misc]
    for site in sites:
        kill_at_random(site, chance, ["gateway", "collector"], rest=send_more)
    while sent < EVENTS // 2:
        send_more()
    expected = Counter(range(EVENTS // 2))
    for site in sites:
        wait_for(
            lambda s=site: len(s.copied()) == len(expected),  # type: ignore[misc]
            lambda s=site: f"{len(s.copied())} events at {s.name}: {s.command('status')}",  # type: ignore[misc]
            seconds=180,
        )
        assert site.copied() == expected, site.copied() - expected
        rows = json.loads(site.command("cursor", "list", "--json"))
        assert [row["reader"] for row in rows] == [f"flow copy of site {other(sites, site).name}"]
    for site in sites:
        with contextlib.closing(connect(site.hosts)) as store:
            cursor = f"{other(sites, site).name}:copy"
            ends = sum(acks_of(store, "web").values())
            assert ends == EVENTS // 2
            wait_for(
                lambda s=store, c=cursor, e=ends: sum(acks_of(s, "web", c).values()) == e,  # type: ignore[misc]
                "the lease does not follow the acks",
            )
            assert store.exists(paths.lease("web", cursor))


@pytest.mark.long
def test_slow_site_holds_up_no_sender_and_gets_a_counted_gap(
    sites: tuple[SiteCluster, SiteCluster],
) -> None:
    fra, nyc = sites
    fra.send(0, 100)
    wait_for(lambda: len(nyc.copied()) == 100, "nothing arrives", seconds=120)
    nyc.command("flow", "pause", "copy")
    with socket.create_connection(("127.0.0.1", fra.syslog_port), timeout=60) as sender:
        for number in range(100, LARGE_EVENTS):
            noise = base64.b64encode(os.urandom(LARGE_BYTES)).decode()
            sender.sendall(f"<13>1 2026-11-20T10:00:00Z s c - - - tcp={number} {noise}\n".encode())

    def accepted() -> bool:
        with contextlib.closing(connect(fra.hosts)) as store:
            return sum(acks_of(store, "web").values()) == LARGE_EVENTS

    wait_for(accepted, "the senders wait for the other site", seconds=120, pause_seconds=1.0)
    nyc.command("flow", "resume", "copy")

    def letters() -> list[dict[str, str]]:
        files = nyc.dead.glob("*.json.zst")
        texts = [pa.input_stream(str(file), "zstd").read().decode() for file in files]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    def missed() -> int:
        gaps = [json.loads(letter["body"]) for letter in letters()]
        return sum(gap["end"] - gap["start"] for gap in gaps)

    wait_for(
        lambda: missed() and len(nyc.copied()) + missed() == LARGE_EVENTS,
        lambda: f"{len(nyc.copied())} events and {missed()} missed: {nyc.command('status')}",
        seconds=120,
    )
    assert set(nyc.copied().values()) == {1}
    reason = letters()[0]["dead_reason"]
    assert reason.startswith("gap: the events of fra:web.n1."), reason
    assert "no longer keeps them: the journal was full, and its senders waited" in reason


def other(sites: tuple[SiteCluster, SiteCluster], site: SiteCluster) -> SiteCluster:
    return sites[0] if site is sites[1] else sites[1]
