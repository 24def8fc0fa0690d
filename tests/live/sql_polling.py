"""A process with a Spark of its own that has the driver of a database and asks it polls."""

from __future__ import annotations

import multiprocessing
import os
import threading
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flumeng.config.spark import SparkOptions
from flumeng.connectors.polls.poll import Answer
from flumeng.connectors.polls.sql_options import SqlPollSource
from tests.testkit.servers import maven

DRIVER = "org.postgresql:postgresql:42.7.4"
DUE = datetime(2026, 11, 26, 12, tzinfo=UTC)


class Polling:
    """``ask`` waits for the answer; ``begin`` does not, and ``close_poll`` may come before it."""

    def __init__(self, directory: Path, environment: dict[str, str], conf: dict[str, str]) -> None:
        jars = tuple(str(jar) for jar in maven.jars(DRIVER).glob("postgresql-*.jar"))
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, directory, jars, environment, conf), daemon=True
        )
        self._process.start()

    def ask(self, options: SqlPollSource, state: str = "", *, page_rows: int = 20_000) -> Answer:
        self.begin(options, state, page_rows=page_rows)
        return self.end()

    def begin(self, options: SqlPollSource, state: str = "", *, page_rows: int = 20_000) -> None:
        self._ours.send((options, state, page_rows))

    def close_poll(self) -> None:
        self._ours.send(None)

    def end(self) -> Answer:
        found = self._ours.recv()
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Answer)
        return found

    def stop(self) -> None:
        self._ours.close()
        self._process.join(30)
        self._process.kill()


def _serve(
    asked: Connection,
    directory: Path,
    jars: tuple[str, ...],
    environment: dict[str, str],
    conf: dict[str, str],
) -> None:
    os.environ.update(environment)
    from flumeng.agent.collector import class_archive  # noqa: PLC0415
    from flumeng.agent.collector import spark as sessions  # noqa: PLC0415  # not where it is spawned
    from flumeng.connectors.polls.jdbc import SparkJdbc  # noqa: PLC0415
    from flumeng.connectors.polls.sql_poll import SqlPoll  # noqa: PLC0415

    java_options = class_archive.java_options(class_archive.cache_of(directory))
    options = SparkOptions(jars=jars, conf=conf)
    spark = sessions.start(directory, options, more_java_options=java_options)
    polls: dict[Any, Any] = {}
    last: list[Any] = []

    def answer(options: SqlPollSource, state: str, page_rows: int) -> None:
        try:
            key = repr(options), page_rows
            if key not in polls:
                polls[key] = SqlPoll(options, SparkJdbc(spark, options), page_rows)
            last[:] = [polls[key]]
            asked.send(polls[key].ask(state, DUE))
        except Exception as error:
            asked.send(type(error)(*map(str, error.args)))

    while True:
        try:
            given = asked.recv()
        except EOFError:
            spark.stop()
            return
        if given is None:
            last[0].close()
            continue
        threading.Thread(target=answer, args=given, daemon=True).start()
