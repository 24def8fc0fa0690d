"""``flumeng standalone`` in a directory of its own, with one flow, for tests that use it as a user
does."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyarrow.dataset as ds
from prometheus_client.parser import text_string_to_metric_families

from flumeng.agent.standalone.embedded import free_port
from tests.testkit.waiting import wait_for

FLOW = "web"
IDLE = "zz-idle"
LINE = b"<13>1 2026-11-20T10:00:00Z h app - - - message\n"
FLUMENG = Path(sys.executable).with_name("flumeng")


def hostile_directory(folder: Path) -> Path:
    """A directory with modules that shadow ours if Python searches it."""
    here = folder / "hostile"
    (here / "flumeng" / "node").mkdir(parents=True, exist_ok=True)
    (here / "json.py").write_text("raise SystemExit('imported from the working directory')")
    return here


class Standalone:
    """One cluster directory, started and stopped any number of times."""

    def __init__(self, folder: Path, seconds: float = 0.2) -> None:
        self.state, self.lake = folder / "state", folder / "lake"
        self.port = free_port()
        self.flow = folder / "flow.yaml"
        self.flow.write_text(
            f"""
flow: {FLOW}
sources: [{{syslog: {{listen: "127.0.0.1:{self.port}"}}}}]
delivery: exactly-once
batch: {{seconds: {seconds}}}
filters:
  - parse: {{format: syslog}}
sinks: [{{files: {{path: "{self.lake}/dt=%Y-%m-%d"}}}}]
"""
        )
        self.hosts = self.metrics = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> None:
        command = [str(FLUMENG), "standalone", "--data", str(self.state), *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=hostile_directory(self.state.parent)
        )
        assert self.process.stdout is not None
        found = re.fullmatch(r"ready zk=(\S+) metrics=(\S+)\n", self.process.stdout.readline())
        assert found, "the first line is not the ready line"
        self.hosts, self.metrics = found[1], found[2]

    def join(self, running: Standalone) -> None:
        """Apply the flow in the cluster that tests share, instead of starting one."""
        self.hosts, self.metrics, self.process = running.hosts, running.metrics, running.process
        apply = ("flow", "apply", str(self.flow))
        wait_for(lambda: "revision 1" in self.command(*apply), "an older flow's journals stay")
        said = self.command("flow", "wait", FLOW, "--running", "--timeout", "120")
        assert said == "", said

    def stay_ready(self) -> None:
        """Apply a flow without events, for which a node keeps its collector and worker while other
        flows pause and go."""
        flow = self.flow.with_name(f"{IDLE}.yaml")
        flow.write_text(
            f'flow: {IDLE}\nsources: [{{tail: {{paths: ["{flow.parent}/nothing/*"]}}}}]\n'
            f'sinks: [{{files: {{path: "{flow.parent}/idle"}}}}]\n'
        )
        said = self.command("flow", "apply", str(flow))
        assert "revision 1" in said, said
        said = self.command("flow", "wait", IDLE, "--running", "--timeout", "120")
        assert said == "", said

    def leave(self) -> None:
        """Delete all flows but one, so that the next test starts without flows."""

        def emptied() -> bool:
            found = json.loads(self.command("flow", "list", "--json"))
            flows = [flow["flow"] for flow in found if flow["flow"] != IDLE]
            for flow in flows:
                self.command("flow", "delete", flow, "--discard", "--yes")
            return not flows

        wait_for(emptied, "flows of this test stay")

    def stop(self) -> float:
        """SIGTERM; returns the seconds until it ended."""
        assert self.process is not None
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=120) == 0
        return time.monotonic() - started

    def send(self, count: int) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(LINE * count)

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [FLUMENG, *arguments, "--zk", self.hosts], capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def scrape(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Metric -> its labels' values, the process last -> value."""
        with urllib.request.urlopen(self.metrics, timeout=30) as answer:
            page = answer.read().decode()
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(page):
            for name, labels, value, *_ in family.samples:
                process = labels.pop("process")
                found.setdefault(name, {})[*labels.values(), process] = value
        return found

    def ready(self) -> str:
        with urllib.request.urlopen(self.metrics.replace("/metrics", "/readyz")) as answer:
            return str(answer.read().decode())

    def rows(self) -> int:
        files = [str(file) for file in self.lake.glob("dt=*/*.parquet")]
        return int(ds.dataset(files).count_rows()) if files else 0


def delivered(lake: Path) -> list[str]:
    """The published files of a lake. Directories of unfinished batches may go meanwhile."""
    found = (Path(folder) / name for folder, _, names in os.walk(lake) for name in names)
    return [
        str(file) for file in found if file.suffix == ".parquet" and "_flumeng" not in file.parts
    ]
