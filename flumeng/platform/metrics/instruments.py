"""Metrics and health of one process and its children."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from flumeng.platform.metrics import channel, table
from flumeng.platform.metrics.channel import Channel
from flumeng.platform.metrics.health import Health
from flumeng.platform.metrics.page import Page, Readings, merged
from flumeng.platform.metrics.table import Reading

ASK_SECONDS = 3.0
"""Seconds to wait for children; Prometheus waits ten seconds for a scrape by default."""
METRICS, HEALTH = "metrics", "health"


class Instruments:
    """Serves metrics and health. ``children``: channels of running processes, which have
    ``ask_seconds`` in all to answer. Thread-safe."""

    def __init__(
        self,
        process: str,
        health: Health,
        readings: Readings,
        children: Callable[[], Mapping[str, Channel]] = dict,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        self.health = health
        self.page = Page(process)
        self.page.add(self._readings)
        self.page.add(readings)
        self._children = children
        self._ask_seconds = ask_seconds
        self._answered: dict[str, bool] = {}
        self._lock = threading.Lock()

    def metrics(self) -> bytes:
        """Return this process's page, merged with those of the children that answer."""
        with self._lock:
            pages = self._ask(METRICS)
            self._answered = {child: page is not None for child, page in pages.items()}
            return merged([self.page.text(), *filter(None, pages.values())])

    def unready(self) -> list[str]:
        """Return why this process or a child is not ready, a sentence each."""
        with self._lock:
            answers = self._ask(HEALTH)
        reasons = self.health.unready
        for child, answer in answers.items():
            lines = ["it does not answer"] if answer is None else answer.decode().splitlines()
            reasons += [f"{child}: {line}" for line in lines]
        return reasons

    def serve_parent(self, descriptor: int) -> None:
        channel.serve(
            descriptor, {METRICS: self.metrics, HEALTH: lambda: "\n".join(self.unready()).encode()}
        )

    def _ask(self, what: str) -> dict[str, bytes | None]:
        children = dict(self._children())
        for asked in children.values():
            asked.ask(what)
        deadline = time.monotonic() + self._ask_seconds
        return {name: asked.answer(what, deadline) for name, asked in children.items()}

    def _readings(self) -> Iterator[Reading]:
        yield table.TURN_AGE.of(self.health.turn_age_seconds)
        yield table.READY.of(not self.health.unready)
        for child, answered in self._answered.items():
            yield table.CHILD_UP.of(answered, child)
