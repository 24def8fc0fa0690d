"""``flumeng standalone`` as a user runs it: start, send, stop, start again, delete."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flumeng.metrics.table import METRICS
from flumeng.runtime.embedded import free_port

LINE = b"<13>1 2026-11-20T10:00:00Z h app - - - message\n"
FLUMENG = Path(sys.executable).with_name("flumeng")


class Standalone:
    """One cluster directory, started and stopped any number of times."""

    def __init__(self, folder: Path) -> None:
        self.state, self.lake = folder / "state", folder / "lake"
        self.port = free_port()
        self.flow = folder / "flow.yaml"
        self.flow.write_text(
            f"""
flow: web
sources: [{{syslog: {{listen: "127.0.0.1:{self.port}"}}}}]
delivery: exactly-once
batch: {{seconds: 0.2}}
filters:
  - parse: {{format: syslog}}
sinks: [{{files: {{path: "{self.lake}/dt=%Y-%m-%d"}}}}]
"""
        )
        self.hosts = self.metrics = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> None:
        command = [str(FLUMENG), "standalone", "--data", str(self.state), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.fullmatch(r"ready zk=(\S+) metrics=(\S+)\n", self.process.stdout.readline())
        assert found, "the first line is not the ready line"
        self.hosts, self.metrics = found[1], found[2]

    def stop(self) -> float:
        """SIGTERM; gives the seconds until it was gone."""
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


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    standalone = Standalone(tmp_path)
    yield standalone
    if standalone.process is not None and standalone.process.poll() is None:
        standalone.process.terminate()
        standalone.process.wait(timeout=120)


def eventually(holds: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


def name_of(sample: str) -> str:
    """The metric's, of one of its samples."""
    name, _, part = sample.rpartition("_")
    return name if part in ("bucket", "sum", "count") else sample


def test_state_survives_a_restart_and_a_deleted_flow_drains(standalone: Standalone) -> None:
    standalone.start("--flow", str(standalone.flow))
    standalone.send(1000)
    eventually(lambda: standalone.rows() == 1000, "the events did not reach the lake")
    counted = {("web", "collect"): 1000}
    eventually(
        lambda: standalone.scrape().get("flumeng_collect_events_total") == counted,
        "the collector did not count what it has made visible",
    )
    eventually(
        lambda: "flumeng_flow_spark_run_seconds_total" in standalone.scrape(),
        "the collector did not count what Spark's tasks used",
    )
    page = standalone.scrape()
    processes = {"standalone", "master", "node", "ingest.0", "collect"}
    assert {process for (process,) in page["process_threads"]} == processes
    assert page["flumeng_ingest_events_total"] == {("web", "syslog", "ingest.0"): 1000}
    assert page["flumeng_ingest_bytes_total"]["web", "syslog", "ingest.0"] == 1000 * len(LINE)
    assert page["flumeng_journal_sync_seconds_count"]["ingest.0",] > 0
    assert page["flumeng_master_flows"]["master",] == 1
    assert page["flumeng_collect_events_total"] == counted
    assert page["flumeng_collect_batch_events_sum"] == {("collect",): 1000}
    assert page["flumeng_collect_acks_total"]["collect",] >= 1
    assert page["flumeng_spark_process_resident_memory_bytes"]["collect",] > 1 << 26
    unseen = {metric.name for metric in METRICS} - {name_of(sample) for sample in page}
    assert unseen == {"flumeng_collect_failures_total"}, "nothing has failed, all else is told"
    assert set(page["flumeng_child_up"].values()) == {1}
    eventually(
        lambda: standalone.scrape()["flumeng_journal_unacked_events"] == {("web", "ingest.0"): 0},
        "the lag did not fall to 0",
    )
    assert standalone.ready() == "ok\n"
    standalone.send(500)
    time.sleep(0.5)
    assert standalone.stop() < 30

    standalone.start()
    standalone.send(1000)
    eventually(lambda: standalone.rows() == 2500, f"{standalone.rows()} rows after a restart")
    assert standalone.command("status").startswith("ok")

    standalone.command("flow", "delete", "web", "--yes")
    eventually(
        lambda: "web" not in standalone.command("flow", "list"), "the deleted flow did not go"
    )
    journals = standalone.state / "node" / "journals" / "0"
    eventually(lambda: not list(journals.iterdir()), "its journal stayed on disk")
    eventually(lambda: standalone.command("schema", "verify", "--json").strip() == "[]", "verify")
    assert standalone.rows() == 2500
    assert standalone.stop() < 30


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"JAVA_HOME": "/nowhere"}, "no java found in JAVA_HOME: install Java 17"),
        ({}, "cannot listen on 127.0.0.1:{port}"),
    ],
)
def test_what_stands_in_the_way_is_one_sentence(
    tmp_path: Path, environment: dict[str, str], complaint: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [FLUMENG, "standalone", "--data", tmp_path / "state", "--zk-port", str(port)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2
    assert complaint.format(port=port) in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 2


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [FLUMENG, "standalone", "--data", tmp_path / "file" / "state"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "cannot write to" in done.stderr
    assert "Traceback" not in done.stderr
