"""A Spark of this process with the collector's settings, started when it is first needed.

Its JVM may be one that a command before has started, see ``kept_java``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flumeng.errors import FlumengError
from flumeng.trial import kept_java
from flumeng.trial.kept_java import OPTIONS, KeptJava

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LocalSpark:
    """Gives the session, for a batch. ``announce`` is told once that it takes some seconds."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._session: SparkSession | None = None
        self._directory: str | None = None
        self._java: KeptJava | None = None
        self._lock = threading.Lock()

    def __call__(self) -> SparkSession:
        """Raises what ``spark.start`` raises."""
        with self._lock:
            if self._session is None:
                self._announce("starting Spark for what Arrow does not compute; it takes seconds")
                self._directory = tempfile.mkdtemp(prefix="flumeng-trial-")
                self._session = self._start(Path(self._directory))
            return self._session

    def _start(self, directory: Path) -> SparkSession:
        from pyspark import SparkContext  # noqa: PLC0415  only when it is needed

        from flumeng.collector import class_archive, spark  # noqa: PLC0415  only when it is needed

        options = class_archive.java_options(class_archive.cache_of(directory))
        if SparkContext._gateway is None:  # else this process has started a JVM of its own
            self._java = kept_java.take()
        if self._java is not None:
            variables = self._java.environment()
            os.environ.update(variables)
            try:
                started = spark.start(self._java.directory, OPTIONS, more_java_options=options)
                return spark.for_large_rows(started)
            except (FlumengError, OSError):
                self._give_back(stopped=False)
            finally:
                for name in variables:
                    del os.environ[name]
        started = spark.start(directory / "spark", OPTIONS, more_java_options=options)
        return spark.for_large_rows(started)

    def stop(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.stop()
                self._session = None
            self._give_back(stopped=True)
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)

    def _give_back(self, *, stopped: bool) -> None:
        """PySpark forgets the JVM: the next command of this process asks for one again."""
        if self._java is None:
            return
        from pyspark import SparkContext  # noqa: PLC0415  only when it is needed

        if (gateway := SparkContext._gateway) is not None:
            gateway.close()
        SparkContext._gateway = SparkContext._jvm = None
        self._java.give_back(stopped=stopped)
        self._java = None
