"""The how-to page about another site's flow, between two secured clusters."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow.dataset as ds
import pytest

from flumeng.platform.security.enrolment import open_authority
from flumeng.platform.security.expiry import utc_now
from tests.live.how_to import HowTo
from tests.live.one_host import FLUMENG, delivered
from tests.live.test_relay import free_ports
from tests.live.units import Units
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for

T = TypeVar("T")
WEB = """
flow: web-logs
sources: [generate: {events_per_second: 200}]
sinks: [noop]
"""
READER = """
flow: fra-web
sources: [flow: {{site: fra, name: web-logs, discovery_seconds: 0.5}}]
delivery: exactly-once
batch: {{seconds: 0.3}}
sinks: [files: {{path: "{lake}"}}]
"""


class Secured:
    """A cluster with identities of its own authority: ZooKeeper, a master, and nodes as units."""

    def __init__(self, folder: Path, name: str, nodes: dict[str, list[str]]) -> None:
        folder.mkdir()
        self.folder, self.name = folder, name
        self.units = Units(folder / "units")
        self.authority = folder / "ca"
        self.run("cluster", "secure", "init", self.authority, "--cluster", name, zk=False)
        for role in ("zookeeper", "master"):
            self.issue("cluster", "secure", "issue", role, role, "--host", "127.0.0.1")
        for node, roles in nodes.items():
            given = [word for role in roles for word in ("--role", role)]
            self.issue("node", "enroll", node, *given, "--host", "127.0.0.1", "--host", "localhost")
        self.zookeeper = RealZooKeeper(folder / "zk", folder / "zookeeper")
        self.zookeeper.start()
        self.run("schema", "init")
        members = [word for node in nodes for word in ("--member", f"node:{node}")]
        self.run("schema", "secure", *members)
        self.unit("master", "master")

    @property
    def environment(self) -> dict[str, str]:
        zk = self.zookeeper.address if hasattr(self, "zookeeper") else ""
        return {
            "FLUMENG_ZK": f"{zk}/flumeng",
            "FLUMENG_IDENTITY": str(self.authority / "admin"),
            "FLUMENG_AUTHORITY": str(self.authority),
        }

    def run(self, *words: object, zk: bool = True, may_fail: bool = False) -> str:
        more = self.environment if zk else {}
        done = subprocess.run(
            [FLUMENG, *map(str, words)],
            env=os.environ | more,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert may_fail or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def issue(self, *words: str) -> None:
        self.run(*words, "--authority", self.authority, zk=False)

    def unit(self, identity: str, *words: object) -> None:
        own = {**self.environment, "FLUMENG_IDENTITY": str(self.folder / identity)}
        self.units.add(identity, FLUMENG, *words, **own)
        self.units.start(identity)

    def node(self, name: str, *roles: str) -> None:
        given = [word for role in roles for word in ("--role", role)]
        data = self.folder / f"{name}-data"
        self.unit(name, "node", "run", "--data", data, "--name", name, *given)

    def apply(self, text: str) -> None:
        file = self.folder / "flow.yaml"
        file.write_text(text)
        self.run("flow", "apply", file)

    def stop(self) -> None:
        self.units.stop_all()
        self.zookeeper.kill()


def later_of(look: Callable[[], T]) -> T:
    """Look again after three seconds."""
    time.sleep(3)
    return look()


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[Secured, Secured]]:
    with ExitStack() as stack:
        fra = Secured(tmp_path / "at-fra", "fra", {"n1": ["ingest"]})
        stack.callback(fra.stop)
        nyc = Secured(tmp_path / "at-nyc", "nyc", {"n1": ["ingest", "collect"]})
        stack.callback(nyc.stop)
        yield fra, nyc


@pytest.mark.long
def test_read_another_site(sites: tuple[Secured, Secured], tmp_path: Path) -> None:
    """The reader has each event once, with its identity; a subscriber gets no other flow."""
    fra, nyc = sites
    port = free_ports(4)
    policy, lake = tmp_path / "policy.yaml", tmp_path / "lake"
    values = {
        "gw1.fra.example": "127.0.0.1",
        "9000": port,
        "9003": port + 3,
        "DATA": f"{tmp_path}/gw1-data --policy {policy}",
    }
    with HowTo("read-another-site", tmp_path, fra.environment, values) as page:
        text = (Path(__file__).parents[2] / "docs/how-to/read-another-site.md").read_text()
        policy.write_text(text.partition("policy file: `")[2].partition("`")[0])
        page.run("flumeng site name fra")
        page.run("flumeng node enroll")
        fra.run("schema", "secure", "--member", "node:gw1")
        page.shell.run(f"export FLUMENG_IDENTITY={tmp_path / 'gw1'}", 10)
        log = page.begin("flumeng node run")
        page.shell.run(f"export FLUMENG_IDENTITY={fra.authority / 'admin'}", 10)
        page.run("flumeng cluster secure issue")
        fra.node("n1", "ingest")
        fra.apply(WEB)
        given = nyc.folder / "n1" / "sites" / "fra"
        shutil.copytree(tmp_path / "nyc", given)
        (tmp_path / "sites").symlink_to(given.parent)
        for name, value in nyc.environment.items():
            page.shell.run(f"export {name}={value}", 10)
        page.run("flumeng site name nyc")
        page.run("flumeng site add fra")
        nyc.node("n1", "ingest", "collect")
        nyc.apply(READER.format(lake=lake))
        wait_for(
            lambda: delivered(lake),
            lambda: f"{nyc.run('status', may_fail=True)}{log.read_text()}",
            seconds=240,
        )
        page.run("flumeng flow lag")
        for name, value in fra.environment.items():
            page.shell.run(f"export {name}={value}", 10)
        assert "flow fra-web of site nyc" in page.run("flumeng cursor list")
        nyc.apply(READER.format(lake=tmp_path / "other").replace("fra-web", "no").replace(
            "web-logs", "secret"
        ))  # fmt: skip
        denied = "does not let subscriber nyc read the flow secret"
        wait_for(lambda: denied in nyc.run("task", "list"), lambda: nyc.run("task", "list"))
        add = ("site", "add", "fra", f"127.0.0.1:{port + 3}", "--authority", given / "ca.pem")
        rest_outside_of_a_window(nyc, add, lake)
        lose_the_right(nyc, policy)
        let_the_certificate_expire(fra, nyc, given)
    rows = ds.dataset(delivered(lake)).to_table(columns=["journal", "seq"]).to_pylist()
    found = {(row["journal"], row["seq"]) for row in rows}
    assert len(found) == len(rows) > 0
    assert {seq for _, seq in found} == set(range(len(rows)))
    assert all(journal.startswith("fra:web-logs.n1.") for journal, _ in found)


def rest_outside_of_a_window(nyc: Secured, add: tuple[object, ...], lake: Path) -> None:
    shown = partial(nyc.run, "status", may_fail=True)
    later, waits = utc_now() + timedelta(hours=2), "running (outside its window)"
    nyc.run(*add, "--at", f"{later:%H}:00-{later:%H}:30 UTC")
    wait_for(lambda: waits in shown(), shown, seconds=60)
    assert "it reads site fra at" in nyc.run("flow", "show", "fra-web")
    wait_for(lambda: delivered(lake) == later_of(lambda: delivered(lake)), shown, seconds=60)
    nyc.run(*add)
    wait_for(lambda: waits not in shown(), shown, seconds=60)


def lose_the_right(nyc: Secured, policy: Path) -> None:
    shown = partial(nyc.run, "status", may_fail=True)
    denied = "does not let subscriber nyc read the flow web-logs"
    policy.write_text("subscribers: {nyc: [other]}")
    wait_for(lambda: denied in shown(), shown, seconds=60)
    policy.write_text("subscribers: {nyc: [web-logs]}")
    wait_for(lambda: denied not in shown(), shown, seconds=60)


def let_the_certificate_expire(fra: Secured, nyc: Secured, given: Path) -> None:
    shown = partial(nyc.run, "status", may_fail=True)
    past = utc_now() - timedelta(days=10)
    open_authority(fra.authority).fill(given, ["subscriber"], "nyc", (), days=9, now=past)
    expired = "this subscriber's certificate for site fra expired at"
    wait_for(lambda: expired in shown(), shown, seconds=60)
