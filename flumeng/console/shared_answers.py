"""Shares answers among viewers: equal questions within ``KEEP_SECONDS`` are computed once."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTimeError
from typing import Any, TypeVar

from flumeng.platform.errors import FlumengError, UnavailableError

KEEP_SECONDS = 2.0
MOST_ANSWERS = 256
WAIT_SECONDS = 10.0

T = TypeVar("T")


class SharedAnswers:
    """Thread-safe. Keeps at most ``most`` answers and errors. ``monotonic``: seconds."""

    def __init__(self, monotonic: Callable[[], float], most: int = MOST_ANSWERS) -> None:
        self._monotonic = monotonic
        self._most = most
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, tuple[Future[Any], float]] = OrderedDict()

    def answer(self, key: Hashable, make: Callable[[], T], keep_seconds: float = KEEP_SECONDS) -> T:
        """Return the result of ``make``, or an earlier one of the ``key`` for ``keep_seconds``.
        Waits while another thread makes it. Raises the FlumengError that ``make`` raised, and
        UnavailableError after WAIT_SECONDS of waiting."""
        with self._lock:
            self._forget()
            known = self._answers.get(key)
            if known is None:
                future: Future[T] = Future()
                self._answers[key] = future, math.inf
        if known is not None:
            try:
                shared: T = known[0].result(WAIT_SECONDS)
            except NotInTimeError as error:
                raise UnavailableError("no answer came in time: look again in a while") from error
            return shared
        try:
            made = make()
        except FlumengError as error:
            future.set_exception(error)
            self._keep(key, future, keep_seconds)
            raise
        except BaseException as error:
            future.set_exception(error)
            with self._lock:
                self._answers.pop(key, None)
            raise
        future.set_result(made)
        self._keep(key, future, keep_seconds)
        return made

    def _keep(self, key: Hashable, future: Future[Any], seconds: float) -> None:
        with self._lock:
            if key in self._answers:
                self._answers[key] = future, self._monotonic() + seconds
                self._answers.move_to_end(key)

    def _forget(self) -> None:
        """Drop answers that are too old, and the oldest beyond the bound."""
        now = self._monotonic()
        for key in [key for key, (_, until) in self._answers.items() if until <= now]:
            del self._answers[key]
        while len(self._answers) >= self._most:
            self._answers.popitem(last=False)
