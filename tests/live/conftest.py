"""Shared fixtures of the tests of real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flumeng.agent.collector import class_archive, connect
from flumeng.agent.collector import spark as sessions
from flumeng.config.spark import SparkOptions
from flumeng.platform.errors import UnavailableError, UserError
from tests.live.chaos import Cluster
from tests.live.one_host import Standalone
from tests.testkit.certificates import Certificates
from tests.testkit.ingest_worker import WorkerProcess
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.servers.tls import Authority
from tests.testkit.store import RealZooKeeper


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """One session for all tests, in a directory with a longer path than a Unix socket may have.

    Its workers run functions of these tests, which they import from nowhere else.
    ``FLUMENG_TEST_MASTER`` may name a Spark Connect server.
    """
    directory = tmp_path_factory.mktemp("spark") / ("long-" * 20) / "collector"
    if master := os.environ.get("FLUMENG_TEST_MASTER"):
        return connect.start(directory, SparkOptions(master=master))
    top = Path(__file__).parents[2]
    options = SparkOptions(conf={"spark.executorEnv.PYTHONPATH": str(top)})
    java_options = class_archive.java_options(class_archive.cache_of(directory))
    return sessions.start(directory, options, more_java_options=java_options)


@pytest.fixture(scope="session")
def standalone_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """One cluster for all tests that join it; each deletes its flows."""
    standalone = Standalone(tmp_path_factory.mktemp("standalone"))
    standalone.start()
    standalone.stay_ready()
    yield standalone
    standalone.stop()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def kafka_of_all(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[RealKafka]:
    """See ``kafka``."""
    folder = tmp_path_factory.mktemp("kafka")
    keystore = folder / "keystore.pem"
    certificate, key = authority.issue("kafka")
    keystore.write_text(key.read_text() + certificate.read_text())
    try:
        kafka = RealKafka(folder, keystore, authority.ca)
        kafka.start()
    except (UserError, UnavailableError) as why:
        pytest.skip(f"no Kafka here: {why}")
    yield kafka
    kafka.stop()


@pytest.fixture
def kafka(kafka_of_all: RealKafka) -> Iterator[RealKafka]:
    """One server for all tests, which may freeze and kill it; each test starts without topics.

    A server from the environment is left as it is.
    """
    yield kafka_of_all
    kafka_of_all.restore()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure_zookeeper(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealZooKeeper]:
    """A ZooKeeper with a secure port only."""
    folder = certificates.folder("zookeeper", name="zk1")
    server = RealZooKeeper(tmp_path_factory.mktemp("zookeeper"), folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Request it after fixtures that set secrets: its processes inherit the environment."""
    cluster = Cluster(tmp_path)
    cluster.start_all()
    yield cluster
    cluster.stop()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(tmp_path / "node")
    yield worker
    if worker.process.poll() is None:
        worker.kill()
