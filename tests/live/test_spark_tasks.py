"""Tasks are Spark's: on a standalone cluster it repeats, copies, moves and cancels them, and each
event is in the lake once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.test_spark_cluster import REQUIREMENTS
from tests.testkit.spark_cluster import StandaloneCluster
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.long

TOP = Path(__file__).parents[2]
FLOWS, EVENTS = 6, 10
DRIVER = """
import json, os, sys, threading, time
from pathlib import Path
import pyarrow.dataset as ds
from flumeng.agent.collector import spark
from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import parse_flow
from flumeng.config.spark import SparkOptions
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.journals.reader import JournalReader
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform import file_store
from tests.testkit.journal import numbered_events

folder, given = Path(sys.argv[1]), json.loads(sys.argv[2])
NAME = "web.n1.0.00000000"
journal = Journal.create(folder / "journal", NAME)
journal.append(numbered_events(0, given["flows"] * given["events"]))
journal.sync()
server = JournalServer("127.0.0.1", journals=lambda: {NAME: journal})
options = SparkOptions(master=given["master"], python=given["python"], conf=given["conf"])
session = spark.start(folder / "driver", options)

def work(number):
    flow = f"f{number}"
    filters = f"python: {{function: '{given['filter']}', options: {{folder: '{folder}'}}}}"
    text = (
        f"{{flow: {flow}, delivery: {given['delivery']}, "
        f"sources: [syslog: {{listen: '127.0.0.1:0'}}], filters: [{filters}], "
        f"sinks: [files: {{path: '{folder}/lake', shared: true}}]}}"
    )
    pipeline = SparkPipeline(session, parse_flow(text), TaskRevision(flow, "0", 1), JournalReader())
    staging = {root: f"{root}/_flumeng/{flow}" for root in pipeline.roots}
    for directory in staging.values():
        file_store.LOCAL.make_directory(directory)
    first = number * given["events"]
    piece = Range(NAME, first, first + given["events"])
    return Work(pipeline, (piece,), {NAME: server.address}, staging, 60.0, lambda _: None)

engine = SparkEngine(session)
works = [work(number) for number in range(given["flows"])]

def cancel():
    while not (folder / "cancel").exists():
        time.sleep(0.05)
    engine.cancel("batch")

threading.Thread(target=cancel, daemon=True).start()
try:
    outcomes = engine.write(works, "batch", "slot")
except Exception as error:
    outcomes = [error] * len(works)
errors = [str(of) for of in outcomes if isinstance(of, Exception)]
moves = [move for of in outcomes if not isinstance(of, Exception) for move in of[0].files]
for source, target in moves:
    os.rename(source, target)
lake = ds.dataset([target for _, target in moves]).to_table() if moves else None
bodies = sorted(lake["body"].to_pylist()) if moves else []
print(json.dumps([errors, [body.decode() for body in bodies]]), flush=True)
if given["stay"]:
    sys.stdin.read()
os._exit(0)
"""
BOTH_WORKERS = {
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "200ms",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    conf = {"spark.decommission.enabled": "true"}
    cluster = StandaloneCluster(tmp_path_factory.mktemp("spark"), REQUIREMENTS, conf=conf)
    cluster.start()
    yield cluster
    cluster.stop()


class Driver:
    """A driver in a process of its own: a process has one Spark session. It writes one shared job
    of ``FLOWS`` batches through the filter of that name."""

    def __init__(
        self,
        folder: Path,
        cluster: StandaloneCluster,
        function: str,
        conf: dict[str, str],
        *,
        delivery: str = "exactly-once",
        stay: bool = False,
    ) -> None:
        self._folder = folder
        given = {
            "master": cluster.address,
            "python": cluster.python,
            "conf": {**BOTH_WORKERS, "spark.executorEnv.PYTHONPATH": str(TOP), **conf},
            "filter": f"tests.live.slow_filter:{function}",
            "delivery": delivery,
            "flows": FLOWS,
            "events": EVENTS,
            "stay": stay,
        }
        (folder / "lake").mkdir()
        command = [sys.executable, "-c", DRIVER, str(folder), json.dumps(given)]
        self._process = subprocess.Popen(
            command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def calls(self) -> Counter[str]:
        """How often the filter got each batch, by its first event."""
        file = self._folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return Counter(line.split()[1] for line in lines)

    def await_calls(self, count: int) -> None:
        wait_for(lambda: self.calls.total() >= count, lambda: f"{self.calls}", seconds=400)

    def say(self, name: str) -> None:
        (self._folder / name).touch()

    def result(self) -> tuple[list[str], list[str]]:
        """The errors of batches, and the events in the lake."""
        assert self._process.stdout is not None
        errors, events = json.loads(self._process.stdout.readline())
        return errors, events

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(tmp_path: Path, cluster: StandaloneCluster) -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def start(function: str, conf: dict[str, str] | None = None, **more: object) -> Driver:
        drivers.append(Driver(tmp_path, cluster, function, conf or {}, **more))  # type: ignore[arg-type]
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()
    wait_for(lambda: not cluster.executors(), "executors outlive their application", seconds=60)


def require_each_once(events: list[str]) -> None:
    assert len(events) == FLOWS * EVENTS
    assert len(set(events)) == len(events)


def test_copy_of_a_slow_task_wins_and_each_event_is_in_the_lake_once(
    start: Callable[..., Driver],
) -> None:
    driver = start("be_slow_in_one_process", SPECULATION)
    errors, events = driver.result()
    assert errors == []
    require_each_once(events)
    assert max(driver.calls.values()) == 2, "no copy ran"


def test_at_most_once_writes_nothing_twice(start: Callable[..., Driver]) -> None:
    """The copy refuses to write, so the batches of its task fail."""
    driver = start("be_slow_in_one_process", SPECULATION, delivery="at-most-once")
    errors, events = driver.result()
    assert max(driver.calls.values()) == 1
    assert any("at-most-once allows no second write" in error for error in errors)
    assert len(events) == EVENTS * (FLOWS - len(errors))


def test_task_of_a_lost_executor_runs_again_and_each_event_is_there_once(
    start: Callable[..., Driver], cluster: StandaloneCluster
) -> None:
    driver = start("wait_for_release")
    driver.await_calls(2)
    assert cluster.kill_executor()
    driver.say("release")
    errors, events = driver.result()
    assert errors == []
    require_each_once(events)
    assert max(driver.calls.values()) == 2, "no task ran again"


def test_hanging_batch_is_interrupted_and_the_others_of_its_job_are_written(
    start: Callable[..., Driver],
) -> None:
    driver = start("hang_at_the_first_event")
    errors, events = driver.result()
    (error,) = errors
    assert error == "a batch for sinks[0].files has hung while filtering: no end after 10 s"
    assert len(set(events)) == len(events) == (FLOWS - 1) * EVENTS


def test_cancel_ends_the_code_of_a_job(start: Callable[..., Driver], tmp_path: Path) -> None:
    driver = start("wait_for_release", stay=True)
    driver.await_calls(2)
    driver.say("cancel")
    errors, events = driver.result()
    assert len(errors) == FLOWS
    assert events == []
    alive = tmp_path / "alive"

    def still() -> bool:
        before = alive.stat().st_size
        time.sleep(2)
        return alive.stat().st_size == before

    wait_for(still, "its filters run on", seconds=60)


def test_decommissioned_worker_ends_its_tasks_and_the_other_one_gets_the_rest(
    start: Callable[..., Driver], cluster: StandaloneCluster
) -> None:
    driver = start("wait_for_release", {"spark.decommission.enabled": "true"}, stay=True)
    driver.await_calls(2)
    os.kill(cluster.processes[cluster.workers[0]].pid, signal.SIGPWR)
    driver.say("release")
    errors, events = driver.result()
    assert errors == []
    require_each_once(events)
    wait_for(lambda: len(cluster.executors()) == 1, "its executor goes on")
    cluster.kill(cluster.workers[0])
    cluster.start_one(cluster.workers[0])
