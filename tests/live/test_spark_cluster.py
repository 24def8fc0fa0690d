"""A flow on a real standalone cluster of Spark: two workers whose Python has no flumeng.

Executors come and go with the work, which joins the events with a table. Some executors, a worker
and the driver are killed at random moments, and each event is in the lake once.
``FLUMENG_SPARK_EVENTS`` says how many events, ``FLUMENG_CHAOS_SECONDS`` for how long at least: then
Spark's master is killed too, and the events go into Elasticsearch as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyspark
import pytest

from flumeng.agent.node.protocol import decode
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import set_setting
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import Cluster, Watcher, chaos_seconds, chaos_seed, kill_at_random
from tests.testkit.files import files_below
from tests.testkit.servers.elasticsearch import RealElasticsearch
from tests.testkit.spark_cluster import StandaloneCluster
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.long

REQUIREMENTS = Path("conf/spark/executors.txt")
EVENTS = int(os.environ.get("FLUMENG_SPARK_EVENTS", "40000"))
FLOW_TEXT = """
flow: chaos
sources: [generate: {{events_per_second: {rate}, count: {events}, bytes: 64}}]
delivery: exactly-once
filters:
  - sql:
      query: SELECT e.*, t.team FROM events e LEFT JOIN teams t ON e.seq % 10 = t.number
      tables: {{teams: {{csv: "{teams}", schema: "number BIGINT, team STRING"}}}}
sinks:
  - files: {{path: "{lake}", shared: true}}
"""
SEARCH_SINK = """\
  - elasticsearch: {{hosts: ["{address}"], index: chaos}}
"""
CONF = """{
  spark.speculation: true,
  spark.speculation.quantile: 0.5,
  spark.speculation.multiplier: 1.1,
  spark.speculation.minTaskRuntime: 300ms,
  spark.dynamicAllocation.enabled: true,
  spark.dynamicAllocation.executorIdleTimeout: 10s,
}"""
POLICY = """
spark:
  masters: ["{master}"]
  python: ["{python}"]
"""


class ClusterOnSpark(Cluster):
    def node_arguments(self, folder: str = "node", name: str = "n1") -> list[str]:
        policy = str(self.folder / "policy.yaml")
        return [*super().node_arguments(folder, name), "--policy", policy]


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(tmp_path / "spark", REQUIREMENTS)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def elasticsearch(tmp_path: Path) -> Iterator[RealElasticsearch | None]:
    """In the long form only."""
    if not chaos_seconds():
        yield None
        return
    server = RealElasticsearch(tmp_path / "elasticsearch")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def cluster(spark_cluster: StandaloneCluster, tmp_path: Path) -> Iterator[Cluster]:
    cluster = ClusterOnSpark(tmp_path)
    policy = POLICY.format(master=spark_cluster.address, python=spark_cluster.python)
    (tmp_path / "policy.yaml").write_text(policy)
    cluster.start_all()
    yield cluster
    cluster.stop()


def set_on_spark(store: Store, spark: StandaloneCluster) -> None:
    for key, text in (
        ("spark.master", spark.address),
        ("spark.python", spark.python),
        ("spark.cores", "2"),
        ("spark.executor_memory", "512m"),
        ("spark.conf", CONF),
    ):
        set_setting(Operator(store, "test", "", 0.0), key, text)


@pytest.mark.timeout(1200 + 3 * chaos_seconds())
def test_event_is_in_the_lake_once_while_spark_processes_are_killed(
    cluster: Cluster,
    spark_cluster: StandaloneCluster,
    elasticsearch: RealElasticsearch | None,
    tmp_path: Path,
) -> None:
    without = subprocess.run(
        [spark_cluster.python, "-c", "import flumeng"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert b"No module named 'flumeng'" in without.stderr
    chance, lake = random.Random(chaos_seed()), tmp_path / "lake"
    store = connect(cluster.hosts)
    set_on_spark(store, spark_cluster)
    rate = max(1000, round(EVENTS / (chaos_seconds() or 40)))
    teams = tmp_path / "teams.csv"
    teams.write_text("number,team\n" + "".join(f"{n},team-{n}\n" for n in range(10)))
    text = FLOW_TEXT.format(events=EVENTS, rate=rate, lake=lake, teams=teams)
    if elasticsearch is not None:
        text += SEARCH_SINK.format(address=elasticsearch.address)
    apply_flow(Operator(store, "test", "", 0.0), text)
    watcher = Watcher(store)
    wait_for_files(lake)

    def restart(name: str) -> None:
        spark_cluster.kill(name)
        time.sleep(chance.uniform(0, 2))
        spark_cluster.start_one(name)

    others: dict[str, Callable[[], object]] = {
        "executor": spark_cluster.kill_executor,
        "worker": lambda: restart(chance.choice(spark_cluster.workers)),
    }
    if chaos_seconds():
        others["spark's master"] = lambda: restart("master")

    def rest() -> None:
        watcher.see_progress()
        time.sleep(chance.uniform(0.0, 3.0))

    until = time.monotonic() + chaos_seconds()
    kill_at_random(cluster, chance, ("collector",), others, times=1, until=until, rest=rest)
    watcher.settle(480, events=EVENTS)
    found = ds.dataset(lake, format="parquet", exclude_invalid_files=False).to_table(
        columns=["body", "seq", "journal", "team"]
    )
    assert found.num_rows == EVENTS
    texts = pc.extract_regex(pc.cast(found["body"], "string"), r"(?P<number>[0-9]{16})")
    numbers = pc.cast(pc.struct_field(texts, "number"), "int64")
    assert pc.count_distinct(numbers).as_py() == EVENTS
    assert pc.min_max(numbers).as_py() == {"min": 0, "max": EVENTS - 1}
    assert all(f"team-{seq % 10}" == team for seq, team in pairs_of(found))
    wait_for(lambda: not spark_cluster.executors(), "executors stay that have nothing to do")
    if elasticsearch is not None:
        with contextlib.closing(elasticsearch.client()) as client:
            client.indices.refresh(index="chaos")
            assert client.count(index="chaos")["count"] == EVENTS
    store.close()


def pairs_of(found: pa.Table) -> Iterator[tuple[int, str]]:
    """The number of each event in its journal, and the joined team; each pair once."""
    last = pc.subtract(found["seq"], pc.multiply(pc.divide(found["seq"], 10), 10))
    pairs = pa.table({"last": last, "team": found["team"]}).group_by(["last", "team"])
    return ((row["last"], row["team"]) for row in pairs.aggregate([]).to_pylist())


def wait_for_files(lake: Path) -> None:
    wait_for(lambda: list(files_below(lake, "*.parquet")), "nothing is written", seconds=480)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ({"master": "spark://127.0.0.1:1"}, "Spark's master spark://127.0.0.1:1 does not answer"),
        ({"master": "spark://evil:7077"}, "this node's policy file does not allow Spark's spark:"),
        ({"conf": '{"spark.authenticate.secret": "${secret:gone}"}'}, "there is no secret gone"),
        (
            {"conf": '{"spark.speculation": "${secret:lake}"}'},
            "spark.conf: spark.speculation cannot hold",
        ),
    ],
)
def test_collector_that_cannot_start_spark_reports_the_reason_and_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: dict[str, str], told: str
) -> None:
    policy = 'spark: {masters: ["spark://127.0.0.1:1"], conf: ["spark.auth*", "spark.spec*"]}\n'
    monkeypatch.setenv("FLUMENG_SECRET_LAKE", "never-shown")
    assert told in held(tmp_path, policy, texts)


def test_standalone_master_of_another_version_is_told_while_spark_waits_for_it(
    tmp_path: Path,
) -> None:
    """It does not understand the application, so it never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"spark://127.0.0.1:{server.getsockname()[1]}"
        policy = f'spark: {{masters: ["{master}"]}}\n'
        assert held(tmp_path, policy, {"master": master}) == (
            f"Spark's master {master} has not accepted the application yet: "
            f"does it run Spark {pyspark.__version__}?"
        )


def held(folder: Path, policy: str, texts: dict[str, str]) -> str:
    """Why a collector with these settings waits; its first message."""
    (folder / "policy.yaml").write_text(policy)
    arguments = ["--zk", "127.0.0.1:1", "--node", "n1", "--data", str(folder / "data")]
    arguments += ["--policy", str(folder / "policy.yaml"), "--spark", json.dumps(texts)]
    command = [sys.executable, "-m", "flumeng.agent.collector", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        message = decode(process.stdout.readline())
        assert message["type"] == "alive"
        assert process.poll() is None
        process.kill()
    return str(message["held"])
