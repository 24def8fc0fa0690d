"""A cluster for pages of docs/how-to: a master, the node n1, and nodes that a test adds."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.live.how_to import HowTo
from tests.live.one_host import FLUMENG
from tests.live.units import Units
from tests.testkit.store import RealZooKeeper
from tests.testkit.waiting import wait_for

SESSION_SECONDS = 4
HERE = "flumeng-node"
"""The unit of the host on which a page's commands run."""


class Hosts:
    """Stop it in any case. Between tests ``clean`` leaves the master and n1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zookeeper = RealZooKeeper(folder / "zookeeper")
        self.zk = f"{self.zookeeper.address}/flumeng"
        self.units = Units(folder / "units")
        self._nodes: dict[str, str] = {}

    def start(self) -> None:
        self.zookeeper.start()
        self.command("schema", "init")
        self.master("flumeng-master")
        self.node("n1")

    def stop(self) -> None:
        self.units.stop_all()
        self.zookeeper.kill()

    def master(self, unit: str) -> None:
        options = ("--zk", self.zk, "--session-seconds", SESSION_SECONDS, "--name", unit)
        self.units.add(unit, FLUMENG, "master", *options)
        self.units.start(unit)

    def node(self, name: str, *options: object, unit: str = "") -> Path:
        """Add a node with a new data directory, wait until it is live, and return the directory.
        A directory of an earlier node may still hold the progress of sources of a deleted flow."""
        data = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        given = ("--zk", self.zk, "--data", data, "--name", name, *options)
        session = ("--session-seconds", SESSION_SECONDS)
        self._nodes[name] = unit = unit or f"node-{name}"
        self.units.add(unit, FLUMENG, "node", "run", *given, *session)
        self.units.start(unit)
        wait_for(lambda: self.is_live(name), lambda: self.units.log(unit).read_text())
        return data

    def is_live(self, name: str) -> bool:
        return any(row["live"] for row in self._rows("node") if row["node"] == name)

    def apply(self, text: str, folder: Path, file: str = "web.yaml", *, runs: bool = True) -> Path:
        """Apply a flow, and wait until it ``runs``."""
        path = folder / file
        path.write_text(text)
        said = wait_for(lambda: self._applied(path), "an older flow stays")
        if runs:
            self.command("flow", "wait", said.split()[1], "--running", "--timeout", "120")
        return path

    def _applied(self, path: Path) -> str:
        done = self.run("flow", "apply", path)
        assert done.returncode in (0, 3), done.stderr
        return done.stdout

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [FLUMENG, *map(str, words)],
            capture_output=True,
            text=True,
            env=os.environ | {"FLUMENG_ZK": self.zk},
            check=False,
        )

    def command(self, *words: object) -> str:
        """Run a command of flumeng that must succeed."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def journals(self, flow: str = "web") -> list[str]:
        names = (row["journal"] for row in self._rows("journal"))
        return sorted(name for name in names if name.startswith(f"{flow}."))

    def unacked(self, flow: str = "web") -> int:
        """Events in journals that the sinks do not have; -1 while a node does not answer."""
        rows = self._rows("journal")
        found = [row["unacked"] for row in rows if row["journal"].startswith(f"{flow}.")]
        return -1 if None in found else sum(found)

    def page(self, name: str, folder: Path, **values: object) -> HowTo:
        page = HowTo(name, folder, {"FLUMENG_ZK": self.zk}, values)
        self.units.install(page.bin)
        return page

    def clean(self) -> None:
        """Delete all flows, and all nodes but n1, and stop all masters but the first."""
        self.run("cluster", "maintenance", "off")
        self.run("schema", "verify", "--fix", "--yes")

        def are_gone() -> bool:
            flows = [row["flow"] for row in self._rows("flow")]
            for flow in flows:
                self.run("flow", "delete", flow, "--discard", "--yes")
            return not flows

        wait_for(are_gone, "flows stay")
        for unit in self.units.names:
            if unit.startswith("flumeng-master-"):
                self.units.stop(unit)
        for name in {row["node"] for row in self._rows("node")} - {"n1"}:
            if name in self._nodes:
                self.units.stop(self._nodes.pop(name))
            wait_for(lambda name=name: not self.is_live(name), f"{name} is live")  # type: ignore[misc]
            self.run("node", "decommission", name, "--discard", "--yes")

    def _rows(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of ``flumeng KIND list``."""
        rows: list[dict[str, Any]] = json.loads(self.command(kind, "list", "--json"))
        return rows
