"""An upgrade host by host: this flumeng runs beside one of a made-up next schema version.

The newer one is a copy of this one in which flows have a folder more. Both write one tree in a real
ZooKeeper, and every event is delivered exactly once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.testkit.daemons import start_logged
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for
from zkschema import table

pytestmark = pytest.mark.long

TOP = Path(__file__).parents[2]
FLOW = """
flow: {name}
sources: [{{tail: {{paths: ["{folder}/{name}.log"]}}}}]
delivery: exactly-once
batch: {{seconds: 0.3}}
place: {{collect: {{labels: {{host: {host}}}}}}}
sinks: [{{files: {{path: "{folder}/lake/{name}"}}}}]
"""
COLLECTED_ON = {"by-new": "n1", "by-old": "n2"}
NEXT = table.VERSION + 1
ROWS = f"""
all_notes = _folder("/notes", "bootstrap", "made up", access=Access(), since={NEXT})
notes = _folder("/notes/{{flow}}", "operators", "made up", access=Access(), since={NEXT})
"""
MIGRATION = f"""
import re


def _add_notes(tree):
    flows = [path.split("/")[2] for path in tree if re.fullmatch("/flows/[^/]+", path)]
    folders = ["/notes", *(f"/notes/{{flow}}" for flow in sorted(flows))]
    return [Set(path, None) for path in folders if path not in tree]


MIGRATIONS = (Migration({table.VERSION}, "flows have notes", _add_notes),)
"""


@pytest.fixture(scope="session")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a flumeng of the next schema version."""
    folder = tmp_path_factory.mktemp("newer")
    for package in ("flumeng", "cli", "zkschema"):
        shutil.copytree(TOP / package, folder / package)
    schema = folder / "zkschema"
    edit(schema / "table.py", f"\nVERSION = {table.VERSION}\n", f"\nVERSION = {NEXT}\n")
    edit(schema / "table.py", "\ndef find(", f"{ROWS}\n\ndef find(")
    edit(schema / "migrations.py", "\ndef path_to(", f"{MIGRATION}\n\ndef path_to(")
    edit(
        schema / "bootstrap.py",
        "table.intents(flow),\n    )\n    return tuple(",
        "table.intents(flow),\n        table.notes(flow),\n    )\n    return tuple(",
    )
    return folder


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1, (file, before)
    file.write_text(text.replace(before, after))


class Hosts:
    """Processes of both versions on one ZooKeeper. This flumeng is the old one."""

    def __init__(self, folder: Path, newer: Path) -> None:
        self.folder = folder
        self.newer = newer
        self.zookeeper = RealZooKeeper(folder / "zookeeper")
        self.zk = f"{self.zookeeper.address}/c"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.written: dict[str, int] = {}

    def start(self, name: str, *, old: bool) -> None:
        """A master, or a node by its name; it goes on in its data directory."""
        words = ["flumeng.control.master", self.zk]
        if name != "master":
            words = ["flumeng.agent.node", "--zk", self.zk]
            words += ["--data", str(self.folder / name), "--name", name]
        self.processes[name] = start_logged(
            self.folder / f"{name}.log", sys.executable, "-m", *words,
            cwd=self.folder, env=self.environment(old=old),
        )  # fmt: skip

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        process.terminate()
        process.wait(timeout=60)

    def environment(self, *, old: bool) -> dict[str, str]:
        return {**os.environ, **({} if old else {"PYTHONPATH": str(self.newer)})}

    def command(self, *words: object, old: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *map(str, words)],
            capture_output=True, text=True, check=False, cwd=self.folder, timeout=180,
            env={**self.environment(old=old), "FLUMENG_ZK": self.zk},
        )  # fmt: skip

    def done(self, *words: object, old: bool = False) -> str:
        done = self.command(*words, old=old)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def apply(self, name: str, *, old: bool, comment: str = "") -> None:
        file = self.folder / f"{name}.yaml"
        file.write_text(
            FLOW.format(name=name, folder=self.folder, host=COLLECTED_ON[name]) + comment
        )
        self.done("flow", "apply", file, old=old)

    def write(self, name: str, count: int) -> None:
        first = self.written.get(name, 0)
        self.written[name] = first + count
        with (self.folder / f"{name}.log").open("a") as file:
            file.writelines(f"{name} {number}\n" for number in range(first, first + count))

    def wait_delivered(self, nodes: int = 2) -> None:
        """Wait until each node has delivered every line once: all nodes of this host tail the
        file."""
        for name, count in self.written.items():
            wanted = sorted(nodes * [f"{name} {number}".encode() for number in range(count)])

            def is_delivered() -> bool:
                found = self.lake(name)  # noqa: B023  called in this round only
                late = f"{len(found)} of {len(wanted)} events of {name} are there"  # noqa: B023
                assert found == wanted or len(found) < len(wanted), late  # noqa: B023
                return found == wanted  # noqa: B023

            wait_for(is_delivered, f"not all of {len(wanted)} events of {name} are there")

    def znodes(self) -> list[str]:
        return list(json.loads(self.done("schema", "export"))["znodes"])

    def live(self) -> set[str]:
        nodes = json.loads(self.done("node", "list", "--json"))
        return {node["node"] for node in nodes if node["live"]}

    def lake(self, name: str) -> list[bytes]:
        folder = self.folder / "lake" / name
        if not folder.exists():
            return []
        found = ds.dataset(folder, format="parquet")  # without staged files
        return sorted(found.to_table(["body"])["body"].to_pylist()) if found.files else []


@pytest.fixture
def hosts(tmp_path: Path, newer: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path, newer)
    hosts.zookeeper.start()
    yield hosts
    for name in list(hosts.processes):
        hosts.stop(name)
    hosts.zookeeper.kill()


def test_hosts_are_upgraded_one_by_one_and_the_tree_at_last(hosts: Hosts) -> None:
    hosts.done("schema", "init", old=True)
    hosts.start("master", old=True)
    hosts.start("n1", old=True)
    hosts.start("n2", old=False)
    wait_for(lambda: hosts.live() == {"n1", "n2"}, "both are there")
    for node in ("n1", "n2"):
        hosts.done("node", "label", node, f"host={node}", old=node == "n1")
    for flow, old in (("by-new", False), ("by-old", True)):
        hosts.apply(flow, old=old)
        hosts.write(flow, 500)
    for flow, old in (("by-new", True), ("by-old", False)):
        hosts.done("flow", "wait", flow, "--running", "--timeout", 120, old=old)
    hosts.wait_delivered()
    tasks = json.loads(hosts.done("task", "list", "--json"))
    assert {(task["flow"], task["node"]) for task in tasks if task["kind"] == "ingest"} == {
        (flow, node) for flow in ("by-new", "by-old") for node in ("n1", "n2")
    }
    assert json.loads(hosts.done("schema", "export"))["schema"] == table.VERSION

    hosts.stop("master")
    hosts.start("master", old=False)
    hosts.apply("by-new", old=True, comment="# again\n")
    hosts.apply("by-old", old=False, comment="# again\n")
    for flow in hosts.written:
        hosts.write(flow, 500)
        hosts.done("flow", "wait", flow, "--rolled-out", "--timeout", 120)
    hosts.wait_delivered()
    refused = hosts.command("schema", "migrate", "--finish", "--yes")
    assert (refused.returncode, "node n1 (flumeng" in refused.stderr) == (3, True), refused.stderr
    assert hosts.done("schema", "verify", old=True) == hosts.done("schema", "verify")
    assert not [path for path in hosts.znodes() if path.startswith("/notes")]

    hosts.stop("n1")
    hosts.start("n1", old=False)
    wait_for(lambda: hosts.live() == {"n1", "n2"}, "n1 is back")
    hosts.done("schema", "migrate", "--finish", "--yes", "--reason", "all are upgraded")
    assert json.loads(hosts.done("schema", "export"))["schema"] == NEXT
    assert {"/notes", "/notes/by-new", "/notes/by-old"} < set(hosts.znodes())
    for flow in hosts.written:
        hosts.write(flow, 500)
        hosts.done("flow", "wait", flow, "--running", "--timeout", 120)
    hosts.wait_delivered()
    assert hosts.done("schema", "verify") == f"every znode conforms to schema version {NEXT}\n"
    late = hosts.command("flow", "list", old=True)
    assert (late.returncode, f"schema version {NEXT}" in late.stderr) == (2, True), late.stderr


def test_cluster_of_before_the_first_release_is_exported_and_imported(hosts: Hosts) -> None:
    """Its schema version is 8. Its nodes go on in their journals: every event comes once."""
    hosts.done("schema", "init", old=True)
    hosts.start("master", old=True)
    hosts.start("n1", old=True)
    wait_for(lambda: hosts.live() == {"n1"}, "it is there")
    hosts.done("node", "label", "n1", "host=n1", old=True)
    hosts.apply("by-new", old=True)
    hosts.write("by-new", 500)
    hosts.done("flow", "wait", "by-new", "--running", "--timeout", 120, old=True)
    hosts.wait_delivered(nodes=1)
    for name in ("n1", "master"):
        hosts.stop(name)
    exported = json.loads(hosts.done("schema", "export", old=True))
    exported["schema"] = exported["znodes"]["/schema"]["version"] = table.UNRELEASED
    file = hosts.folder / "exported.json"
    file.write_text(json.dumps(exported))
    hosts.zk = f"{hosts.zookeeper.address}/another"
    hosts.done("schema", "import", file, old=True)
    for name in ("master", "n1"):
        hosts.start(name, old=True)
    hosts.write("by-new", 500)
    hosts.wait_delivered(nodes=1)
    verified = hosts.done("schema", "verify", old=True)
    assert verified == f"every znode conforms to schema version {table.VERSION}\n"
