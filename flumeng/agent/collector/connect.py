"""The Spark session of a collector on a Spark Connect server, in place of a JVM of its own.

The server owns cores, memory, jars and its Python. The session gets our settings of Spark SQL and,
as an artifact, flumeng's code. The URL's token is resolved here and appears in no message.
"""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import max as max_of
from pyspark.sql.functions import spark_partition_id

from flumeng.agent.collector import spark
from flumeng.agent.collector.outcome import one_line
from flumeng.config.spark import CONNECT, SparkOptions
from flumeng.events.lazy_batch import Fused
from flumeng.platform import private_directory, secrets
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.options.patterns import SECRET

T = TypeVar("T")

REACH_SECONDS = 5.0
LOOK_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""A server that takes longer for a small call is frozen: gRPC would wait for it forever."""
CLOSE_SECONDS = 2.0
RETRIES, FIRST_BACKOFF_MS, MOST_BACKOFF_MS = 3, 100, 500
"""By default PySpark repeats a failed call for ten minutes."""
MOST_TASKS = 4096
PACKAGES = "conf/spark/executors.txt"


def start(
    directory: Path, options: SparkOptions, waits: Callable[[str], None] = lambda _: None
) -> SparkSession:
    """Open a session. ``directory`` is emptied; it holds the code that is sent. ``waits`` is called
    every 5 s with the reason. Raises UserError for secrets and ``directory``, UnavailableError when
    no server listens, or it has another version of Spark or of Python, or lacks a package."""
    url = _url(options)
    settings = _given_settings(options)
    _reach(options.place)
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, mode=private_directory.DIRECTORY_MODE)
        code = str(spark.archive(directory))
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror}") from error

    def open_session() -> SparkSession:
        session = _session(url)
        _require_same_version(session, options.place)
        session.addArtifacts(code, pyfile=True)
        for name, value in spark.session_settings(1).items():
            session.conf.set(name, value)
        session.conf.set("spark.sql.shuffle.partitions", str(2 * tasks_at_once(session)))
        for name, value in settings.items():
            session.conf.set(name, value)
        return session

    opening = _in_thread(open_session)
    while True:
        try:
            return opening.result(LOOK_SECONDS)
        except TimeoutError:
            waits(f"the Spark Connect server {options.place} has not answered yet")
        except PySparkException as error:
            raise _explained(error, options.place) from error


def _session(url: str) -> SparkSession:
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415  loads gRPC

    session = SparkSession.builder.remote(url).create()
    policy = DefaultPolicy(
        max_retries=RETRIES, initial_backoff=FIRST_BACKOFF_MS, max_backoff=MOST_BACKOFF_MS
    )
    session.client.set_retry_policies([policy])
    return session


def tasks_at_once(session: SparkSession) -> int:
    """Return the number of tasks that the server's Spark runs at once. The job fails when the
    server's Python cannot load flumeng."""
    numbers = session.range(0, MOST_TASKS)
    tasks = numbers.mapInArrow(Fused(()), numbers.schema).select(spark_partition_id().alias("task"))
    return int(tasks.agg(max_of("task")).collect()[0][0]) + 1


def ask(session: SparkSession) -> None:
    """Wait for an answer of the server. Raises PySparkException, or TimeoutError if frozen."""
    _in_thread(lambda: session.conf.get("spark.sql.session.timeZone")).result(ANSWER_SECONDS)


def close(session: SparkSession) -> None:
    """Release the session on the server, which else keeps it and its Python workers for an hour."""
    with suppress(TimeoutError):
        _in_thread(session.stop).result(CLOSE_SECONDS)


def no_answer(place: str) -> UnavailableError:
    return UnavailableError(f"the Spark Connect server {place} does not answer")


def _in_thread(call: Callable[[], T]) -> Future[T]:
    """Run ``call`` in a thread, which is left behind when it hangs."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="connect", daemon=True).start()
    return result


def _url(options: SparkOptions) -> str:
    given = {
        name: secrets.resolve(value) if SECRET.fullmatch(value) else value
        for name, value in options.parameters.items()
    }
    parameters = "".join(f";{name}={quote(value, safe='')}" for name, value in given.items())
    return f"{options.place}/{parameters}"


def _given_settings(options: SparkOptions) -> dict[str, str]:
    settings = {}
    for name, given in options.conf.items():
        hidden = SECRET.fullmatch(given) is not None
        if hidden:
            spark.require_redacted(name)
        settings[name] = secrets.resolve(given) if hidden else given
    return settings


def _reach(place: str) -> None:
    """Raise UnavailableError if no server listens: PySpark takes minutes to notice."""
    host, _, port = place.removeprefix(CONNECT).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except OSError as error:
        raise no_answer(place) from error


def _require_same_version(session: SparkSession, place: str) -> None:
    there, here = session.version, pyspark.__version__
    if there.split(".")[:2] != here.split(".")[:2]:
        raise UnavailableError(
            f"the Spark Connect server {place} has Spark {there}, and this node PySpark {here}: "
            "install the same version"
        )


def _explained(error: PySparkException, place: str) -> FlumengError:
    cause = one_line(error)
    if isinstance(cause, UnavailableError):
        return no_answer(place)
    if "StatusCode.UNAUTHENTICATED" in str(error):
        return UnavailableError(f"the Spark Connect server {place} refuses the token")
    text = str(cause)
    if "ModuleNotFoundError" in text or "ImportError" in text:
        text = f"{text}: install the packages of {PACKAGES} in its Python"
    return UnavailableError(f"the Spark Connect server {place} cannot run batches: {text}")
