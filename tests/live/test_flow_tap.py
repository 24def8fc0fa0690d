"""`flumeng flow tap` on a real cluster: ZooKeeper, a master, a node with its ingest worker.

The server itself enforces which flows taps may read of it, and how fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Store, tree
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.journal.log.errors import TapsBusyError
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving import taps
from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.server import JournalServer
from tests.testkit.ingest_worker import flow_text
from tests.testkit.journal import numbered_events
from tests.testkit.waiting import PATIENCE_SECONDS, wait_for
from zkschema import paths

RATE = 400
FILTERS = """\
filters:
  - drop: [host]
  - where: "attrs['seed'] = '1'"
"""


@dataclass
class Tapped:
    """Flows `open` and `closed` on one node, whose policy allows taps of the first."""

    store: Store
    hosts: str
    node: int

    def address(self) -> str:
        found = self.store.read(paths.live_node("n"))
        return found.value.addresses[0] if found and found.value.addresses else ""

    def safe(self, flow: str) -> int:
        with JournalClient(self.address(), 30) as client:
            found = client.positions().items()
            return sum(position.safe for name, position in found if name.startswith(f"{flow}."))

    def tap(self, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cli.main", "flow", "tap", *map(str, words)],
            capture_output=True,
            text=True,
            env={**os.environ, "FLUMENG_ZK": self.hosts},
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def rows(self, *words: object) -> list[dict[str, Any]]:
        ran = self.tap("open", *words, "--json")
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture(scope="module")
def tapped(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tapped]:
    folder = tmp_path_factory.mktemp("tapped")
    hosts = f"{zookeeper}/tapped"
    policy = folder / "node.yaml"
    policy.write_text("tap: [open]\n")
    store = connect(hosts)
    tree.init(store)
    sources = [f"generate: {{events_per_second: {RATE // 2}, seed: {seed}}}" for seed in (0, 1)]
    opened = flow_text("open", *sources).replace("sinks:", f"{FILTERS}sinks:")
    for text in (opened, flow_text("closed", *sources)):
        apply_flow(Operator(store, "test", "", 0.0), text)
    master = subprocess.Popen([sys.executable, "-m", "flumeng.control.master", hosts])
    command = [sys.executable, "-m", "cli.main", "node", "run", "--zk", hosts, "--name", "n"]
    command += ["--data", str(folder / "data"), "--role", "ingest", "--policy", str(policy)]
    node = subprocess.Popen(command)
    found = Tapped(store, hosts, node.pid)
    try:
        wait_for(lambda: found.address() and found.safe("open") and found.safe("closed"))
        yield found
    finally:
        for process in (node, master):
            process.terminate()
            process.wait(timeout=PATIENCE_SECONDS)
        store.close()


@pytest.mark.long
def test_events_are_seen_at_each_step_and_no_more_than_the_rate(tapped: Tapped) -> None:
    began = tapped.safe("open")
    at = time.monotonic()
    received = tapped.rows("--at", "sources", "--rate", 5, "--limit", 30)
    assert len(received) == 30
    assert time.monotonic() - at >= (30 - 5) / 5, "5 at once, and then 5 a second"
    assert all("host" in row for row in received)
    assert all(row["seq"] >= began for row in received), "it begins with what is new"
    behind = tapped.rows("--at", "drop", "--where", "attrs['seed'] = '0'", "--limit", 3)
    assert [(row["attrs"]["seed"], "host" in row) for row in behind] == [("0", False)] * 3
    ends = tapped.rows("--limit", 5)
    assert [(row["attrs"]["seed"], "host" in row) for row in ends] == [("1", False)] * 5


def test_tap_changes_nothing_of_the_flow_and_leaves_an_audit_entry(tapped: Tapped) -> None:
    def written() -> dict[str, Any]:
        return {path: value for path, value in tapped.store.dump().items() if watched(path)}

    def watched(path: str) -> bool:
        return path.startswith(("/acks", "/flows", "/journals", "/commits", "/intents"))

    before, audits = written(), set(tapped.store.children(paths.audits()))
    began, at = time.monotonic(), tapped.safe("open")
    ran = tapped.tap("open", "--rate", 1000, "--seconds", 4, "--reason", "ticket 7")
    came, took = tapped.safe("open") - at, time.monotonic() - began
    assert ran.returncode == 0, ran.stderr
    assert came >= RATE * took / 4, "the source makes as many events as ever"
    assert written() == before
    (entry,) = set(tapped.store.children(paths.audits())) - audits
    kept = tapped.store.read(paths.audit(entry))
    assert kept is not None
    assert (kept.value.command, kept.value.reason) == ("flow tap open", "ticket 7")
    assert "@" in kept.value.who
    assert ran.stderr.splitlines()[-1].startswith("flumeng: ")
    assert " received, " in ran.stderr


def test_node_whose_policy_does_not_allow_a_tap_refuses_it(tapped: Tapped) -> None:
    denied = tapped.tap("closed", "--at", "sources")
    assert denied.returncode == 6
    assert denied.stdout == ""
    said = "this node's policy file does not allow taps of the flow closed: name it in `tap` there"
    assert said in denied.stderr


def test_invalid_arguments_are_refused_before_any_event_is_read(tapped: Tapped) -> None:
    for words, said in (
        (["open", "--at", "filters[7]"], "flow open has no step 'filters[7]'"),
        (["open", "--where", "m = 1"], '--where: there is no column "m"'),
        (["opne"], 'there is no flow "opne"'),
    ):
        ran = tapped.tap(*words)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert said in ran.stderr


def test_frozen_server_is_named_and_given_up(tapped: Tapped) -> None:
    found = Path(f"/proc/{tapped.node}/task/{tapped.node}/children").read_text().split()
    workers = [
        int(pid)
        for pid in found
        if b"flumeng.agent.ingest" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    address = tapped.address()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        ran = tapped.tap("open", "--seconds", 30)
    finally:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):  # its node may kill it in the end
                os.kill(pid, signal.SIGCONT)
    assert workers
    assert ran.returncode == 4
    assert f"{address} made no progress in 3 s" in ran.stderr
    assert "0 events shown" in ran.stderr


def test_many_taps_stay_within_the_byte_limit_of_a_server(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, "web.n1.0.0a1b2c3d")
    noise = numbered_events(0, 64)
    bodies = [os.urandom(65_536) for _ in range(64)]
    batch = noise.set_column(0, noise.schema.field(0), type(noise.column(0)).from_pandas(bodies))
    for _ in range(8):
        journal.append(batch)
    journal.sync()
    server = JournalServer("127.0.0.1", journals=lambda: {journal.id: journal})
    read = [0] * 6
    until = time.monotonic() + 3

    def look(number: int) -> None:
        with JournalClient(server.address, 30) as client:
            while time.monotonic() < until:
                with contextlib.suppress(TapsBusyError):
                    found = client.tap(journal.id, 0, 512)
                    read[number] += sum(events.nbytes for events in found)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(len(read))]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    server.stop()
    journal.close()
    window = 5 << 20  # a frame, which is never cut
    assert 0 < sum(read) <= taps.BYTES_A_SECOND * (took + 1) + window * taps.READS_AT_ONCE
