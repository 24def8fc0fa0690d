"""What the tests of real processes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flumeng.collector import spark as sessions
from flumeng.ingest.testing import WorkerProcess
from tests.live.chaos import Cluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """One for all tests, in a directory with a longer path than a Unix socket may have."""
    return sessions.start(tmp_path_factory.mktemp("spark") / ("long-" * 20) / "collector")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """To be asked for after what sets secrets, which its processes have in their environment."""
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
