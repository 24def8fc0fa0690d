"""What a collector tells its node: the status of all tasks, whenever some of them have changed.

A report carries all tasks, so changes that come soon after one another share one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Protocol

from flumeng.agent.collector.status import Status
from flumeng.agent.node.protocol import Message
from flumeng.platform import vital

GAP_SECONDS = 0.1


class Listener(Protocol):
    """The node; see ``Parent``."""

    def send(self, message: Message) -> None: ...


class Reports:
    """Used from any thread; sends from one of its own."""

    def __init__(self, parent: Listener) -> None:
        self._parent = parent
        self._news = threading.Condition()
        self._changed = False
        self._answers: int | None = None
        self._statuses: dict[str, Status] = {}
        vital.start("reports", self._send)

    def tell(self, key: str, status: Status) -> None:
        """The task's status is another one."""
        with self._news:
            self._statuses[key] = status
            self._change()

    def answer(self, number: int, keys: Collection[str], starting: Mapping[str, Status]) -> None:
        """Configuration ``number`` is the one that runs, with the tasks ``keys``."""
        with self._news:
            self._answers = number
            kept = {key: told for key, told in self._statuses.items() if key in keys}
            self._statuses = {**kept, **starting}
            self._change()

    def _change(self) -> None:
        self._changed = True
        self._news.notify()

    def _send(self) -> None:
        while True:
            with self._news:
                while not self._changed:
                    self._news.wait()
                self._changed = False
                tasks = {key: asdict(status) for key, status in self._statuses.items()}
                message = {"type": "status", "answers": self._answers, "tasks": tasks}
            self._parent.send(message)
            time.sleep(GAP_SECONDS)
