"""A node's policy file that is read again while processes run. ``subscribers`` follow it; all other
limits are those of the start. A file that cannot be used leaves the last good one in force."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from flumeng.config import policy
from flumeng.config.policy import Policy, Subscriber
from flumeng.platform.errors import UserError
from flumeng.platform.trouble_log import TroubleLog

log = logging.getLogger(__name__)

REREAD_SECONDS = 10.0
NAME = "policy file"


class PolicyFile:
    """The file ``path``, last read as ``policy``; None stays as it is. Thread-safe. ``clock``:
    monotonic seconds."""

    def __init__(
        self, path: Path | None, policy: Policy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = clock()
        self._why = ""
        self._trouble = TroubleLog(log)

    def granted(self, subscriber: str) -> frozenset[str]:
        """As ``Policy.granted``."""
        return self._current().granted(subscriber)

    def subscriber(self, name: str) -> Subscriber:
        """As ``Policy.subscriber``."""
        return self._current().subscriber(name)

    def problems(self) -> dict[str, str]:
        """Return why the file cannot be used, by ``policy file``; nothing while it can."""
        self._current()
        return {NAME: self._why} if self._why else {}

    def _current(self) -> Policy:
        with self._lock:
            if self._path is not None and self._clock() - self._read_at >= REREAD_SECONDS:
                self._read_at = self._clock()
                self._reread(self._path)
            return self._policy

    def _reread(self, path: Path) -> None:
        try:
            self._policy = policy.load(path)
        except UserError as error:
            lines = "; ".join(str(error).splitlines())
            self._why = f"{lines}; the policy read before stays in force"
            self._trouble.log(logging.ERROR, "%s", self._why)
        else:
            self._why = ""
            self._trouble.end("the policy file %s can be used again", path)
