"""Logs a lasting trouble once, and its end."""

from __future__ import annotations

import logging
from collections import deque

from flumeng.platform.errors import FlumengError

MOST_KINDS = 16


class TroubleLog:
    """Logs each kind of one lasting trouble when it first occurs, until ``end`` logs that all is
    well. Retries may alternate between troubles, so the last ``MOST_KINDS`` kinds are remembered.
    Concurrent threads may both log one."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: deque[object] = deque(maxlen=MOST_KINDS)

    @property
    def lasts(self) -> bool:
        return bool(self._logged)

    def log(
        self,
        level: int,
        text: str,
        *args: object,
        cause: Exception | None = None,
        kind: object = None,
    ) -> None:
        """Log a trouble, an unexpected ``cause`` with its traceback. Default ``kind``: the text."""
        kind = text % args if kind is None else kind
        if kind not in self._logged:
            self._logged.append(kind)
            trace = None if isinstance(cause, FlumengError | OSError) else cause
            self._log.log(level, text, *args, exc_info=trace)

    def end(self, text: str, *args: object) -> None:
        """Log the end of the trouble, if there is one."""
        if self.lasts:
            self._logged.clear()
            self._log.info(text, *args)
