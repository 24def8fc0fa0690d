"""A process that serves sinks in tests: started, waited for, frozen and killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.testkit.daemons import start_logged
from tests.testkit.waiting import wait_for


class ServerProcess:
    """Base of the servers. ``given``: the address of a running server from the environment variable
    ``variable``; it is never started, frozen or killed here."""

    name: str
    variable: str

    def __init__(self, log: Path) -> None:
        self.given = os.environ.get(self.variable)
        self.process: subprocess.Popen[bytes] | None = None
        self._log = log

    def kill(self) -> None:
        """SIGKILL; the files stay."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it if it was started; the files stay."""
        if self.process is not None:
            self.kill()

    def freeze(self) -> None:
        """Accept connections and answer nothing, until ``thaw``."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _launch(self, command: Sequence[str], **options: Any) -> None:
        """Start it, and do not wait. ``options`` are those of ``Popen``."""
        self.process = start_logged(self._log, *command, **options)

    def _wait(self, answers: Callable[[], bool], seconds: float) -> None:
        def is_ready() -> bool:
            if self.process is not None:
                assert self.process.poll() is None, self._log.read_text()[-5000:]
            return answers()

        wait_for(is_ready, f"{self.name} does not answer", seconds=seconds)

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
    """Whether there is a listener at ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
