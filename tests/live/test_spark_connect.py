"""Flows on a real Spark Connect server, whose Python has no flumeng.

``FLUMENG_SPARK_EVENTS`` says how many events a flow has, and ``FLUMENG_CHAOS_SECONDS`` for how long
the server and the collector are killed again and again.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import set_setting
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import (
    Cluster,
    Watcher,
    chaos_seconds,
    chaos_seed,
    command_of,
    descendants,
    kill_at_random,
)
from tests.testkit.files import files_below
from tests.testkit.spark_connect import ConnectServer
from tests.testkit.waiting import wait_for
from zkschema import paths

pytestmark = pytest.mark.long

TOP = Path(__file__).parents[2]
TOKEN = "open-sesame-of-connect"
PARAMETERS = "/;token=${secret:spark}"
EVENTS = int(os.environ.get("FLUMENG_SPARK_EVENTS", "20000"))
SECONDS = 400
NO_ANSWER = "held: the Spark Connect server {} does not answer"
FLOW_TEXT = """
flow: chaos
sources: [generate: {{events_per_second: {rate}, count: {events}, bytes: 64}}]
delivery: exactly-once
filters: {filters}
sinks:
  - files: {{path: "{lake}", shared: true}}
"""
SQL = """
  - sql:
      query: SELECT e.*, t.team FROM events e LEFT JOIN teams t ON e.seq % 10 = t.number
      tables: {{teams: {{csv: "{folder}/teams.csv", schema: "number BIGINT, team STRING"}}}}
"""
WHERE = "[where: length(body) > 0]"
HUNG = """
import os, sys, threading, time
from pathlib import Path
from flumeng.agent.collector import connect, drivers
from flumeng.config.spark import SparkOptions

def sleep(batches):
    import time
    for batch in batches:
        time.sleep(600)
        yield batch

def run():
    try:
        with driver.job("job-0.1", "", "job-0"):
            session.range(2).mapInArrow(sleep, "id bigint").collect()
    except Exception as error:
        print(type(error).__name__, "CANCEL" in str(error))

session = connect.start(Path(sys.argv[1]), SparkOptions(master=sys.argv[2]))
driver = drivers.of(session)
print(driver.parallelism)
thread = threading.Thread(target=run)
thread.start()
time.sleep(5)
driver.cancel("job-0.2")
thread.join(1)
print(thread.is_alive())
driver.cancel("job-0.1")
thread.join(30)
print(thread.is_alive(), session.getTags(), session.range(3).count())
os._exit(0)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    modules = tmp_path_factory.mktemp("modules")
    (modules / "tests").symlink_to(TOP / "tests")  # flumeng itself is sent
    server = ConnectServer(tmp_path_factory.mktemp("connect"), token=TOKEN, modules=modules)
    server.start()
    yield server
    server.stop()


def environment(server: ConnectServer) -> dict[str, str]:
    master = f"{server.url}{PARAMETERS}"
    return {**os.environ, "FLUMENG_SECRET_SPARK": TOKEN, "FLUMENG_TEST_MASTER": master}


def test_batches_have_the_same_results_and_counts_as_with_an_own_driver(
    server: ConnectServer,
) -> None:
    """Lines that are joined, branches, dead letters and lookup tables, in Arrow and in SQL."""
    files = ("lines_spark", "branches", "spark_steps")
    tests = [f"tests/live/test_{name}.py" for name in files]
    pytest_command = [sys.executable, "-m", "pytest", "-o", "addopts=--import-mode=importlib", "-q"]
    done = subprocess.run(
        [*pytest_command, *tests, "-k", "lines or branches or letters or lookup"],
        env=environment(server), cwd=TOP, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_hung_job_ends_by_its_tag_and_no_other(server: ConnectServer, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HUNG, tmp_path / "session", f"{server.url}{PARAMETERS}"],
        env=environment(server), stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["2", "True", "UnknownException True", "False set() 3"]


class ClusterOnConnect(Cluster):
    def node_arguments(self, folder: str = "node", name: str = "n1") -> list[str]:
        policy = str(self.folder / "policy.yaml")
        return [*super().node_arguments(folder, name), "--policy", policy]


@pytest.fixture
def cluster(
    server: ConnectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    monkeypatch.setenv("FLUMENG_SECRET_SPARK", TOKEN)
    (tmp_path / "policy.yaml").write_text(f'spark: {{masters: ["{server.url}"]}}\n')
    cluster = ClusterOnConnect(tmp_path)
    cluster.start_all()
    yield cluster
    cluster.stop()


@pytest.mark.timeout(1200 + 3 * chaos_seconds())
@pytest.mark.parametrize("filters", [WHERE, SQL], ids=["arrow", "sql"])
def test_event_is_in_the_lake_once_while_the_server_is_killed_and_returns(
    server: ConnectServer, cluster: Cluster, tmp_path: Path, filters: str
) -> None:
    store, lake = connect(cluster.hosts), tmp_path / "lake"
    collect(server, cluster, store, filters)
    assert "java" not in commands_below(cluster.child("collector") or 0)
    shown = commands_below(cluster.tops["node"].pid)
    assert "secret:spark" in shown
    server.kill()
    told = NO_ANSWER.format(server.url)
    began = time.monotonic()
    wait_for(lambda: told in problems(store), lambda: str(problems(store)), seconds=SECONDS)
    print(f"told after {time.monotonic() - began:.1f} s")
    server.start()
    watcher, chance = Watcher(store), random.Random(chaos_seed())

    def restart() -> None:
        server.kill()
        time.sleep(chance.uniform(0, 2))
        server.start()

    def rest() -> None:
        watcher.see_progress()
        time.sleep(chance.uniform(0.0, 3.0))

    if chaos_seconds():
        until = time.monotonic() + chaos_seconds()
        kill_at_random(
            cluster, chance, ("collector",), {"server": restart}, times=1, until=until, rest=rest
        )
    watcher.settle(SECONDS, events=EVENTS)
    wait_for(lambda: told not in problems(store), lambda: str(problems(store)))
    found = each_once(lake)
    if filters == SQL:
        assert set(found["team"].to_pylist()) == {f"team-{n}" for n in range(10)}
    assert TOKEN not in shown + said(cluster)
    store.close()


def test_frozen_server_is_told_and_no_event_is_lost_or_doubled(
    server: ConnectServer, cluster: Cluster, tmp_path: Path
) -> None:
    """Frozen for a short time, which the collector outlives, and for one that ends it."""
    store = connect(cluster.hosts)
    collect(server, cluster, store, WHERE)
    told = f"Spark at {server.url} has not answered for 5 s"
    ended = f"the Spark Connect server {server.url} has not answered yet"
    for sign in (told, ended):
        server.freeze()
        began = time.monotonic()
        try:
            wait_for(lambda: sign in problems(store), lambda: problems(store), seconds=120)  # noqa: B023
        finally:
            server.thaw()
        print(f"{sign}: after {time.monotonic() - began:.1f} s")
        wait_for(lambda: not problems(store), lambda: problems(store), seconds=SECONDS)
    Watcher(store).settle(SECONDS, events=EVENTS)
    each_once(tmp_path / "lake")
    store.close()


def collect(server: ConnectServer, cluster: Cluster, store: Store, filters: str) -> None:
    """Run the flow on the server, until a file is in the lake."""
    folder = cluster.folder
    rows = "".join(f"{n},team-{n}\n" for n in range(10))
    (folder / "teams.csv").write_text(f"number,team\n{rows}")
    set_setting(Operator(store, "test", "", 0.0), "spark.master", f"{server.url}{PARAMETERS}")
    text = FLOW_TEXT.format(
        filters=filters.format(folder=folder),
        events=EVENTS,
        rate=round(EVENTS / (chaos_seconds() or 100)),
        lake=folder / "lake",
    )
    apply_flow(Operator(store, "test", "", 0.0), text)
    files = partial(files_below, folder / "lake", "*.parquet")
    wait_for(lambda: list(files()), lambda: said(cluster), seconds=SECONDS)


def each_once(lake: Path) -> pa.Table:
    found = ds.dataset(lake, format="parquet", exclude_invalid_files=False).to_table()
    assert found.num_rows == EVENTS
    texts = pc.extract_regex(pc.cast(found["body"], "string"), r"(?P<number>[0-9]{16})")
    assert pc.count_distinct(pc.struct_field(texts, "number")).as_py() == EVENTS
    return found


def commands_below(pid: int) -> str:
    return " ".join(word for child in descendants(pid) for word in command_of(child))


def problems(store: Store) -> str:
    """Everything that the node reports in its status."""
    record = store.read(paths.status("n1"))
    return "" if record is None else " ".join(record.value.problems.values())


def said(cluster: Cluster) -> str:
    return (cluster.folder / "node.log").read_text()


def test_missing_package_of_the_server_is_named(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    server = ConnectServer(tmp_path / "server", python=str(tmp_path / "bare/bin/python"))
    server.start()
    try:
        arguments = ["--zk", "127.0.0.1:1", "--node", "n1", "--data", str(tmp_path / "data")]
        policy = tmp_path / "policy.yaml"
        policy.write_text(f'spark: {{masters: ["{server.url}"]}}\n')
        arguments += ["--policy", str(policy), "--spark", f'{{"master": "{server.url}"}}']
        command = [sys.executable, "-m", "flumeng.agent.collector", *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if b"not answered yet" not in line:
                    break
            process.kill()
    finally:
        server.stop()
    assert b"cannot run batches: " in line
    assert b"install the packages of conf/spark/executors.txt" in line
