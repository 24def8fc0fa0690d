"""Every command of the tutorials prints what the page says, as it is written but for ports and
directories."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from console_page import Bash, agrees, examples
from flumeng.agent.standalone import embedded
from flumeng.platform.errors import UnavailableError, UserError
from tests.live.one_host import FLUMENG
from tests.testkit.servers.elasticsearch import RealElasticsearch
from tests.testkit.servers.kafka import RealKafka

pytestmark = pytest.mark.long

TOP = Path(__file__).parents[2]
PAGES = TOP / "docs" / "tutorials"
COMMAND_SECONDS = 240.0
Follow = Callable[..., None]


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    """Run all commands of a page in one shell; nothing that they started is left."""
    shells: list[Bash] = []

    def run(name: str, folder: str, **other: str) -> None:
        page = (PAGES / name).read_text().replace(f"/tmp/{folder}", str(tmp_path / folder))
        for port in ("2181", "2182", "8088"):
            page = page.replace(port, str(embedded.free_port()))
        for old, new in other.items():
            page = page.replace(old, new)
        own = {key: value for key, value in os.environ.items() if not key.startswith("FLUMENG_")}
        cache = {key: os.environ[key] for key in ("FLUMENG_CACHE",) if key in os.environ}
        own |= cache | {"PATH": f"{FLUMENG.parent}:{os.environ['PATH']}"}
        shells.append(Bash(tmp_path, own))
        for example in examples(page):
            printed = shells[0].run(example.command, COMMAND_SECONDS)
            assert agrees(example.expected, printed), (
                f"{name}:{example.line} says that `{example.command}` prints\n{example.expected}\n"
                f"and it prints\n{printed}"
            )

    yield run
    for shell in shells:
        shell.end()


def test_first_flow(follow: Follow) -> None:
    follow("first-flow.md", "first")


def test_three_hosts(follow: Follow) -> None:
    follow("three-hosts.md", "three")


def test_syslog_at_size(follow: Follow) -> None:
    script = f"{sys.executable} {TOP}/scripts/quickstart_job.py"
    paths = {"scripts/quickstart": script, "$PWD/.venv/bin": str(FLUMENG.parent)}
    fewer = {"1000000": "20000", "1,000,000": "20,000"}
    follow("syslog-at-size.md", "syslog", **paths, **fewer, **{"conf/": f"{TOP}/conf/"})


def test_kafka_to_delta(follow: Follow, kafka: RealKafka) -> None:
    kafka.create_topic("orders")
    producer = Producer({"bootstrap.servers": kafka.address})
    for number in range(1000):
        producer.produce("orders", b"order %d" % number, key=b"%d" % number)
    assert producer.flush(60) == 0
    follow("kafka-to-delta.md", "orders", **{"127.0.0.1:9092": kafka.address})


def test_nginx_to_elasticsearch_and_parquet(follow: Follow, tmp_path: Path) -> None:
    server = RealElasticsearch(tmp_path / "elasticsearch")
    try:
        server.start()
    except (UserError, UnavailableError) as why:
        pytest.skip(f"no Elasticsearch here: {why}")
    try:
        name = "nginx-to-elasticsearch-and-parquet.md"
        follow(name, "web", **{"http://127.0.0.1:9200": server.address})
    finally:
        server.stop()
