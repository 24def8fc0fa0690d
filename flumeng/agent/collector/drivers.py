"""How the collector drives Spark: through a JVM of its own, or a Spark Connect server. This is the
only place that knows the differences."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from flumeng.agent.collector import connect, jvm, spark
from flumeng.agent.collector.executor_units import RESULTS
from flumeng.agent.collector.sealed_stage import SealedStage
from flumeng.agent.collector.spark_reports import AccumulatedReports, ReportRows, StageReports
from flumeng.events.lazy_batch import Stage

CONNECT = "pyspark.sql.connect."
"""Where PySpark has its sessions of Spark Connect: to import them loads gRPC."""
RESULTS_IN_SPARK = from_arrow_schema(RESULTS, prefer_timestamp_ntz=False)


class Driver(Protocol):
    """``prepares``: whether one plan can serve many batches. ``parallelism``: the number of tasks
    for a large batch. ``unit_tasks``: the number of tasks of a job of units. ``pid``: of the JVM;
    None when it runs elsewhere."""

    @property
    def prepares(self) -> bool: ...

    @property
    def parallelism(self) -> int: ...

    @property
    def unit_tasks(self) -> int: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def ui_address(self) -> str: ...

    def job(self, name: str, description: str, slot: str = "") -> AbstractContextManager[None]:
        """Name the Spark jobs of this thread, so that ``cancel`` can end them."""

    def cancel(self, job: str) -> None: ...

    def run(self, stage: Stage, tasks: int, *, broadcasts: bool) -> list[Row]:
        """Run a stage from split numbers to RESULTS in so many tasks, one for each number.
        ``broadcasts``: the stage has broadcast variables, pickled by this thread."""

    def reports(self) -> StageReports:
        """Return the reports of the stages of one plan."""

    def for_large_rows(self) -> SparkSession:
        """Return a session that takes rows of any size into Python, slowly."""

    def ask(self) -> None:
        """Wait until Spark answers. Raises when it has ended. A liveness probe."""

    def trouble(self, place: str) -> str:
        """Return why the session is useless; empty while it is not. Called every second."""

    def is_starved(self) -> bool:
        """Return whether stages wait and no task runs."""

    def follow(self, give_up: Callable[[str], None]) -> None:
        """Wait for the end of the JVM, if there is one."""

    def let_go(self) -> None:
        """Let a JVM end with this process, or release the session of a server."""


class OwnDriver:
    """Spark's driver is a JVM of this process."""

    prepares = True

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._context = session.sparkContext
        local = (self._context.master or "").startswith("local")  # executors may lack cryptography
        self._sealed = SealedStage() if local else None
        self._reports = AccumulatedReports(session, self._sealed)
        self._plans: dict[int, DataFrame] = {}

    @property
    def pid(self) -> int | None:
        return jvm.pid()

    @property
    def ui_address(self) -> str:
        return spark.ui_address(self._session)

    @property
    def parallelism(self) -> int:
        return self._context.defaultParallelism

    @property
    def unit_tasks(self) -> int:
        return spark.unit_tasks(self._session)

    @contextmanager
    def job(self, name: str, description: str, slot: str = "") -> Iterator[None]:
        self._context.setJobGroup(name, description, interruptOnCancel=bool(slot))
        if slot:
            self._context.setLocalProperty("spark.scheduler.pool", slot)
        yield

    def cancel(self, job: str) -> None:
        self._context.cancelJobGroup(job)

    def run(self, stage: Stage, tasks: int, *, broadcasts: bool) -> list[Row]:
        if self._sealed is None or broadcasts:
            return _in_tasks(self._session, stage, tasks).collect()
        if tasks not in self._plans:
            self._plans[tasks] = _in_tasks(self._session, self._sealed, tasks)
        with self._sealed.given(self._context, pickle.dumps(stage)):
            return self._plans[tasks].collect()

    def reports(self) -> StageReports:
        return self._reports

    def for_large_rows(self) -> SparkSession:
        return spark.for_large_rows(self._session)

    def ask(self) -> None:
        spark.ask(self._session)

    def trouble(self, place: str) -> str:
        if spark.is_stopped(self._session):
            return f"Spark master {place} has ended the application"
        return ""

    def is_starved(self) -> bool:
        return spark.is_starved(self._session)

    def follow(self, give_up: Callable[[str], None]) -> None:
        jvm.wait_for_end()
        give_up("Spark's JVM has ended")

    def let_go(self) -> None:
        jvm.let_go()


class ConnectDriver:
    """Spark's driver is behind a Spark Connect server: jobs have tags, which belong to a thread. A
    plan serves one batch, since its stages hold the batch's splits."""

    prepares = False
    pid = None
    ui_address = ""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self.parallelism = self.unit_tasks = connect.tasks_at_once(session)

    @contextmanager
    def job(self, name: str, description: str, slot: str = "") -> Iterator[None]:
        del description, slot
        self._session.addTag(name)
        try:
            yield
        finally:
            self._session.removeTag(name)

    def cancel(self, job: str) -> None:
        self._session.interruptTag(job)

    def run(self, stage: Stage, tasks: int, *, broadcasts: bool) -> list[Row]:
        del broadcasts  # Spark Connect has none
        return _in_tasks(self._session, stage, tasks).collect()

    def reports(self) -> StageReports:
        return ReportRows()

    def for_large_rows(self) -> SparkSession:
        """Switch the session, for all flows: a second one would need our code again."""
        spark.take_large_rows(self._session)
        return self._session

    def ask(self) -> None:
        """``trouble`` asks, and ends this process."""

    def trouble(self, place: str) -> str:
        try:
            connect.ask(self._session)
        except (PySparkException, TimeoutError):
            return str(connect.no_answer(place))
        return ""

    def is_starved(self) -> bool:
        return False

    def follow(self, give_up: Callable[[str], None]) -> None: ...

    def let_go(self) -> None:
        connect.close(self._session)


def _in_tasks(session: SparkSession, stage: Stage, tasks: int) -> DataFrame:
    return session.range(0, tasks, 1, tasks).mapInArrow(stage, RESULTS_IN_SPARK)


@cache
def of(session: SparkSession) -> Driver:
    remote = type(session).__module__.startswith(CONNECT)
    return ConnectDriver(session) if remote else OwnDriver(session)
