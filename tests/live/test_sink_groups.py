"""Groups of sinks with a real Spark and real receivers, which are killed, frozen and started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.outcome import Outcome
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.agent.standalone.embedded import free_port
from flumeng.config import check_flow
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.groups import sink as groups
from flumeng.connectors.groups.sink import of_group
from flumeng.connectors.journals.reader import JournalReader
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform import file_store
from flumeng.platform.errors import UnavailableError
from tests.live.receiver import Receiver, Reply, taken
from tests.testkit.collector import TASK

JOURNAL = "web.n1.0.00000000"
EVENTS = 60
HEAD = "flow: web\nsources: [syslog: {listen: '127.0.0.1:0'}]\n"


@dataclass
class Server:
    """A receiver in a process of its own."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir()

    @property
    def sink(self) -> str:
        return f'http: {{url: "http://127.0.0.1:{self.port}/events", timeout_seconds: 1}}'

    @property
    def seqs(self) -> list[int]:
        return sorted(event["seq"] for event in taken(self.folder))

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.live.receiver", str(self.folder), str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for _ in range(200):
            with suppress(OSError):
                HTTPConnection("127.0.0.1", self.port, timeout=1).connect()
                return
            time.sleep(0.05)
        raise TimeoutError

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """Two, which run."""
    both = [Server(tmp_path / name) for name in ("first", "second")]
    for server in both:
        server.start()
    yield both
    for server in both:
        server.kill()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group without known states of members, which does not wait for them."""
    monkeypatch.setattr(groups, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(groups, "AGAIN_SECONDS", 0.2)
    of_group.cache_clear()


class Runner:
    """Writes batches of events of a journal, and shows their files."""

    def __init__(self, spark: SparkSession, address: str, text: str) -> None:
        self.pipeline = SparkPipeline(spark, check_flow(HEAD + text), TASK, JournalReader())
        self._engine = SparkEngine(spark)
        self._address = address
        self._batch = 0
        self.needed: set[str] = set()
        """Roots of sinks that are in no group."""

    def write(self, start: int, end: int, *, splits: int = 3) -> Outcome:
        self._batch += 1
        staging = {root: f"{root}/_flumeng/{self._batch}" for root in self.pipeline.roots}
        assert self.pipeline.spare_roots == set(staging) - self.needed
        for root in self.needed:
            Path(staging[root]).mkdir(parents=True)
        ranges, where = [Range(JOURNAL, start, end)], {JOURNAL: self._address}
        work = Work(
            self.pipeline, ranges, where, staging, 60.0, lambda _: None, None, splits=splits
        )
        (outcome,) = self._engine.write([work], "job", "slot")
        if isinstance(outcome, list):
            assert not file_store.LOCAL.rename([move for one in outcome for move in one.files])
        return outcome

    def events(self, start: int, end: int, *, splits: int = 3) -> int:
        outcome = self.write(start, end, splits=splits)
        assert isinstance(outcome, list), outcome
        return outcome[0].events


Run = Callable[[str], Runner]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    journal = Journal.create(tmp_path / "journal", JOURNAL)
    columns = [
        pa.array([b"x%d" % n for n in range(EVENTS)], pa.binary()),
        pa.array([datetime(2026, 3, 1, tzinfo=UTC)] * EVENTS, pa.timestamp("us", "UTC")),
        pa.array(["192.0.2.1"] * EVENTS),
        pa.array([[("source", "tail")]] * EVENTS, pa.map_(pa.string(), pa.string())),
    ]
    journal.append(pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))
    journal.sync()
    server = JournalServer("127.0.0.1", journals=lambda: {JOURNAL: journal})
    yield lambda text: Runner(spark, server.address, text)
    server.stop()
    journal.close()


def group(kind: str, *members: str, backoff_seconds: float = 2) -> str:
    given = f"sinks: [{', '.join(members)}], backoff_seconds: {backoff_seconds}"
    return f"sinks: [{kind}: {{{given}}}]\n"


@pytest.mark.long
def test_next_member_gets_the_events_while_the_first_is_down(
    run: Run, servers: list[Server]
) -> None:
    first, second = servers
    runner = run(group("first_of", first.sink, second.sink, backoff_seconds=10))
    assert runner.events(0, 10) == 10
    assert (first.seqs, second.seqs) == (list(range(10)), [])
    first.kill()
    assert runner.events(10, 20) == 10
    first.start()
    assert runner.events(20, 30) == 10  # it is left alone still
    assert (first.seqs, second.seqs) == (list(range(10)), list(range(10, 30)))
    assert f"[0] http http://127.0.0.1:{first.port}/events: POST" in runner.pipeline.trouble
    time.sleep(10.1)
    assert runner.events(30, 40) == 10
    assert first.seqs == [*range(10), *range(30, 40)]
    assert runner.pipeline.trouble == ""


def test_frozen_member_costs_one_timeout(run: Run, servers: list[Server]) -> None:
    first, second = servers
    runner = run(group("first_of", first.sink, second.sink, backoff_seconds=30))
    runner.events(0, 10)
    first.signal(signal.SIGSTOP)
    began = time.monotonic()
    assert runner.events(10, 20) == 10
    assert 1 <= time.monotonic() - began < 6
    began = time.monotonic()
    assert runner.events(20, 30) == 10
    assert time.monotonic() - began < 1
    first.signal(signal.SIGCONT)
    assert second.seqs == list(range(10, 30))


def test_member_that_fails_in_the_middle_has_a_part_of_the_next_members_events(
    run: Run, servers: list[Server], tmp_path: Path
) -> None:
    first = Receiver(tmp_path / "failing")
    first.start()
    first.replies = [*[Reply(200)] * 3, *[Reply(503)] * 100]
    sink = f'http: {{url: "{first.url}", request_bytes: 1 KiB}}'
    assert run(group("first_of", sink, servers[1].sink)).events(0, 60, splits=1) == 60
    part = sorted(event["seq"] for event in taken(first.folder))
    assert part == list(range(len(part)))
    assert 0 < len(part) < 60
    assert servers[1].seqs == list(range(60))
    first.shutdown()
    first.server_close()


@pytest.mark.long
def test_twenty_unreachable_members_are_waited_for_and_named(
    run: Run, servers: list[Server]
) -> None:
    ports = [free_port() for _ in range(19)]
    away = [f'http: {{url: "http://127.0.0.1:{port}/"}}' for port in ports]
    servers[0].kill()
    for kind in ("first_of", "one_of"):
        runner = run(group(kind, *away, servers[0].sink))
        outcome = runner.write(0, 10, splits=1)
        assert isinstance(outcome, UnavailableError)
        for number in range(20):
            assert f"[{number}] http http://127.0.0.1:" in str(outcome)
        servers[0].start()
        assert runner.events(0, 10, splits=1) == 10
        assert servers[0].seqs == list(range(10))
        assert "[19]" not in runner.pipeline.trouble
        servers[0].kill()
        for file in servers[0].folder.iterdir():
            file.unlink()


def test_members_share_the_splits_and_take_over_those_of_a_failed_one(
    run: Run, servers: list[Server]
) -> None:
    first, second = servers
    runner = run(group("one_of", first.sink, second.sink, backoff_seconds=30))
    for start in (0, 10, 20):
        assert runner.events(start, start + 10) == 10
    shares = [len(server.seqs) for server in servers]
    assert sum(shares) == 30
    assert min(shares) >= 10
    second.kill()
    assert runner.events(30, 50) == 20
    assert runner.events(50, 60) == 10
    assert len(first.seqs) == shares[0] + 30
    assert sorted(first.seqs + second.seqs) == list(range(60))


def test_files_of_a_group_show_each_event_once(run: Run, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("lake", "spare")]
    members = [f"files: {{path: {path}, format: json, compression: none}}" for path in paths]
    runner = run(f"delivery: exactly-once\n{group('first_of', *members, backoff_seconds=0.1)}")
    assert runner.pipeline.shareable
    assert runner.events(0, 10) == 10
    paths[0].rename(tmp_path / "unmounted")
    paths[0].write_text("no directory")
    assert runner.events(10, 40) == 30
    assert "[0] files" in runner.pipeline.trouble
    paths[0].unlink()
    (tmp_path / "unmounted").rename(paths[0])
    time.sleep(0.2)
    assert runner.events(40, 60) == 20
    assert [shown(path) for path in paths] == [[*range(10), *range(40, 60)], list(range(10, 40))]


def test_event_refused_by_a_member_is_a_dead_letter_with_its_place(
    run: Run, tmp_path: Path, servers: list[Server]
) -> None:
    """With Spark SQL before the group."""
    servers[0].kill()
    picky = Receiver(tmp_path / "picky")
    picky.start()
    picky.replies = [Reply(200), Reply(422, body=b"no such field")]
    sink = f'http: {{url: "{picky.url}", request_bytes: 1 KiB}}'
    dead = f"dead_letters: {{files: {{path: {tmp_path}/dead, format: json, compression: none}}}}\n"
    text = f"filters: [sql: select * from events]\n{group('first_of', servers[0].sink, sink)}{dead}"
    runner = run(text)
    runner.needed = {f"{tmp_path}/dead"}
    assert not runner.pipeline.shareable
    runner.events(0, 60, splits=1)
    (file,) = (tmp_path / "dead").glob("part-*")
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert {letter["dead_place"] for letter in letters} == {"sinks[0].first_of[1].http"}
    accepted = [event["seq"] for event in taken(picky.folder)]
    assert sorted(accepted + [letter["seq"] for letter in letters]) == list(range(60))
    picky.shutdown()
    picky.server_close()


def shown(path: Path) -> list[int]:
    files = path.glob("part-*")
    return sorted(json.loads(line)["seq"] for one in files for line in one.read_text().splitlines())
