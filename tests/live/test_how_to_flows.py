"""The how-to pages about flows and their filters, plug-ins, notebooks, other systems and Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Producer

from flumeng.agent.standalone.embedded import free_port
from flumeng.agent.standalone.standalone import NODE
from tests.live.how_to import TOP, HowTo
from tests.live.one_host import FLUMENG, Standalone, delivered
from tests.live.test_spark_cluster import REQUIREMENTS, ClusterOnSpark
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.spark_cluster import StandaloneCluster
from tests.testkit.waiting import wait_for

FLUME = TOP / "packages" / "flumeng-flume" / "README.md"
OLD, NEW = (1200, 1187), 5
"""Messages in the two partitions that another system has delivered, and further ones in each."""


def test_parse_logs(tmp_path: Path) -> None:
    page = HowTo("parse-logs", tmp_path, values={"/var/log/app": tmp_path, "/var/lib": tmp_path})
    with page:
        (tmp_path / "pino.yaml").write_text(page.text_of("yaml"))
        lines = ['{"time": 1795600000000, "level": 30, "msg": "up"}', '{"time": "slow"}']
        (tmp_path / "pino.jsonl").write_text("\n".join([*lines, ""]))
        printed = page.run("tail")
    assert "2 events in, 1 out" in printed


def test_join_lines(tmp_path: Path) -> None:
    with HowTo("join-lines", tmp_path) as page:
        (tmp_path / "app.yaml").write_text(page.text_of("yaml"))
        trace = (
            "2026-11-20 10:00:00 ERROR failed\nTraceback:\n  line 3\n2026-11-20 10:00:01 INFO up\n"
        )
        (tmp_path / "trace.log").write_text(trace)
        printed = page.run("flumeng flow try")
    assert 'attrs.lines="3"' in printed


def test_test_a_flow(tmp_path: Path) -> None:
    shutil.copytree(TOP / "conf", tmp_path / "conf")
    shutil.copy(TOP / "conf" / "flows" / "web-logs.yaml", tmp_path)
    with HowTo("test-a-flow", tmp_path) as page:
        (tmp_path / "web-logs.test.yaml").write_text(page.text_of("yaml"))
        page.rest()
    assert 'tests="2"' in (tmp_path / "report.xml").read_text()


@pytest.fixture
def running(standalone_of_all: Standalone) -> Iterator[Standalone]:
    """The cluster of all tests; each leaves no flow behind."""
    yield standalone_of_all
    standalone_of_all.leave()


def cluster_page(
    name: str, folder: Path, cluster: Standalone, values: Mapping[str, object] | None = None
) -> HowTo:
    return HowTo(name, folder, {"FLUMENG_ZK": cluster.hosts}, values)


def apply(cluster: Standalone, file: Path) -> None:
    """Apply a flow file, and wait until the flow runs."""
    said = cluster.command("flow", "apply", str(file))
    assert "revision 1" in said, said
    said = cluster.command("flow", "wait", file.stem, "--running", "--timeout", "180")
    assert said == "", said


@contextmanager
def sending(port: int, line: bytes) -> Iterator[None]:
    """Send a line again and again."""
    enough = threading.Event()

    def send() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while not enough.wait(0.1):
                connection.sendall(line)

    sender = threading.Thread(target=send)
    sender.start()
    yield
    enough.set()
    sender.join()


def rows(lake: Path) -> list[dict[str, object]]:
    files = delivered(lake)
    return list(ds.dataset(files).to_table().to_pylist()) if files else []


@pytest.mark.long
def test_enrich_events(tmp_path: Path, running: Standalone) -> None:
    port, lake, table = free_port(), tmp_path / "lake", tmp_path / "apps.csv"
    places = {
        "/etc/flumeng/apps.csv": table,
        "/var/lib/lake": lake,
        "0.0.0.0:5514": f"127.0.0.1:{port}",
    }
    line = "<13>1 2026-11-20T10:00:00Z h checkout - - - paid\n"
    with cluster_page("enrich-events", tmp_path, running, places) as page:
        table.write_text(page.text_of("text"))
        (tmp_path / "owned.yaml").write_text(page.text_of("yaml"))
        (tmp_path / "lines").write_text(line)
        assert 'team="shop"' in page.run("flumeng flow try")
        apply(running, tmp_path / "owned.yaml")
        with sending(port, line.encode()):
            assert "shop" in page.run("flumeng flow tap")


@pytest.mark.long
def test_notebooks(tmp_path: Path, running: Standalone) -> None:
    """Its Python is one notebook: a batch of the cursor ``report``, a stream of ``levels``, and a
    write into the flow ``scores``."""
    values = {
        "127.0.0.1:2181/flumeng": running.hosts,
        "/tmp/notebook": tmp_path / "notebook",
        "/var/lib/lake": tmp_path,
        "127.0.0.1:8080": f"127.0.0.1:{free_port()}",
    }
    (tmp_path / "app.log").write_text("level=info up\nlevel=warn hot\nlevel=info down\n")
    flow = tmp_path / "app.yaml"
    flow.write_text(
        f'flow: app\nsources: [tail: {{paths: ["{tmp_path}/*.log"]}}]\n'
        f"sinks: [files: {{path: {tmp_path}/lake}}]\n"
    )
    apply(running, flow)
    with cluster_page("notebooks", tmp_path, running, values) as page:
        (tmp_path / "scores.yaml").write_text(page.text_of("yaml"))
        page.run("flumeng flow apply")
        page.run("flumeng flow wait")
        notebook = "\n".join(page.text_of("python", number) for number in range(4))
        notebook += "\nquery.processAllAvailable()\nspark.table('levels').orderBy('level').show()\n"
        script = tmp_path / "notebook.py"
        script.write_text(notebook)
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("3\n"), done.stdout
        assert re.search(r"info\|\s+2\|\n\|\s*warn\|\s+1\|", done.stdout), done.stdout
        wait_for(lambda: len(rows(tmp_path / "scores")) == 3, "the scores are missing")
        scores = {(row["body"], row["host"]) for row in rows(tmp_path / "scores")}
        assert scores == {(f"score {number}".encode(), "lab") for number in range(3)}
        page.run("flumeng cursor end")
        assert "levels" in page.run("flumeng cursor list")
    running.command("cursor", "delete", "app", "levels")


@pytest.mark.long
def test_from_flume(tmp_path: Path, running: Standalone) -> None:
    """The two tiers in the README of the package."""
    blocks = re.findall(r"^```(?:properties|flume)\n(.*?)^```$", FLUME.read_text(), re.M | re.S)
    here = [text.replace("/var/log/nginx", f"{tmp_path}/nginx") for text in blocks]
    for name, text in zip(
        ("web.properties", "collector.properties", "collectors.flume"), here, strict=True
    ):
        (tmp_path / name).write_text(text.replace("hdfs://namenode", f"file://{tmp_path}/lake"))
    (tmp_path / "lines").write_text("GET /\nGET /health\n")
    with cluster_page("from-flume", tmp_path, running, {"HOST": NODE}) as page:
        page.run("flumeng import flume-ng", code=1)
        page.rest()
    running.command("node", "label", NODE, "agent-")


@pytest.mark.long
def test_size_a_cluster(tmp_path: Path, running: Standalone) -> None:
    flow = Standalone(tmp_path)
    flow.join(running)
    flow.send(1000)
    with cluster_page("size-a-cluster", tmp_path, running, {"FLOW": "web"}) as page:
        page.rest()


def produce(kafka: RealKafka) -> None:
    kafka.create_topic("orders", partitions=2)
    producer = Producer({"bootstrap.servers": kafka.address})
    for partition, old in enumerate(OLD):
        for number in range(old + NEW):
            text = json.dumps({"id": number, "amount": 1.5}).encode()
            producer.produce("orders", text, partition=partition)
    assert producer.flush(60) == 0


def ids(lake: Path) -> list[int]:
    return sorted(int(str(row["id"])) for row in rows(lake))


WANTED = sorted(old + number for old in OLD for number in range(NEW))


@pytest.mark.long
def test_from_kafka_connect(tmp_path: Path, running: Standalone, kafka: RealKafka) -> None:
    """The flow begins at the offsets of the connector."""
    produce(kafka)
    values = {"127.0.0.1:9092": kafka.address, "s3a://lake": tmp_path}
    with cluster_page("from-kafka-connect", tmp_path, running, values) as page:
        flow = tmp_path / "orders.yaml"
        flow.write_text(f"{page.text_of('yaml')}\nbatch: {{seconds: 0.2}}\n")
        apply(running, flow)
        page.rest()
        wait_for(lambda: len(ids(tmp_path / "orders")) >= len(WANTED), "messages are missing")
        assert ids(tmp_path / "orders") == WANTED


@pytest.mark.long
def test_from_druid(tmp_path: Path, running: Standalone, kafka: RealKafka) -> None:
    """The flow begins at the offsets of the supervisor."""
    produce(kafka)
    flow = tmp_path / "orders.yaml"
    flow.write_text(
        f"""
flow: orders
sources:
  - kafka:
      brokers: ["{kafka.address}"]
      topics: [orders]
      start_offsets: {{orders.0: {OLD[0]}, orders.1: {OLD[1]}}}
      discovery_seconds: 10
      on_gone: earliest
place: {{collect: {{tasks: 2}}}}
batch: {{seconds: 0.2}}
filters:
  - parse: {{format: json, schema: "id BIGINT, amount DOUBLE"}}
    on_error: dead-letter
sinks: [files: {{path: "{tmp_path}/orders"}}]
dead_letters: {{files: {{path: "{tmp_path}/dead", format: json}}}}
"""
    )
    with cluster_page("from-druid", tmp_path, running) as page:
        apply(running, flow)
        page.rest()
        wait_for(lambda: len(ids(tmp_path / "orders")) >= len(WANTED), "messages are missing")
        assert ids(tmp_path / "orders") == WANTED


@pytest.mark.long
def test_write_a_plug_in(tmp_path: Path) -> None:
    """In a virtual environment of its own, which sees the packages of this one."""
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    with HowTo("write-a-plug-in", tmp_path) as page:
        page.program("python", f'exec {place}/bin/python "$@"')
        page.program("pip", f'exec {place}/bin/python -m pip --no-input "$@"')
        page.program(
            "flumeng", f"exec {place}/bin/python -c 'from cli.main import main; main()' \"$@\""
        )
        texts = iter(page.text_of("python", number) for number in range(3))
        mine = tmp_path / "mine"
        for name, text in (
            ("flumeng_mine/__init__.py", ""),
            ("pyproject.toml", page.text_of("toml")),
            ("setup.cfg", page.text_of("ini")),
            ("flumeng_mine/options.py", next(texts)),
            ("flumeng_mine/word_count.py", next(texts)),
            ("tests/test_contract.py", next(texts)),
        ):
            (mine / name).parent.mkdir(parents=True, exist_ok=True)
            (mine / name).write_text(f"{text}\n")
        (tmp_path / "counted.yaml").write_text(page.text_of("yaml"))
        assert "class RangedInput" in page.run("python -c")
        page.run("pip")
        assert " passed" in page.run("python -m pytest")
        assert "flumeng-mine" in page.run("flumeng components")
        printed = page.run("printf")
    assert " n=2\nflumeng: 2 events in, 1 out" in printed


@pytest.mark.long
def test_run_on_a_spark_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors of another Python run the batches, over encrypted connections."""
    secret = os.urandom(16).hex()
    monkeypatch.setenv("FLUMENG_SECRET_SPARK", secret)
    conf = {"spark.authenticate": "true", "spark.authenticate.secret": secret}
    conf |= {"spark.network.crypto.enabled": "true"}
    spark = StandaloneCluster(tmp_path / "spark", REQUIREMENTS, conf=conf)
    cluster = ClusterOnSpark(tmp_path)
    lake, flow = tmp_path / "lake", tmp_path / "app.yaml"
    flow.write_text(
        f"flow: app\nsources: [generate: {{events_per_second: 1000, count: 500, bytes: 64}}]\n"
        f"sinks: [files: {{path: '{lake}', shared: true}}]\n"
    )
    values = {
        "spark://spark-1:7077,spark-2:7077": spark.address,
        "/opt/data/bin/python3": spark.python,
        "2g": "512m",
        "8": 2,
        "7600": free_port(),
        "7601": free_port(),
        "NODE": "n1",
    }
    with HowTo("run-on-a-spark-cluster", tmp_path, {"FLUMENG_ZK": cluster.hosts}, values) as page:
        (tmp_path / "policy.yaml").write_text(page.text_of("yaml"))
        spark.start()
        try:
            cluster.start_all()
            for _ in range(5):
                page.run("flumeng cluster set")
            subprocess.run([FLUMENG, "flow", "apply", flow, "--zk", cluster.hosts], check=True)
            told = "the events did not reach the lake"
            wait_for(lambda: len(rows(lake)) == 500, told, seconds=480)
            assert spark.executors()
            assert spark.address in page.run("flumeng cluster show")
            page.run("flumeng status", again=True)
        finally:
            cluster.stop()
            spark.stop()
