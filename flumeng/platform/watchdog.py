"""Ends a daemon whose main loop hangs: another thread would keep its ZooKeeper session alive.
Reports to systemd while the loop iterates. Time in which the whole process was stopped (SIGSTOP)
does not count; systemd ends such a process by ``WatchdogSec``, see ``sd_notify(3)``."""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, MutableMapping

from flumeng.platform.garbage_collection import current_frames
from flumeng.platform.metrics.health import Health

log = logging.getLogger(__name__)

EXIT_CODE = 75
"""The exit code of a daemon that its watchdog ended, and of no other."""
CHECK_SECONDS = 1.0
LATE_SECONDS = 1.0
"""A check that is later than this shows that the process was stopped."""
REPORT_SECONDS = 1.0
LOG_SECONDS = 2.0
"""Maximum seconds to log: the hung thread may hold a lock of logging."""


class ServiceManager:
    """Reports to systemd if NOTIFY_SOCKET is set (``Type=notify``); removes it from ``environ``."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def notify(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(state.encode(), self._address)
        except OSError as error:
            log.debug("systemd does not take %s: %s", state, error)


class Watchdog:
    """Watches the daemon ``name``, whose loop runs in the creating thread and reports iterations to
    ``health``. ``clock``: monotonic seconds."""

    def __init__(
        self,
        name: str,
        health: Health,
        *,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._name = name
        self._health = health
        self._clock = clock
        self._end = end
        self._loop = threading.get_ident()
        self._manager = ServiceManager(os.environ)
        self._is_ready = False
        self._reported_at = float("-inf")
        self._checked_at = clock()

    def start(self) -> None:
        """Watch until the process ends. At systemd's SIGABRT, write all stacks to stderr."""
        faulthandler.enable()
        self._health.on_turn = self._report
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(CHECK_SECONDS)
            self.check()

    def check(self) -> None:
        now = self._clock()
        stood_still = now - self._checked_at - CHECK_SECONDS
        self._checked_at = now
        if stood_still > LATE_SECONDS:
            self._health.be_patient(stood_still)
        if self._health.stuck:
            self._give_up(self._health.stuck)

    def _give_up(self, why: str) -> None:
        logger = threading.Thread(target=self._log, args=[why], daemon=True)
        logger.start()
        logger.join(LOG_SECONDS)
        self._end(EXIT_CODE)

    def _log(self, why: str) -> None:
        frame = current_frames().get(self._loop)
        where = "".join(traceback.format_stack(frame)) if frame else "its thread has ended\n"
        log.error("%s: %s; ending with exit code %d:\n%s", self._name, why, EXIT_CODE, where)

    def _report(self) -> None:
        now = self._clock()
        if now - self._reported_at < REPORT_SECONDS:
            return
        self._reported_at = now
        self._manager.notify("WATCHDOG=1" if self._is_ready else "READY=1\nWATCHDOG=1")
        self._is_ready = True
