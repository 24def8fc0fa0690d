"""A flow reads another one: each has every event once, and neither waits for the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.live.one_host import Standalone, delivered
from tests.testkit.waiting import wait_for

TEXT = """
flow: copy
sources: [{{flow: {{name: web, discovery_seconds: 0.5}}}}]
delivery: exactly-once
batch: {{seconds: 0.2}}
sinks: [{{files: {{path: "{lake}"}}}}]
"""
FILTERED = """
flow: filtered
sources: [{{flow: {{name: web, after: filters, discovery_seconds: 0.5}}}}]
filters: [{{where: "team IN ('first', 'second')"}}]
batch: {{seconds: 0.2}}
sinks: [{{files: {{path: "{lake}"}}}}]
"""
FIRST = """filters:
  - set: {team: first}"""


@pytest.fixture
def cluster(standalone_of_all: Standalone, tmp_path: Path) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path)
    cluster.join(standalone_of_all)
    yield cluster
    cluster.leave()


@pytest.mark.long
def test_both_flows_have_each_event_once(cluster: Standalone, tmp_path: Path) -> None:
    lake, copy = tmp_path / "copy", tmp_path / "copy.yaml"
    copy.write_text(TEXT.format(lake=lake))

    def copied() -> set[tuple[str, int]]:
        files = delivered(lake)
        if not files:
            return set()
        rows = ds.dataset(files).to_table(columns=["journal", "seq"]).to_pylist()
        found = {(row["journal"], row["seq"]) for row in rows}
        assert len(found) == len(rows), "an event is there twice"
        return found

    cluster.send(1000)
    wait_for(lambda: cluster.rows() == 1000, "the first flow delivers nothing")
    said = cluster.command("flow", "apply", str(copy))
    assert "revision 1" in said, said
    cluster.send(500)
    wait_for(lambda: len(copied()) >= 500, "the second flow delivers nothing")
    cluster.command("flow", "pause", "copy")
    cluster.send(700)
    wait_for(lambda: cluster.rows() == 2200, "the first flow waits for the second")
    assert len(copied()) < 2200
    assert "is read by copy" in cluster.command("flow", "delete", "web")
    acks = json.loads(cluster.command("ack", "list", "--json"))
    journal = next(row["partition"] for row in acks if row["flow"] == "web")
    held = next(row for row in acks if row["flow"] == "copy")
    assert held["partition"] == f"{journal}@flow"
    assert held["offset"] <= 1500
    cluster.command("flow", "resume", "copy")
    wait_for(lambda: (journal, 2199) in copied(), "the second flow does not go on")
    found = copied()
    assert {seq for _, seq in found} == set(range(2200 - len(found), 2200))
    assert {name for name, _ in found} == {journal}

    cluster.command("flow", "delete", "copy")
    wait_for(lambda: "copy" not in cluster.command("flow", "list"), "copy stays")
    assert cluster.command("flow", "delete", "web") != ""
    wait_for(lambda: "web" not in cluster.command("flow", "list"), "web stays")


@pytest.mark.long
def test_flow_runs_the_filters_of_the_flow_that_it_reads(
    cluster: Standalone, tmp_path: Path
) -> None:
    lake, filtered = tmp_path / "filtered", tmp_path / "filtered.yaml"
    filtered.write_text(FILTERED.format(lake=lake))

    def seen() -> set[str]:
        files = delivered(lake)
        rows = ds.dataset(files).to_table(columns=["team"]).to_pylist() if files else []
        return {row["team"] for row in rows}

    text = cluster.flow.read_text()
    cluster.flow.write_text(text.replace("filters:", FIRST))
    said = cluster.command("flow", "apply", str(cluster.flow), str(filtered))
    assert "flow filtered revision 1" in said, said
    cluster.send(100)
    wait_for(lambda: seen() == {"first"}, "the filters of the other do not run")
    cluster.flow.write_text(text.replace("filters:", FIRST.replace("first", "second")))
    said = cluster.command("flow", "apply", str(cluster.flow))
    assert "flow filtered revision 2 (filters of web changed)" in said, said

    def sends_and_sees() -> bool:
        cluster.send(10)
        return "second" in seen()

    wait_for(sends_and_sees, "the new filters do not run")
