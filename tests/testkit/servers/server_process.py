"""A process that serves sinks in tests: started, waited for, frozen and killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PAUSE_SECONDS = 0.05


class ServerProcess:
    """What servers have in common. ``given``: the address of one that runs already, as the
    environment has it in ``variable``; it is never started, frozen or killed here."""

    name: str
    variable: str

    def __init__(self, log: Path) -> None:
        self.given = os.environ.get(self.variable)
        self.process: subprocess.Popen[bytes] | None = None
        self._log = log

    def kill(self) -> None:
        """SIGKILL; what is on disk stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it if it was started; what is on disk stays."""
        if self.process is not None:
            self.kill()

    def freeze(self) -> None:
        """It takes connections and answers nothing, until ``thaw``."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _launch(self, command: Sequence[str], **options: Any) -> None:
        """Start it, and do not wait. ``options`` are those of ``Popen``."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **options)

    def _wait(self, answers: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not answers():
            if self.process is not None:
                assert self.process.poll() is None, self._log.read_text()[-5000:]
            assert time.monotonic() < deadline, f"{self.name} did not answer in time"
            time.sleep(PAUSE_SECONDS)

    def _end(self, number: signal.Signals) -> None:
        started = self._started
        started.send_signal(number)
        started.wait()

    def _signal(self, number: signal.Signals) -> None:
        """Stop or continue it."""
        self._started.send_signal(number)

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, f"{self.name} was not started here"
        return self.process


def listens(address: str) -> bool:
    """Whether somebody takes connections at ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
