"""Spark in this process, started on demand or kept from an earlier command (``spark_keeper``)."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flumeng.agent.dryrun import spark_keeper
from flumeng.agent.dryrun.spark_keeper import OPTIONS, KeptSpark
from flumeng.platform.errors import UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""PySpark sets this variable for a session of Spark Connect, and then refuses any other."""


class LocalSpark:
    """A Spark session, started by the first call; ``announce`` is called before a start that takes
    seconds. With ``users_code`` Spark is not shared with other commands, since its Python workers
    never reload a changed module."""

    def __init__(self, announce: Callable[[str], None], *, users_code: bool) -> None:
        self._announce = announce
        self._users_code = users_code
        self._session: SparkSession | None = None
        self._directory: str | None = None
        self._kept: KeptSpark | None = None
        self._announced = False
        self._lock = threading.Lock()

    def __call__(self) -> SparkSession:
        """Return the session; the first call starts it. Raises as ``spark.start``."""
        with self._lock:
            if self._session is None:
                self._session = self._start()
            return self._session

    def _start(self) -> SparkSession:
        from pyspark.sql import SparkSession  # noqa: PLC0415  only when it is needed

        from flumeng.agent.collector import class_archive, spark  # noqa: PLC0415  only when it is needed

        if not self._users_code and SparkSession.getActiveSession() is None:
            self._kept = spark_keeper.take(self._say_that_it_takes_long)
        if self._kept is not None:
            try:
                return spark.for_large_rows(_connected(self._kept))
            except UnavailableError:
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
            if self._session is not None:
                self._session.stop()
            if self._kept is not None:
                self._give_back(stopped=True)
            self._session = None
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)

    def _give_back(self, *, stopped: bool) -> None:
        assert self._kept is not None
        self._kept.give_back(stopped=stopped)
        self._kept = None


def _connected(kept: KeptSpark) -> SparkSession:
    from pyspark.errors import PySparkException  # noqa: PLC0415  only when it is needed
    from pyspark.sql import SparkSession  # noqa: PLC0415  only when it is needed

    try:
        return SparkSession.builder.remote(kept.url).create()
    except PySparkException as error:
        os.environ.pop(CONNECT_MODE, None)
        raise UnavailableError("the running Spark process does not answer") from error
