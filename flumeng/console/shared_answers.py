"""Answers that all viewers share for about two seconds, so that many cost what one does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

SECONDS = 2.0


@dataclass
class _Answer:
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: Any = None
    until: float = float("-inf")


class SharedAnswers:
    """Thread-safe. ``monotonic``: seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._answers: dict[Hashable, _Answer] = {}

    def answer(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what ``make`` returned for ``key`` within the last SECONDS. While one viewer
        makes an answer, others with this key wait for it. Raises what ``make`` raises."""
        with self._lock:
            now = self._monotonic()
            for old, answer in [*self._answers.items()]:
                if answer.until < now and not answer.lock.locked():
                    del self._answers[old]
            mine = self._answers.setdefault(key, _Answer())
        with mine.lock:
            if mine.until < self._monotonic():
                mine.value = make()
                mine.until = self._monotonic() + SECONDS
            made: T = mine.value
            return made
