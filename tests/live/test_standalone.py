"""``flumeng standalone`` as a user runs it: start, send, stop, start again, delete."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flumeng.platform.metrics.table import METRICS
from tests.live.one_host import FLUMENG, LINE, Standalone
from tests.testkit.waiting import wait_for


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    standalone = Standalone(tmp_path)
    yield standalone
    if standalone.process is not None and standalone.process.poll() is None:
        standalone.process.terminate()
        standalone.process.wait(timeout=120)


def name_of(sample: str) -> str:
    """The metric's name of a sample."""
    name, _, part = sample.rpartition("_")
    return name if part in ("bucket", "sum", "count") else sample


def test_state_survives_a_restart_and_a_deleted_flow_drains(standalone: Standalone) -> None:
    standalone.start("--flow", str(standalone.flow))
    standalone.send(1000)
    wait_for(lambda: standalone.rows() == 1000, "the events did not reach the lake")
    counted = {("web", "collect"): 1000}
    wait_for(
        lambda: standalone.scrape().get("flumeng_collect_events_total") == counted,
        "the collector did not count what it has made visible",
    )
    wait_for(
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
    of_sites = ("flumeng_gateway", "flumeng_lease", "flumeng_link", "flumeng_collect_looped")
    assert {name for name in unseen if not name.startswith(of_sites)} == {
        "flumeng_collect_failures_total",
        "flumeng_sink_retries_total",
        "flumeng_collect_dead_letter_files_deleted_total",
        "flumeng_collect_branch_events_total",
        "flumeng_collect_filter_failed_total",
        "flumeng_collect_multiline_closed_total",
    }, "nothing has failed and no flow has such filters, branches or dead letters, all else is told"
    assert set(page["flumeng_child_up"].values()) == {1}
    wait_for(
        lambda: standalone.scrape()["flumeng_journal_unacked_events"] == {("web", "ingest.0"): 0},
        "the lag did not fall to 0",
    )
    assert standalone.ready() == "ok\n"
    standalone.send(500)
    time.sleep(0.5)
    assert standalone.stop() < 30

    standalone.start()
    standalone.send(1000)
    wait_for(lambda: standalone.rows() == 2500, f"{standalone.rows()} rows after a restart")
    assert standalone.command("status").startswith("ok")

    standalone.command("flow", "delete", "web", "--yes")
    wait_for(lambda: "web" not in standalone.command("flow", "list"), "the deleted flow did not go")
    journals = standalone.state / "node" / "journals" / "0"
    wait_for(lambda: not list(journals.iterdir()), "its journal stayed on disk")
    wait_for(lambda: standalone.command("schema", "verify", "--json").strip() == "[]", "verify")
    assert standalone.rows() == 2500
    assert standalone.stop() < 30


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        (
            {"JAVA_HOME": "/nowhere"},
            "no java found in JAVA_HOME, /nowhere: correct or unset JAVA_HOME",
        ),
        ({}, "cannot listen on 127.0.0.1:{port}"),
    ],
)
def test_startup_obstacle_is_reported_in_one_sentence(
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


def test_uncreatable_data_directory_is_reported_in_one_sentence(tmp_path: Path) -> None:
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
