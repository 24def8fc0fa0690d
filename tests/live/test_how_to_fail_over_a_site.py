"""A site dies in the middle of a stream; the other takes over, and gives its work back later."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import Cluster, descendants, numbers
from tests.live.how_to import HowTo
from tests.live.one_host import delivered
from tests.live.test_relay import ROLES, SiteCluster
from tests.testkit.cluster import acks_of
from tests.testkit.waiting import wait_for

CHUNK = 500
SOCKETS = shutil.ignore_patterns("*.sock")
START_SECONDS = 240
"""For a collector to start on a busy host."""
WEB = """
flow: web
sources: [{{syslog: {{listen: "127.0.0.1:{port}", protocol: tcp}}}}]
delivery: exactly-once
batch: {{seconds: 0.3}}
sinks: [{{files: {{path: "{lake}"}}}}]
"""
COPY = """
flow: copy
sources: [{{flow: {{site: {site}, name: web, discovery_seconds: 0.5}}}}]
delivery: exactly-once
batch: {{seconds: 0.3, events: 3000}}
sinks: [{{files: {{path: "{lake}"}}}}]
"""


class FailingCluster(SiteCluster):
    """A site with its own flow ``web``, and ``copy``, which reads ``web`` of the other site."""

    roles: Sequence[str] = ROLES

    def node_arguments(self, folder: str = "node", name: str = "n1") -> list[str]:
        given = [word for role in self.roles for word in ("--role", role)]
        own = Cluster.node_arguments(self, folder, name)
        return [*own, "--port", str(self.port), *given] if folder == "node" else own

    def meet(self, other: SiteCluster) -> None:
        with contextlib.closing(connect(self.hosts)) as store:
            operator = Operator(store, "test", "", 0.0)
            name_cluster(operator, self.name)
            add_site(operator, other.name, other.gateways, "")
            apply_flow(operator, WEB.format(port=self.syslog_port, lake=self.folder / "own"))

    def read(self, other: SiteCluster) -> None:
        with contextlib.closing(connect(self.hosts)) as store:
            text = COPY.format(site=other.name, lake=self.lake)
            apply_flow(Operator(store, "test", "", 0.0), text)

    def own(self) -> Counter[int]:
        """The events that the site's own flow has delivered."""
        files = delivered(self.folder / "own")
        return Counter(numbers(ds.dataset(files).to_table()["body"], "tcp")) if files else Counter()

    def accepted(self) -> int:
        with contextlib.closing(connect(self.hosts)) as store:
            return sum(acks_of(store, "web").values())

    def ask(self, *words: str) -> tuple[int, Any]:
        command = [sys.executable, "-m", "cli.main", *words, "--json", "--zk", self.hosts]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    def stop_all(self, *, cleanly: bool = False) -> None:
        """Kill all processes, or end the nodes first."""
        nodes = [self.tops["node"].pid, self.tops["gateway node"].pid]
        below = [pid for node in nodes for pid in descendants(node)]
        for kind in ("node", "gateway node") if cleanly else ():
            self.tops[kind].terminate()
            self.tops[kind].wait(timeout=60)
        for kind in ("node", "gateway node", "master", "zookeeper"):
            self.kill(kind)
        wait_for(lambda: not any(map(is_alive, below)), "children go on", seconds=60)

    def start_again(self) -> None:
        for kind in ("zookeeper", "master", "node", "gateway node"):
            self.start(kind)

    @property
    def state(self) -> list[Path]:
        """Return the directories that a backup of the site copies."""
        return [self.folder / "node", self.folder / "gateway", self.zookeeper.data]


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[FailingCluster, FailingCluster]]:
    with running(tmp_path, ROLES) as (fra, nyc):
        fra.read(nyc)
        yield fra, nyc


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[tuple[FailingCluster, FailingCluster]]:
    """Here fra only receives."""
    with running(tmp_path, ("ingest", "gateway")) as sites:
        yield sites


@contextlib.contextmanager
def running(folder: Path, roles: Sequence[str]) -> Iterator[tuple[FailingCluster, FailingCluster]]:
    fra, nyc = FailingCluster(folder / "fra", "fra"), FailingCluster(folder / "nyc", "nyc")
    fra.roles = roles
    with contextlib.ExitStack() as stack:
        for site, other in ((fra, nyc), (nyc, fra)):
            site.start_all()
            stack.callback(site.stop)
            site.start("gateway node")
            site.meet(other)
        nyc.read(fra)
        wait_for(lambda: fra.listens(fra.syslog_port), "no source", seconds=60)
        yield fra, nyc


@pytest.mark.long
def test_each_event_is_once_in_the_lake_after_failover_and_failback(
    sites: tuple[FailingCluster, FailingCluster], tmp_path: Path
) -> None:
    fra, nyc = sites
    values = {"web-logs": "web", "gw1.fra.example:9003": " ".join(fra.gateways)}
    environment = {"FLUMENG_ZK": nyc.hosts}
    with HowTo("fail-over-a-site", tmp_path, environment, values) as page:
        follow(page, fra, nyc)


def follow(page: HowTo, fra: FailingCluster, nyc: FailingCluster) -> None:
    page.run("flumeng flow stop")
    page.run("flumeng site add")
    fra.send(0, CHUNK)
    wait_for(
        lambda: len(nyc.copied()) == CHUNK, lambda: nyc.command("status"), seconds=START_SECONDS
    )

    collector = nyc.child("collector")
    assert collector is not None
    os.kill(collector, signal.SIGSTOP)  # the link is slow: nyc lags behind when fra dies
    fra.send(CHUNK, CHUNK)
    wait_for(lambda: fra.accepted() == 2 * CHUNK, lambda: fra.command("status"), seconds=60)
    wait_for(
        lambda: nyc.ask("site", "failover", "fra", "--dry-run")[1]["unread"] != [],
        "the last answer is not noted",
        pause_seconds=1.0,
    )
    fra.stop_all()
    os.kill(collector, signal.SIGCONT)
    before = nyc.copied()

    shown = page.run("flumeng site failover").splitlines()
    assert f"{CHUNK}\t{2 * CHUNK}\t{CHUNK}" in "\n".join(shown)
    assert "web\t-\tstopped\trunning" in shown
    page.run("flumeng site failover")
    wait_for(lambda: nyc.listens(nyc.syslog_port), "the standby flow does not start", seconds=60)
    nyc.send(2 * CHUNK, CHUNK)
    wait_for(lambda: len(nyc.own()) == CHUNK, lambda: nyc.command("status"), seconds=START_SECONDS)
    assert nyc.copied() == before

    code, why = nyc.ask("site", "failback", "fra", "--yes")
    assert (code, "start its gateways first" in why) == (3, True)
    fra.start_again()
    page.run("flumeng site failback", again=True)
    wait_for(lambda: not nyc.listens(nyc.syslog_port), "the standby flow goes on", seconds=60)
    wait_for(lambda: fra.listens(fra.syslog_port), "no source", seconds=60)
    fra.send(3 * CHUNK, CHUNK)
    everything = Counter(range(4 * CHUNK))
    for site in (nyc, fra):
        wait_for(
            lambda s=site: len(s.copied() + s.own()) == len(everything),  # type: ignore[misc]
            lambda s=site: f"{len(s.copied())}, {len(s.own())}: {s.command('status')}",  # type: ignore[misc]
            seconds=START_SECONDS,
        )
        assert site.copied() + site.own() == everything
    assert fra.copied() == Counter(range(2 * CHUNK, 3 * CHUNK)), "fra has what came meanwhile"


@pytest.mark.long
def test_site_restored_from_an_old_copy_doubles_nothing(
    sender: tuple[FailingCluster, FailingCluster], tmp_path: Path
) -> None:
    """ZooKeeper and journals of fra are of before the last events that nyc has read: a cold copy,
    of which fra itself cannot know that it is old."""
    fra, nyc = sender
    fra.send(0, CHUNK)
    wait_for(
        lambda: len(nyc.copied()) == CHUNK, lambda: nyc.command("status"), seconds=START_SECONDS
    )
    fra.stop_all(cleanly=True)
    for number, folder in enumerate(fra.state):
        shutil.copytree(folder, tmp_path / f"copy{number}", ignore=SOCKETS)
    fra.start_again()
    wait_for(lambda: fra.listens(fra.syslog_port), "no source", seconds=60)
    fra.send(CHUNK, CHUNK)
    wait_for(
        lambda: len(nyc.copied()) == 2 * CHUNK, lambda: nyc.command("status"), seconds=START_SECONDS
    )

    fra.stop_all()
    for number, folder in enumerate(fra.state):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / f"copy{number}", folder)
    fra.start_again()
    wait_for(lambda: fra.listens(fra.syslog_port), "no source", seconds=60)
    fra.send(3 * CHUNK, 2 * CHUNK)
    why = f"has other events from seq {CHUNK} on than before, but seq {2 * CHUNK} is acked"
    wait_for(
        lambda: why in nyc.command("task", "list"),
        lambda: nyc.command("task", "list") + nyc.command("status"),
        seconds=START_SECONDS,
        pause_seconds=1.0,
    )
    before = Counter(range(2 * CHUNK))
    assert nyc.copied() == before

    nyc.command("flow", "pause", "copy")
    with contextlib.closing(connect(nyc.hosts)) as store:
        (partition,) = acks_of(store, "copy")
    code, done = nyc.ask("flow", "reset", "copy", "--to", f"{partition}={CHUNK}", "--yes")
    assert code == 0, done
    nyc.command("flow", "resume", "copy")
    expected = before + Counter(range(3 * CHUNK, 5 * CHUNK))
    wait_for(
        lambda: nyc.copied() == expected,
        lambda: f"{len(nyc.copied())}: {nyc.command('task', 'list')}",
        seconds=START_SECONDS,
    )
