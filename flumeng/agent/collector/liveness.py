"""Liveness of a collector and of its Spark application. A restarted standalone master gives an
unknown application no executors. So a collector that has had work but no executor for a minute
ends, no flow is blamed, and the node restarts it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError

from flumeng.agent.collector.drivers import Driver
from flumeng.agent.node.protocol import ALIVE_SECONDS, Message
from flumeng.agent.node.running_jobs import RunningJobs
from flumeng.config.spark import SparkOptions

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
TOLD_AFTER_SECONDS = 10.0
UNANSWERED_SECONDS = 5.0
ALONE_SECONDS = 60.0


def report(
    send: Callable[[Message], None],
    probes: Sequence[Callable[[], object]],
    held: Callable[[], str] = str,
    seconds: float = ALIVE_SECONDS,
) -> None:
    """Send ``alive`` after each round of successful ``probes``, forever. While a probe raises or
    hangs, nothing is sent, and the node ends the collector."""
    while True:
        try:
            for probe in probes:
                probe()
        except Exception as error:
            log.error("the node restarts this collector unless this ends soon: %s", error)
        else:
            send({"type": "alive", "held": held()})
        time.sleep(seconds)


class Application:
    def __init__(
        self,
        driver: Driver,
        options: SparkOptions,
        running: Callable[[], int],
        running_jobs: RunningJobs,
    ) -> None:
        self._driver = driver
        self._options = options
        self._running = running
        self._running_jobs = running_jobs
        self._alone_since: float | None = None
        self._asked_at: float | None = None
        """When Spark was asked for its state; None while no question is open."""

    def follow(self) -> str:
        """Wait until the application is useless; remove its record of jobs, return the reason."""
        while not (why := self._answer()):
            time.sleep(LOOK_SECONDS)
        self._running_jobs.take()
        return why

    def held(self) -> str:
        """Return why jobs wait: Spark has not answered for 5 s, or has had no executor for 10 s.
        Empty otherwise."""
        asked_at, since = self._asked_at, self._alone_since
        if asked_at is not None and time.monotonic() - asked_at >= UNANSWERED_SECONDS:
            return f"Spark at {self._options.place} has not answered for {UNANSWERED_SECONDS:g} s"
        if since is None or time.monotonic() - since < TOLD_AFTER_SECONDS:
            return ""
        return f"Spark at {self._options.place} gives no executor: has a worker free cores?"

    def _answer(self) -> str:
        self._asked_at = time.monotonic()
        try:
            return self._trouble()
        finally:
            self._asked_at = None

    def _trouble(self) -> str:
        try:
            if why := self._driver.trouble(self._options.place):
                return why
            if not self._options.standalone:
                return ""  # other masters may queue jobs for longer
            works = not self._running() or not self._driver.is_starved()
        except (Py4JError, OSError):
            return ""  # the JVM has ended, which another thread notices
        now = time.monotonic()
        if works:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > ALONE_SECONDS:
            return self.held()
        return ""
