"""Polls each second, while their processes are killed: each due time once, each row once.

A table is written by many, out of order, while it is polled by its numbers; a server of HTTP and a
command are polled at each due time. Collectors, discovery, nodes, masters and ZooKeeper are killed.
``FLUMENG_CHAOS_SECONDS`` says for how long at least.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import set_setting
from flumeng.control.queries.queues import lanes_of, listed_items
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.platform.errors import UserError
from tests.live.chaos import TwoNodes, chaos_seconds, chaos_seed, kill_at_random
from tests.live.sql_polling import DRIVER
from tests.testkit.servers import maven
from tests.testkit.servers.postgres import RealPostgres
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.long

SECONDS = 25.0
WRITERS = 4
OPEN_SECONDS = 0.8
"""Maximum duration of a writer's transaction."""
PATIENCE_SECONDS = 300.0
POLICY = """
commands: ["{command} *"]
spark: {{jars: ["{jar}"]}}
"""
COMMAND = "import os; print('due', os.environ['FLUMENG_DUE'])"
FLOW = """
flow: {flow}
sources:
  - {source}
delivery: exactly-once
batch: {{seconds: 0.5}}
sinks:
  - files: {{path: "{folder}/lake/{flow}", shared: true}}
"""
SHARED = """
      schedule: {{every_seconds: 1, catch_up: all}}
      answers: {{path: "{folder}/answers", shared: true}}
"""
SOURCES = {
    "rows": """sql_poll:
      url: "jdbc:{database}"
      username: {username}
      password: "${{secret:polled}}"
      table: rows
      track: {{column: id, settle_seconds: 5}}""",
    "ticks": """http_poll:
      url: "{server}/tick"
      query: {{due: "{{due}}"}}""",
    "commands": """exec:
      command: ["{python}", "-c", "{command}"]
      once_per: cluster""",
}


class PolledNodes(TwoNodes):
    """Both nodes may load the database's driver and run the command."""

    def node_arguments(self, folder: str = "node", name: str = "n1") -> list[str]:
        policy = str(self.folder / "policy.yaml")
        return [*super().node_arguments(folder, name), "--policy", policy]


@pytest.fixture(scope="module")
def postgres() -> Iterator[RealPostgres]:
    try:
        server = RealPostgres()
    except UserError as error:
        pytest.skip(str(error))
    server.start()
    yield server
    server.close()


@pytest.fixture
def ticking() -> Iterator[str]:
    """A server that answers with the time of the request."""

    class Tick(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"asked": unquote(self.path.partition("due=")[2])}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Tick)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def nodes(
    tmp_path: Path, postgres: RealPostgres, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PolledNodes]:
    monkeypatch.setenv("FLUMENG_SECRET_POLLED", postgres.password)
    (jar,) = maven.jars(DRIVER).glob("postgresql-*.jar")
    policy = POLICY.format(command=sys.executable, jar=jar)
    (tmp_path / "policy.yaml").write_text(policy)
    cluster = PolledNodes(tmp_path)
    cluster.start_all()
    store = connect(cluster.hosts)
    set_setting(Operator(store, "test", "", 0.0), "spark.jars", f"[{jar}]")
    store.close()
    cluster.start("node2")
    cluster.start("master2")
    yield cluster
    cluster.stop()


class Writer(threading.Thread):
    """Runs transactions of a few rows, each open for a while; some are rolled back."""

    def __init__(self, postgres: RealPostgres, seed: int, until: float) -> None:
        super().__init__(daemon=True)
        self._postgres = postgres
        self._chance = random.Random(seed)
        self._until = until
        self.written: list[int] = []

    def run(self) -> None:
        with self._postgres.connect() as connection, connection.cursor() as cursor:
            while time.monotonic() < self._until:
                numbers = []
                cursor.execute("BEGIN")
                for _ in range(self._chance.randrange(1, 5)):
                    cursor.execute("INSERT INTO rows (said) VALUES ('x') RETURNING id")
                    numbers.append(int(cursor.fetchone()[0]))
                    time.sleep(self._chance.uniform(0, OPEN_SECONDS / 5))
                if self._chance.random() < 0.2:
                    cursor.execute("ROLLBACK")
                else:
                    cursor.execute("COMMIT")
                    self.written += numbers


def test_each_due_time_and_each_row_is_there_once(
    nodes: PolledNodes, postgres: RealPostgres, ticking: str, tmp_path: Path
) -> None:
    postgres.run("CREATE TABLE rows (id bigserial PRIMARY KEY, said text)")
    (tmp_path / "answers").mkdir()
    store = connect(nodes.hosts)
    for flow, source in SOURCES.items():
        whole = (source + SHARED).format(
            folder=tmp_path,
            server=ticking,
            database=postgres.url,
            username=postgres.username,
            python=sys.executable,
            command=COMMAND,
        )
        text = FLOW.format(flow=flow, source=whole, folder=tmp_path)
        apply_flow(Operator(store, "test", "", 0.0), text)
    chance = random.Random(chaos_seed())
    until = time.monotonic() + max(SECONDS, chaos_seconds())
    writers = [Writer(postgres, chance.randrange(10**6), until) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    kill_anything(nodes, chance, until)
    for writer in writers:
        writer.join(timeout=60)

    lake = tmp_path / "lake"
    wanted = Counter(number for writer in writers for number in writer.written)
    assert len(wanted) > 50
    wait_for(
        lambda: len(numbers(lake)) >= len(wanted),
        lambda: said(store, lake),
        seconds=PATIENCE_SECONDS,
    )
    last = datetime.now().astimezone()
    for name in ("ticks", "commands"):
        wait_for(
            partial(is_past, lake, name, last), lambda: said(store, lake), seconds=PATIENCE_SECONDS
        )
    assert Counter(numbers(lake)) == wanted
    for name in ("ticks", "commands"):
        dues = sorted(due_times(lake, name))
        seconds = {after - before for before, after in pairwise(dues)}
        assert seconds == {timedelta(seconds=1)}, f"{name}: {len(dues)} from {dues[0]}"
    assert [row for flow in SOURCES for row in failed(store, flow)] == []
    store.close()


def kill_anything(cluster: TwoNodes, chance: random.Random, until: float) -> None:
    def restart(name: str) -> None:
        cluster.tops[name].kill()
        cluster.tops[name].wait()
        time.sleep(chance.uniform(0.0, 2.0))
        cluster.start(name)

    others: dict[str, Callable[[], object]] = {
        "node2": partial(restart, "node2"),
        "master2": partial(restart, "master2"),
    }
    kinds = ("collector", "discovery", "node", "master", "zookeeper")
    kill_at_random(cluster, chance, kinds, others, times=1, until=until)


def bodies(lake: Path, flow: str) -> list[str]:
    if not list((lake / flow).glob("*.parquet")):
        return []
    table = ds.dataset(lake / flow, format="parquet").to_table(columns=["body"])
    found: list[str] = pc.cast(table["body"], "string").to_pylist()
    return found


def numbers(lake: Path) -> list[int]:
    return [json.loads(body)["id"] for body in bodies(lake, "rows")]


def due_times(lake: Path, flow: str) -> list[datetime]:
    """The due times that the server and the command received."""
    found = bodies(lake, flow)
    if flow == "commands":
        return [datetime.fromisoformat(body.removeprefix("due ")) for body in found]
    return [datetime.fromisoformat(json.loads(body)["asked"]) for body in found]


def is_past(lake: Path, flow: str, moment: datetime) -> bool:
    return max(due_times(lake, flow), default=moment - timedelta(days=1)) > moment


def failed(store: Store, flow: str) -> list[str]:
    rows = listed_items(ReadCache.of(store), flow, most=1000)
    return [f"{flow}: {row.why}" for row in rows if row.state == "failed"]


def said(store: Store, lake: Path) -> str:
    return f"{len(numbers(lake))} rows; {lanes_of(ReadCache.of(store), list(SOURCES))}"
