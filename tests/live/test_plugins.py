"""The example plug-in from its wheel, beside flumeng's: its contract, and a flow of its components.

The wheels are installed into a directory on ``PYTHONPATH``, so that the processes run the installed
packages and not the working tree.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.chaos import child_of
from tests.live.one_host import FLUMENG, Standalone, delivered
from tests.live.test_spark_cluster import POLICY, REQUIREMENTS, ClusterOnSpark, set_on_spark
from tests.testkit.daemons import module_of
from tests.testkit.spark_cluster import StandaloneCluster
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.long

TOP = Path(__file__).parents[2]
PARTS = (".", "packages/flumeng-testkit", "examples/plugin")
ROWS = 3000
FLOW = """
flow: plug
sources:
  - sqlite_rows: {{path: "{folder}/app.db", table: log, column: message}}
  - disk_usage: {{paths: ["/"], every_seconds: 0.1}}
delivery: exactly-once
batch: {{seconds: 0.2}}
filters:
  - pattern: pattern
sinks:
  - sqlite: {{path: "{folder}/events.db"}}
"""
ON_SPARK = """
flow: chaos
sources: [generate: {{events_per_second: 1000, count: 500, bytes: 64}}]
filters:
  - pattern: pattern
  - select: [seq, pattern]
sinks: [files: {{path: "{lake}", shared: true}}]
"""


def tracked_files(folder: Path) -> list[str]:
    """Files of a source tree without build output."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with flumeng, the test kit and the example, each installed from its wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for part in PARTS:
        source = folder / "source" / (Path(part).name or "flumeng")
        for tracked in tracked_files(TOP / part):
            (source / tracked).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / part / tracked, source / tracked)
        subprocess.run([*pip, "wheel", "--no-deps", "-w", folder / "wheels", source], check=True)
    wheels = sorted((folder / "wheels").glob("*.whl"))
    assert len(wheels) == len(PARTS)
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", folder / "site", *wheels],
        check=True,
    )
    return folder / "site"


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))


@pytest.mark.usefixtures("installed")
def test_contract_suite_passes_with_one_command(tmp_path: Path) -> None:
    shutil.copytree(TOP / "examples" / "plugin" / "tests", tmp_path / "tests")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout or "100%" in run.stdout


class PluginFlow(Standalone):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.database, self.target = folder / "app.db", folder / "events.db"
        self.flow.write_text(FLOW.format(folder=folder))

    def add(self, rows: int) -> None:
        with closing(sqlite3.connect(self.database)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS log (message TEXT)")
            database.executemany("INSERT INTO log VALUES (?)", ((f"m {n}",) for n in range(rows)))

    def counts(self, of: str) -> tuple[int, int]:
        """How many events of the source are in the target, and how many different ones."""
        if not self.target.exists():
            return 0, 0
        with closing(sqlite3.connect(self.target, timeout=30)) as database:
            tables = database.execute("SELECT name FROM sqlite_master").fetchall()
            if ("events",) not in tables:
                return 0, 0
            query = (
                "SELECT count(*), count(DISTINCT journal || ' ' || seq) FROM events "
                "WHERE (journal LIKE '%@sqlite_rows') = ?"
            )
            all_, different = database.execute(query, (of == "sqlite_rows",)).fetchone()
            return int(all_), int(different)

    def has(self, rows: int) -> bool:
        return self.counts("sqlite_rows")[0] >= rows

    def kill_collector(self) -> None:
        assert self.process is not None
        node = child_of(self.process.pid, module_of("node"))
        assert node is not None
        collector = child_of(node, module_of("collector"))
        if collector is not None:
            os.kill(collector, signal.SIGKILL)


@pytest.fixture
def plugin_flow(tmp_path: Path, installed: None) -> Iterator[PluginFlow]:
    assert installed is None
    flow = PluginFlow(tmp_path)
    flow.add(ROWS)
    flow.start()
    yield flow
    flow.stop()


def test_flow_of_plugins_delivers_exactly_once_through_kills(plugin_flow: PluginFlow) -> None:
    said = plugin_flow.command("flow", "apply", str(plugin_flow.flow))
    assert "revision 1" in said, said
    for number in (1, 2, 3):
        wait_for(partial(plugin_flow.has, ROWS * number), "rows are missing")
        plugin_flow.add(ROWS)
        plugin_flow.kill_collector()
    total = 4 * ROWS
    wait_for(partial(plugin_flow.has, total), "rows are missing")
    assert plugin_flow.counts("sqlite_rows") == (total, total)
    all_, different = plugin_flow.counts("disk_usage")
    assert all_ == different > 5
    listed = subprocess.run([FLUMENG, "components"], capture_output=True, text=True, check=True)
    assert "flumeng-example" in listed.stdout


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(tmp_path / "spark", REQUIREMENTS, workers=1)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.mark.usefixtures("installed")
def test_executors_of_other_hosts_get_the_code_of_plugins(
    spark_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """Their Python has neither flumeng nor the plug-in."""
    cluster = ClusterOnSpark(tmp_path)
    policy = POLICY.format(master=spark_cluster.address, python=spark_cluster.python)
    (tmp_path / "policy.yaml").write_text(policy)
    cluster.start_all()
    try:
        with closing(connect(cluster.hosts)) as store:
            set_on_spark(store, spark_cluster)
        lake, flow = tmp_path / "lake", tmp_path / "flow.yaml"
        flow.write_text(ON_SPARK.format(lake=lake))
        subprocess.run([FLUMENG, "flow", "apply", flow, "--zk", cluster.hosts], check=True)

        def rows() -> int:
            files = delivered(lake)
            return int(ds.dataset(files).count_rows()) if files else 0

        wait_for(lambda: rows() == 500, "the events did not reach the lake")
        patterns = ds.dataset(delivered(lake)).to_table().column("pattern").to_pylist()
        assert all(pattern.startswith(b"# # ") for pattern in patterns)
    finally:
        cluster.stop()
