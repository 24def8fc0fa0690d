"""Whether a collector's work goes on: it tells its node, and looks whether Spark can still do it.

A standalone master of Spark that was started anew knows nothing of an application and gives it no
executors any more; a new application gets some. So a collector that has had work and no executor
for long ends there, and the node starts it anew. No flow is to blame for that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from flumeng.agent.collector import spark
from flumeng.agent.node.in_progress import InProgress
from flumeng.agent.node.protocol import ALIVE_SECONDS, Message
from flumeng.config.spark import SparkOptions

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
TOLD_AFTER_SECONDS = 10.0
ALONE_SECONDS = 60.0


class Liveness:
    """Says ``alive``, in a thread of its own, after each round in which all of ``probes`` returned.

    A probe returns when what it asks has answered, as Spark's JVM does. One that raises or does not
    return keeps the collector silent, and the node ends it. ``held`` says what it waits for, if it
    does.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        probes: Sequence[Callable[[], object]],
        held: Callable[[], str] = str,
        seconds: float = ALIVE_SECONDS,
    ) -> None:
        self._send = send
        self._probes = probes
        self._held = held
        self._seconds = seconds

    def start(self) -> None:
        threading.Thread(target=self._run, name="liveness", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                for probe in self._probes:
                    probe()
            except Exception as error:
                log.error("the collector cannot say that it is alive: %s", error)
            else:
                self._send({"type": "alive", "held": self._held()})
            time.sleep(self._seconds)


class Application:
    """A collector's application on Spark. ``running`` says how many jobs there are now."""

    def __init__(
        self,
        session: SparkSession,
        options: SparkOptions,
        running: Callable[[], int],
        in_progress: InProgress,
    ) -> None:
        self._session = session
        self._options = options
        self._running = running
        self._in_progress = in_progress
        self._alone_since: float | None = None

    def follow(self) -> str:
        """Return why the application can do nothing any more."""
        while not (why := self._trouble()):
            time.sleep(LOOK_SECONDS)
        self._in_progress.take()
        return why

    def held(self) -> str:
        """What the jobs wait for; empty while there is an executor."""
        since = self._alone_since
        if since is None or time.monotonic() - since < TOLD_AFTER_SECONDS:
            return ""
        return f"no executor of {self._options.master} has come: is a worker with free cores there?"

    def _trouble(self) -> str:
        try:
            if spark.is_stopped(self._session):
                return f"{self._options.master} has ended the application"
            if not self._options.standalone:
                return (
                    ""  # others may let jobs wait for longer than a node lets a collector be held
                )
            works = not self._running() or spark.executors(self._session) > 0
        except Py4JError:
            return ""  # the JVM has ended, which another thread notices
        now = time.monotonic()
        if works:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > ALONE_SECONDS:
            return self.held()
        return ""
