"""A Spark of this process with the collector's settings, started when it is first needed."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flumeng.spec.spark import SparkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = SparkOptions(master="local[1]")
"""One split at a time: events keep their order."""


class LocalSpark:
    """Gives the session, for a batch. ``announce`` is told once that it takes some seconds."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._session: SparkSession | None = None
        self._directory: str | None = None
        self._lock = threading.Lock()

    def __call__(self) -> SparkSession:
        """Raises what ``spark.start`` raises."""
        from flumeng.collector import class_archive, spark  # noqa: PLC0415  only when it is needed

        with self._lock:
            if self._session is None:
                self._announce("starting Spark for what Arrow does not compute; it takes seconds")
                self._directory = tempfile.mkdtemp(prefix="flumeng-trial-")
                directory = Path(self._directory)
                options = class_archive.java_options(class_archive.cache_of(directory))
                started = spark.start(directory / "spark", OPTIONS, more_java_options=options)
                self._session = spark.for_large_rows(started)
            return self._session

    def stop(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.stop()
                self._session = None
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
