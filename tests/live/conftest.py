"""What the tests of real processes share, since it is slow to start."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from flumeng.collector import spark as sessions


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """In a directory with a longer path than a Unix socket may have."""
    return sessions.start(tmp_path_factory.mktemp("spark") / ("long-" * 20) / "collector")
