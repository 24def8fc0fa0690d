"""The life of dead letters on a cluster that runs: they die, are listed, and are replayed once."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tests.live.one_host import Standalone
from tests.live.receiver import Receiver, Reply
from tests.testkit.daemons import children_of
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.long

TEXT = """
flow: web
sources: [tcp: {{listen: "127.0.0.1:{port}"}}]
delivery: exactly-once
batch: {{seconds: 0.2, events: 500}}
filters:
  - parse: {{format: json, schema: "n {kind}, alarm BOOLEAN"}}
    on_error: dead-letter
sinks: [files: {{path: "{lake}"}}]
branches:
  - name: alarms
    when: "alarm"
    sinks: [http: {{url: "{url}", idempotent: true}}]
dead_letters: {{files: {{path: "{dead}", format: {form}}}}}
"""
GOOD, BAD, ALARMS = 2_000, 6_000, 10


class Cluster(Standalone):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.dead = folder / "dead"
        self.receiver = Receiver(folder / "received")
        self.receiver.start()
        self.say("BIGINT", "json")

    def say(self, kind: str, form: str) -> None:
        self.flow.write_text(
            TEXT.format(port=self.port, lake=self.lake, dead=self.dead, url=self.receiver.url,
                        kind=kind, form=form)
        )  # fmt: skip

    def send_lines(self, lines: list[str]) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall("".join(f"{line}\n" for line in lines).encode())

    def events(self, column: str) -> list[Any]:
        """Of all events that are in the lake."""
        files = [str(file) for file in self.lake.glob("*.parquet")]
        found = []
        for file in files:
            found += ds.dataset(file).to_table(columns=[column])[column].to_pylist()
        return found

    def listed(self, *words: str) -> Any:
        return json.loads(self.command("flow", "dead", "list", "web", "--json", *words))

    def collector(self) -> int:
        assert self.process is not None
        for pid in _below(self.process.pid):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"flumeng.agent.collector" in command and b"python" in command.partition(b"\0")[0]:
                return pid
        raise AssertionError("no collector runs")


def _below(pid: int) -> Iterator[int]:
    for child in children_of(pid):
        yield child
        yield from _below(child)


@pytest.fixture
def cluster(standalone_of_all: Standalone, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    cluster.join(standalone_of_all)
    yield cluster
    cluster.leave()


def test_letters_are_listed_and_replayed_once_while_processes_are_killed(cluster: Cluster) -> None:
    cluster.receiver.replies = [Reply(422, body=b"no such channel")] * 1000
    good = [json.dumps({"n": n, "alarm": n < ALARMS}) for n in range(GOOD)]
    bad = [json.dumps({"n": f"x{n}"}) for n in range(BAD)]
    cluster.send_lines([*good, *bad])
    wait_for(lambda: len(cluster.events("seq")) == GOOD, "the good events do not come")
    wait_for(lambda: cluster.listed()["letters"] == BAD + ALARMS, "dead letters are missing")
    kinds = {kind["place"]: kind["letters"] for kind in cluster.listed()["kinds"]}
    assert kinds == {"filters[0].parse": BAD, "branches[alarms].sinks[0].http": ALARMS}
    shown = cluster.command("flow", "dead", "show", "web", "--place", "branches", "--limit", "1")
    assert "no such channel" in shown

    cluster.receiver.replies = []
    cluster.say("STRING", "json")
    assert "revision 2" in cluster.command("flow", "apply", str(cluster.flow))
    said = cluster.command("flow", "dead", "replay", "web", "--place", "filters")
    assert f"flow web-replay-1 replays {BAD} dead letters" in said, said
    wait_for(lambda: len(cluster.events("seq")) > GOOD, "nothing is replayed")
    os.kill(cluster.collector(), signal.SIGKILL)
    assert len(cluster.events("seq")) < GOOD + BAD, "killed too late to mean anything"
    said = cluster.command("flow", "wait", "web-replay-1", "--stopped", "--timeout", "240")
    assert said == "", said
    wait_for(lambda: len(cluster.events("seq")) >= GOOD + BAD, "not all is replayed", seconds=10)
    seqs = cluster.events("seq")
    assert sorted(seqs) == list(range(GOOD + BAD)), "each once, as the event that it was"
    replayed = dict(zip(seqs, cluster.events("replayed"), strict=True))
    assert {seq for seq, again in replayed.items() if again} >= set(range(GOOD, GOOD + BAD))
    assert cluster.listed()["replayed"] == BAD

    assert "no such dead letters" in cluster.command(
        "flow", "dead", "replay", "web", "--dead-reason", "other"
    )
    said = cluster.command("flow", "dead", "replay", "web")
    assert f"flow web-replay-2 replays {ALARMS} dead letters" in said, said
    assert cluster.command("flow", "wait", "web-replay-2", "--stopped", "--timeout", "120") == ""
    taken = [line for file in cluster.receiver.folder.glob("[!.]*")
             for line in file.read_bytes().splitlines()]  # fmt: skip
    assert sorted(json.loads(line)["seq"] for line in taken) == list(range(ALARMS))
    for name in ("web-replay-1", "web-replay-2"):
        cluster.command("flow", "delete", name)
        assert cluster.command("flow", "wait", name, "--gone", "--timeout", "60") == ""
    said = cluster.command("flow", "dead", "purge", "web", "--replayed", "--yes")
    assert f"flow web: {BAD + ALARMS} dead letters in " in said, said
    assert cluster.listed()["letters"] == 0
