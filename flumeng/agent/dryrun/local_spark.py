"""Spark in this process, started on demand or kept from an earlier command (``spark_keeper``)."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flumeng.agent.dryrun import spark_keeper
from flumeng.agent.dryrun.spark_keeper import OPTIONS, KeptJvm
from flumeng.platform.errors import FlumengError, UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LocalSpark:
    """A Spark session, started by the first call; ``announce`` is called before a start that takes
    seconds. With ``users_code`` Spark is not shared with other commands, since its Python workers
    never reload a changed module."""

    def __init__(self, announce: Callable[[str], None], *, users_code: bool) -> None:
        self._announce = announce
        self._users_code = users_code
        self._session: SparkSession | None = None
        self._directory: str | None = None
        self._java: KeptJvm | None = None
        self._announced = False
        self._lock = threading.Lock()

    def __call__(self) -> SparkSession:
        """Return the session; the first call starts it. Raises as ``spark.start``."""
        with self._lock:
            if self._session is None:
                self._session = self._start()
            return self._session

    def _start(self) -> SparkSession:
        from pyspark import SparkContext  # noqa: PLC0415  only when it is needed

        from flumeng.agent.collector import class_archive, spark  # noqa: PLC0415  only when it is needed

        # With a gateway this process has started a JVM of its own.
        if not self._users_code and SparkContext._gateway is None:
            self._java = spark_keeper.take(self._say_that_it_takes_long)
        if self._java is not None:
            try:
                return spark.for_large_rows(_attached(self._java))
            except (FlumengError, OSError):
                self._give_back(stopped=False)
        self._say_that_it_takes_long()
        self._directory = tempfile.mkdtemp(prefix="flumeng-trial-")
        directory = Path(self._directory)
        options = class_archive.java_options(class_archive.cache_of(directory))
        started = spark.start(directory / "spark", OPTIONS, more_java_options=options)
        return spark.for_large_rows(started)

    def _say_that_it_takes_long(self) -> None:
        if not self._announced:
            self._announce(
                "flumeng: starting Spark for filters that Arrow cannot run; it takes seconds"
            )
        self._announced = True

    def stop(self) -> None:
        with self._lock:
            if self._java is not None:
                self._give_back(stopped=True)
            elif self._session is not None:
                self._session.stop()
            self._session = None
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)

    def _give_back(self, *, stopped: bool) -> None:
        """Detach PySpark from the kept JVM, which continues to run for the next command."""
        from pyspark import SparkContext  # noqa: PLC0415  only when it is needed
        from pyspark.sql import SparkSession  # noqa: PLC0415  only when it is needed

        assert self._java is not None
        if (gateway := SparkContext._gateway) is not None:
            gateway.close()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        self._java.give_back(stopped=stopped)
        self._java = None


def _attached(java: KeptJvm) -> SparkSession:
    from py4j.protocol import Py4JError  # noqa: PLC0415  only when it is needed
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  only when it is needed
    from pyspark.sql import SparkSession  # noqa: PLC0415  only when it is needed

    variables = java.environment()
    os.environ.update(variables)
    os.environ["PYSPARK_PYTHON"] = sys.executable  # as spark.start; else Spark takes any python3
    try:
        SparkContext._ensure_initialized()
        gateway, jvm = SparkContext._gateway, SparkContext._jvm
        assert jvm is not None
        context = jvm.JavaSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
        conf = SparkConf(_jvm=jvm, _jconf=context.getConf())
        return SparkSession(SparkContext(gateway=gateway, jsc=context, conf=conf))
    except Py4JError as error:
        raise UnavailableError("the running Spark process does not answer") from error
    finally:
        for name in variables:
            del os.environ[name]
