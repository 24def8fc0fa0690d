"""Commands that change how far a flow has delivered, on a cluster that runs: counts are exact."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.live.one_host import Standalone
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.long


@pytest.fixture
def patient(standalone_of_all: Standalone, tmp_path: Path) -> Iterator[Standalone]:
    """Its flow gathers events for an hour and retains acked ones for another hour."""
    patient = Standalone(tmp_path, seconds=3600.0)
    with patient.flow.open("a") as file:
        file.write("journal: {retain_seconds: 3600}\n")
    patient.join(standalone_of_all)
    yield patient
    patient.leave()


def becomes(cluster: Standalone, rows: int) -> None:
    """Files of acked events appear in the lake within a moment."""
    wait_for(lambda: cluster.rows() >= rows, f"{rows} rows are acked, and not in the lake")
    assert cluster.rows() == rows


def test_handoff_delivers_at_once_the_events_gathered_for_an_hourly_batch(
    patient: Standalone,
) -> None:
    for before in (0, 1000, 2000):
        patient.send(1000)
        wait_for(
            lambda: "1000 events behind" in patient.command("flow", "lag", "web"),
            "the events did not come in",
        )
        time.sleep(1.0)
        assert patient.rows() == before
        began = time.monotonic()
        said = patient.command("flow", "handoff", "web", "--wait")
        assert said.splitlines()[-1] == "delivered, in 1 partition", said
        assert time.monotonic() - began < 60
        becomes(patient, before + 1000)


def test_reset_repeats_and_skips_exactly_as_printed(patient: Standalone) -> None:
    def send(events: int) -> None:
        patient.send(events)
        wait_for(
            lambda: f" {events} events behind" in patient.command("flow", "lag", "web"),
            "the events did not come in",
        )

    def reset(point: str) -> str:
        patient.command("flow", "pause", "web")
        said = patient.command("flow", "reset", "web", "--to", point, "--yes")
        patient.command("flow", "resume", "web")
        assert patient.command("flow", "wait", "web", "--running", "--timeout", "120") == ""
        return said.splitlines()[-1]

    def deliver() -> None:
        said = patient.command("flow", "handoff", "web", "--wait")
        assert said.splitlines()[-1] == "delivered, in 1 partition", said

    send(1000)
    deliver()
    becomes(patient, 1000)
    assert "0 events skipped and 1000 repeated in 1 partition" in reset("earliest")
    deliver()
    becomes(patient, 2000)
    assert reset("latest") == "flow web is at these offsets already, in 1 partition"
    send(500)
    assert "500 events skipped and 0 repeated in 1 partition" in reset("latest")
    send(100)
    deliver()
    becomes(patient, 2100)
    journal = json.loads(patient.command("ack", "list", "--json"))[0]["partition"]
    assert "0 events skipped and 300 repeated in 1 partition" in reset(f"{journal}=1300")
    deliver()
    becomes(patient, 2400)
    assert patient.command("status").startswith("ok")


def test_batch_stays_near_its_configured_bytes(
    standalone_of_all: Standalone, tmp_path: Path
) -> None:
    """By the sizes that executors have counted: before the first batch an event is taken to have a
    KiB."""
    weighing = Standalone(tmp_path, seconds=3600.0)
    text = weighing.flow.read_text()
    weighing.flow.write_text(text.replace("seconds: 3600.0", "seconds: 3600.0, bytes: 1MiB"))
    weighing.join(standalone_of_all)
    weighing.send(12_000)
    wait_for(lambda: weighing.rows() > 6_000, "full batches wait")
    sizes = [ds.dataset(str(file)).count_rows() for file in weighing.lake.glob("dt=*/*")]
    assert 1024 < max(sizes) < 2**20 / 50, sizes
    weighing.leave()
