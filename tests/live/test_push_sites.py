"""Five sites far away, each a real ZooKeeper with a master and a node, and one tool that is run as
an operator runs it: through 150 ms in each direction, with replies that get lost, with sites that
are frozen, down or lose the session, and killed at any of its transactions.

The nodes ingest for real; a light node plays the collection with Spark. With
``FLUMENG_PUSH_KILLS=all`` the tool is killed at each transaction of an apply, not at a few.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flumeng.agent.standalone.embedded import free_port
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import set_setting
from flumeng.control.queries import overview
from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.fleet.inventory.files import read_inventory
from flumeng.fleet.inventory.rendering import render
from tests.testkit import light_nodes
from tests.testkit.counting import MULTI
from tests.testkit.daemons import start_logged
from tests.testkit.links import Links
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths
from zkschema.records import Push

pytestmark = pytest.mark.long

NAMES = ("fra", "lon", "nyc", "sin", "syd")
WAVES = {"canary": ("fra",), "second": ("lon", "nyc"), "rest": ("sin", "syd")}
FAR_SECONDS, NEAR_SECONDS = 0.15, 0.01
SESSION_SECONDS = 4.0
SETTLE_SECONDS = 20
DONE, FAILED, CONFLICT, CHANGES = 0, 1, 3, 5
PLAN_ROUND_TRIPS = 12
LOST_EVERY = 20
EXPIRED_SECONDS = 11.5
TRANSACTIONS_PER_SITE = 3
"""One records the pusher, one carries the changes, one ends the push."""
STEPS = range(1, TRANSACTIONS_PER_SITE * len(NAMES) + 1)
SEED = 7
KILLED_AT = (
    list(STEPS)
    if os.environ.get("FLUMENG_PUSH_KILLS") == "all"
    else sorted(random.Random(SEED).sample(STEPS, 2))
)
FLOW = """\
flow: web
sources: [syslog: {{listen: "127.0.0.1:${{{port}}}", protocol: tcp}}]
place: {{ingest: {{labels: {{kind: real}}}}, collect: {{labels: {{kind: light}}}}}}
filters: [where: "seq > {number}"]
sinks: [noop]
"""
BY_HAND = """\
flow: {name}
sources: [tail: {{paths: [/nowhere/at/all]}}]
place: {{ingest: {{labels: {{kind: real}}}}, collect: {{labels: {{kind: light}}}}}}
sinks: [noop]
"""


class Sites:
    """``stores`` are the test's own sessions, connected to the servers without the links."""

    def __init__(self, folder: Path, servers: Mapping[str, RealZooKeeper], links: Links) -> None:
        self.folder = folder
        self.inventory = folder / "inventory"
        self.servers = servers
        self.links = links
        self.stores: dict[str, Store] = {}
        self.ports = {name: free_port() for name in NAMES}
        self.taken = socket.create_server(("127.0.0.1", 0))
        self.numbers = count(1)

    def write_inventory(
        self,
        number: int,
        *,
        port: str = "port",
        settle: float = SETTLE_SECONDS,
        max_failures: int = 0,
    ) -> None:
        """Write the inventory: ``web`` with this condition; its port is the site's variable."""
        flows = self.inventory / "base" / "flows"
        flows.mkdir(parents=True, exist_ok=True)
        (flows / "web.yaml").write_text(FLOW.format(number=number, port=port))
        (self.inventory / "base" / "cluster.yaml").write_text(
            json.dumps({"nodes": {"real": {"labels": {"kind": "real"}}}})
        )
        content = {
            "inventory": "five",
            "variables": {"taken": str(self.taken.getsockname()[1])},
            "sites": {
                name: {
                    "zookeeper": f"{self.links[name].address}/c",
                    "variables": {"port": str(self.ports[name])},
                    "connect": 2.0,
                    "turn": 30.0,
                }
                for name in NAMES
            },
            "waves": [
                {
                    "wave": wave,
                    "sites": names,
                    "parallel": "all",
                    "max_failures": str(max_failures),
                    "settle": settle,
                }
                for wave, names in WAVES.items()
            ],
        }
        (self.inventory / "sites.yaml").write_text(json.dumps(content))

    def start(self, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "cli.main", "push", *map(str, words)]
        return subprocess.Popen(
            [*command, "--inventory", str(self.inventory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def push(self, *words: object, expect: int) -> str:
        return ended(self.start(*words), expect)

    def plan(self, *words: object, expect: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.push("plan", "--json", *words, expect=expect))
        return found

    def is_alike(self) -> bool:
        wanted = render(read_inventory(self.inventory))
        return all(
            self.revision(name) and self.text(name) == wanted[name]["flow/web"] for name in NAMES
        )

    def is_as_the_inventory(self, *names: str) -> None:
        """These sites hold and run the rendered inventory."""
        wanted = render(read_inventory(self.inventory))
        for name in names or NAMES:
            assert self.text(name) == wanted[name]["flow/web"], name
            node = self.stores[name].read(paths.node("real"))
            assert node is not None
            assert node.value.labels == {"kind": "real"}, name
            tasks = [task for task in overview.tasks(self.stores[name]) if task.flow == "web"]
            assert [task.state for task in tasks] == ["running"] * 2, (name, tasks)

    def text(self, name: str, flow: str = "web") -> str:
        record = self.stores[name].read(paths.flow(flow))
        assert record is not None
        text = self.stores[name].read(paths.revision(flow, str(record.value.revision)))
        assert text is not None
        return text.value.text

    def revision(self, name: str) -> int:
        record = self.stores[name].read(paths.flow("web"))
        return record.value.revision if record else 0

    def revisions(self) -> dict[str, int]:
        return {name: self.revision(name) for name in NAMES}

    def pushed(self, name: str) -> Push:
        found = self.stores[name].read(paths.push())
        assert found is not None
        return found.value

    def held(self, name: str) -> dict[str, bytes]:
        """All znodes that a push may change there, without the record of the pusher."""
        tops = ("/flows/", "/cluster", "/nodes/real", "/push/")
        others = ("/plan", "/status", "/assignment", "/story", "/partitions")
        return {
            path: data
            for path, data in self.stores[name].dump().items()
            if path.startswith(tops) and not any(part in path for part in others)
        }

    def by_hand(self, name: str, flow: str, text: str) -> None:
        apply_flow(Operator(self.stores[name], "hand", "", 0.0), text)
        assert self.text(name, flow) == text


class Transactions:
    """Calls ``act`` with the site before the ``number``-th transaction from now on is forwarded;
    ``sites`` lists the sites of all transactions so far."""

    def __init__(self, sites: Sites, number: int, act: Callable[[str], object]) -> None:
        self.sites: list[str] = []
        self._number = number
        self._act = act
        sites.links.on_request = self._on_request

    def _on_request(self, site: str, opcode: int) -> None:
        if opcode == MULTI:
            self.sites.append(site)
            if len(self.sites) == self._number:
                self._act(site)


def ended(process: subprocess.Popen[str], expect: int) -> str:
    printed, _ = process.communicate(timeout=5 * PATIENCE_SECONDS)
    assert process.returncode == expect, printed
    return printed


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    folder = tmp_path_factory.mktemp("sites")
    with ExitStack() as stack:
        servers = {name: RealZooKeeper(folder / name / "zookeeper") for name in NAMES}
        for server in servers.values():
            server.launch()
            stack.callback(server.kill)
        links = stack.enter_context(
            Links({name: server.port for name, server in servers.items()}, FAR_SECONDS)
        )
        sites = Sites(folder, servers, links)
        stack.callback(sites.taken.close)
        for name, server in servers.items():
            server.wait_answering()
            _start_site(sites, name, stack)
        wait_for(lambda: all(map(_is_ready, sites.stores.values())), "masters and nodes")
        yield sites
        for log in folder.glob("*/*.log"):
            assert "Traceback" not in log.read_text(), log.read_text()


def _start_site(sites: Sites, name: str, stack: ExitStack) -> None:
    """Start a master and a node, and a light node that plays the collector."""
    folder, hosts = sites.folder / name, f"{sites.servers[name].address}/c"
    store = connect(hosts, session_seconds=SESSION_SECONDS)
    stack.callback(store.close)
    sites.stores[name] = store
    tree.init(store)
    node = ["--zk", hosts, "--data", folder / "node", "--name", "real"]
    commands: list[list[object]] = [
        ["flumeng.control.master", hosts],
        ["flumeng.agent.node", *node],
    ]
    for module, *words in commands:
        process = start_logged(
            folder / f"{module}.log", sys.executable, "-m", *map(str, (module, *words))
        )
        stack.callback(process.wait, PATIENCE_SECONDS)
        stack.callback(process.terminate)
    stack.callback(light_nodes.start(hosts, folder, 0, SESSION_SECONDS).stop)


def _is_ready(store: Store) -> bool:
    return bool(store.children(paths.live_masters())) and sorted(
        store.children(paths.live_nodes())
    ) == ["light-0", "real"]


@pytest.fixture(autouse=True)
def healed(sites: Sites) -> Iterator[None]:
    yield
    sites.links.on_request = lambda _site, _opcode: None
    sites.links.delay_seconds = NEAR_SECONDS
    for name in NAMES:
        sites.links[name].heal()


def test_three_waves_succeed_over_150_ms_and_lost_replies(sites: Sites) -> None:
    sites.links.delay_seconds = FAR_SECONDS
    sites.write_inventory(next(sites.numbers))
    before = {name: sites.links[name].counts for name in NAMES}
    plan = sites.plan(expect=CHANGES)
    keys = {name: [c["key"] for c in site["changes"]] for name, site in plan["sites"].items()}
    assert keys == {name: ["flow/web", "label/real/kind"] for name in NAMES}
    for name in NAMES:
        assert sites.links[name].counts.since(before[name]).round_trips <= PLAN_ROUND_TRIPS
        sites.links[name].lose_replies(every=LOST_EVERY)
    seen = Transactions(sites, 0, lambda _site: None)
    sites.push("apply", "--yes", expect=DONE)
    sites.is_as_the_inventory()
    assert sites.revisions() == dict.fromkeys(NAMES, 1)
    for name in NAMES:
        with socket.create_connection(("127.0.0.1", sites.ports[name]), timeout=5):
            pass
    assert sorted(seen.sites) == sorted(NAMES * TRANSACTIONS_PER_SITE)
    in_waves = seen.sites[len(NAMES) :]
    assert in_waves == sorted(in_waves, key=wave_of), "a wave began before the one before ended"


def test_broken_flow_stops_in_the_canary_wave_and_is_rolled_back(sites: Sites) -> None:
    settled(sites)
    before = {name: sites.held(name) for name in NAMES}
    texts, revisions = {name: sites.text(name) for name in NAMES}, sites.revisions()
    sites.write_inventory(next(sites.numbers), port="taken", settle=3)
    printed = sites.push("apply", "--yes", expect=FAILED)
    assert "fra" in printed
    assert sites.text("fra") != texts["fra"]
    assert sites.pushed("fra").state == "failed"
    for name in NAMES[1:]:
        assert sites.held(name) == before[name], name
        assert sites.pushed(name).claim is None
    sites.push("rollback", "--yes", expect=DONE)
    assert sites.text("fra") == texts["fra"]
    assert sites.revisions() == {**revisions, "fra": revisions["fra"] + 2}
    for name in NAMES[1:]:
        assert sites.held(name) == before[name], name
    wait_for(lambda: state_of(sites, "fra") == ["running"] * 2, "the flow to run again")


def test_drift_is_shown_and_kept_or_overwritten_as_requested(sites: Sites) -> None:
    settled(sites)
    changed = sites.text("lon").replace("seq > ", "seq > 1")
    sites.by_hand("lon", "web", changed)
    sites.by_hand("sin", "own", BY_HAND.format(name="own"))
    plan = sites.plan(expect=CONFLICT)
    drift = {name: [d["key"] for d in site["drift"]] for name, site in plan["sites"].items()}
    assert drift == {name: ["flow/web"] if name == "lon" else [] for name in NAMES}
    assert "flow/web" in sites.push("drift", expect=CONFLICT)
    sites.push("apply", "--yes", expect=CONFLICT)
    sites.push("apply", "--yes", "--drift", "keep", expect=DONE)
    assert sites.text("lon") == changed
    sites.push("apply", "--yes", "--drift", "overwrite", expect=DONE)
    sites.is_as_the_inventory()
    assert sites.text("sin", "own") == BY_HAND.format(name="own")
    sites.plan(expect=DONE)


def test_frozen_down_and_expired_sites_are_reported_and_completed_later(sites: Sites) -> None:
    settled(sites)
    before = sites.revisions()
    sites.write_inventory(next(sites.numbers), max_failures=2)
    sites.links["lon"].freeze()
    sites.links["nyc"].refuse()
    timer = threading.Timer(EXPIRED_SECONDS, sites.links["syd"].heal)
    seen: list[str] = []

    def expire(site: str, opcode: int) -> None:
        """Hold the second transaction there until the session has expired."""
        seen.extend([site] * (opcode == MULTI))
        if seen.count("syd") == 2 and not timer.is_alive() and not timer.finished.is_set():
            sites.links["syd"].frozen = True
            timer.start()

    sites.links.on_request = expire
    sites.push("apply", "--yes", expect=FAILED)
    assert timer.ident, "nothing was written at syd"
    timer.join()
    sites.is_as_the_inventory("fra", "sin", "syd")
    away = ("lon", "nyc")
    assert sites.revisions() == {name: before[name] + (name not in away) for name in NAMES}
    for name in away:
        sites.links[name].heal()
    sites.push("apply", "--yes", expect=DONE)
    sites.is_as_the_inventory()
    assert sites.revisions() == {name: before[name] + 1 for name in NAMES}


def test_one_of_two_concurrent_operators_is_refused_by_name(sites: Sites) -> None:
    settled(sites)
    before = sites.revisions()
    sites.write_inventory(next(sites.numbers))
    writing = threading.Event()

    def wait(_site: str) -> None:
        writing.set()
        sites.links["fra"].frozen = True

    Transactions(sites, len(NAMES) + 1, wait)
    first = sites.start("apply", "--yes")
    assert writing.wait(PATIENCE_SECONDS)
    only = ("--only", "lon", "--only", "syd")
    printed = sites.push("apply", "--yes", *only, expect=CONFLICT)
    assert f"process {first.pid}" in printed
    sites.links["fra"].heal()
    ended(first, DONE)
    sites.is_as_the_inventory()
    assert sites.revisions() == {name: before[name] + 1 for name in NAMES}


@pytest.mark.parametrize("number", KILLED_AT)
def test_push_killed_at_a_transaction_is_continued_by_the_same_command(
    sites: Sites, number: int
) -> None:
    """Meanwhile somebody else makes a flow and changes a setting."""
    settled(sites)
    before = sites.revisions()
    sites.write_inventory(next(sites.numbers))
    processes: list[subprocess.Popen[str]] = []
    started = threading.Event()

    def kill(_site: str) -> None:
        assert started.wait(PATIENCE_SECONDS)
        processes[0].kill()

    Transactions(sites, number, kill)
    processes.append(sites.start("apply", "--yes"))
    started.set()
    ended(processes[0], -signal.SIGKILL)
    other = random.Random(SEED + number).choice(NAMES)
    sites.by_hand(other, f"own-{number}", BY_HAND.format(name=f"own-{number}"))
    set_setting(Operator(sites.stores[other], "hand", "", 0.0), "grace_seconds", str(number + 1))
    sites.push("apply", "--yes", expect=DONE)
    sites.is_as_the_inventory()
    assert sites.revisions() == {name: before[name] + 1 for name in NAMES}
    assert sites.text(other, f"own-{number}") == BY_HAND.format(name=f"own-{number}")
    cluster = sites.stores[other].read(paths.cluster())
    assert cluster is not None
    assert cluster.value.grace_seconds == number + 1
    pushed = [sites.pushed(name) for name in NAMES]
    assert {(push.state, push.claim) for push in pushed} == {("applied", None)}
    assert len({push.source.push for push in pushed if push.source}) == 1
    sites.plan(expect=DONE)


def settled(sites: Sites) -> None:
    """All sites run a working flow that equals the inventory's."""
    sites.links.delay_seconds = NEAR_SECONDS
    if sites.inventory.exists() and sites.is_alike():
        return
    sites.write_inventory(next(sites.numbers))
    sites.push("apply", "--yes", expect=DONE)
    sites.is_as_the_inventory()


def wave_of(site: str) -> int:
    return next(number for number, names in enumerate(WAVES.values()) if site in names)


def state_of(sites: Sites, name: str) -> list[str]:
    return [task.state for task in overview.tasks(sites.stores[name]) if task.flow == "web"]
