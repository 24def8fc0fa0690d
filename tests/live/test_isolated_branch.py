"""An isolated branch whose sink is down holds up no other part, and has each event once later
on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.live.one_host import IDLE, Standalone, delivered
from tests.testkit.waiting import wait_for

TEXT = """
flow: web
sources: [{{tcp: {{listen: "127.0.0.1:{port}"}}}}]
delivery: exactly-once
batch: {{seconds: 0.2}}
filters:
  - parse: {{format: json, schema: "n INT"}}
    on_error: dead-letter
dead_letters: {{files: {{path: "{folder}/dead", format: json, compression: none}}}}
sinks: [{{files: {{path: "{folder}/lake"}}}}]
"""
BRANCH = """
branches:
  - name: odd
    when: "n % 2 = 1"
    isolated: true
    sinks: [{{files: {{path: "{folder}/away/odd"}}}}]
"""


@pytest.fixture
def cluster(standalone_of_all: Standalone, tmp_path: Path) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path)
    cluster.flow.write_text(TEXT.format(port=cluster.port, folder=tmp_path))
    cluster.join(standalone_of_all)
    yield cluster
    cluster.leave()


@pytest.mark.long
def test_isolated_branch_with_a_failing_sink_holds_up_no_other_part(
    cluster: Standalone, tmp_path: Path
) -> None:
    sent = 0

    def send(count: int, bad: int = 0) -> None:
        nonlocal sent
        lines = [json.dumps({"n": n}) for n in range(sent, sent + count)] + ["broken"] * bad
        sent += count
        with socket.create_connection(("127.0.0.1", cluster.port)) as connection:
            connection.sendall("\n".join([*lines, ""]).encode())

    def there(name: str) -> list[int]:
        files = delivered(tmp_path / name)
        found = ds.dataset(files).to_table(columns=["n"])["n"].to_pylist() if files else []
        assert len(found) == len(set(found)), f"an event is twice in {name}"
        return sorted(found)

    def dead() -> int:
        files = (tmp_path / "dead").glob("**/*.json")
        return sum(file.read_bytes().count(b"\n") for file in files)

    def failing() -> str:
        return cluster.command("flow", "show", "web~odd")

    send(1000, bad=3)
    wait_for(lambda: len(there("lake")) == 1000, "nothing is delivered")
    away = tmp_path / "away"
    away.write_text("no directory: the sink is down")
    cluster.flow.write_text(cluster.flow.read_text() + BRANCH.format(folder=tmp_path))
    assert "collecting stops now" in cluster.command("flow", "pause", "web")
    said = cluster.command("flow", "apply", str(cluster.flow))
    assert "flow web~odd, an isolated part of flow web, revision 1" in said, said
    said = cluster.command("flow", "resume", "web")
    assert "with its isolated parts: web~odd" in said, said

    send(500, bad=4)
    wait_for(lambda: len(there("lake")) == 1500, "the flow waits for its isolated branch")
    wait_for(lambda: "Not a directory" in failing(), "nobody says that the sink is down")
    send(500)
    wait_for(lambda: len(there("lake")) == 2000, "the flow waits for its isolated branch")
    assert there("away") == []
    away.unlink()
    wait_for(lambda: len(there("away")) == 500, "the branch does not catch up")
    assert there("away") == list(range(1001, 2000, 2))

    cluster.command("flow", "pause", "web~odd")
    send(100, bad=2)
    wait_for(lambda: len(there("lake")) == 2100, "the flow waits for a part that is paused")
    assert len(there("away")) == 500
    said = cluster.command("flow", "lag", "web")
    assert "isolated part: flow web~odd is suspended, 10" in said, said
    said = cluster.command("flow", "delete", "web", "--wait", "--timeout", "120")
    assert "flow web is gone" in said, said
    assert there("away") == list(range(1001, 2100, 2))
    assert there("lake") == list(range(2100))
    assert dead() == 9
    left = json.loads(cluster.command("flow", "list", "--json"))
    assert [flow["flow"] for flow in left] == [IDLE]
