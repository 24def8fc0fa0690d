"""Restarts a ZooKeeper server that ends by itself, as on a full disk: its exit code is then 0,
which supervisors take for success."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from flumeng.agent.standalone.embedded import free_port, server_command
from flumeng.platform import private_directory, processes, secrets
from flumeng.platform.backoff import Backoff
from flumeng.platform.errors import UserError
from flumeng.platform.processes import die_with_parent
from flumeng.platform.security.credentials import keystore_of

log = logging.getLogger(__name__)

RESTART_SECONDS = 1.0
RESTART_MOST_SECONDS = 10.0
HEALTHY_SECONDS = 60.0
STOP_SECONDS = 10.0
LOOK_SECONDS = 0.2


class ZooKeeperSupervisor:
    """A server on ``host:port`` with its state in ``data``; ``stop`` may be called at any time."""

    def __init__(self, data: Path, port: int, host: str, plain_port: int | None) -> None:
        self.port = port or free_port(host)
        self._data, self._host, self._plain_port = data, host, plain_port
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> int:
        """Supervise the started server until ``stop``; return the exit code. A server that has
        never served is not restarted."""
        served, backoff = False, Backoff(RESTART_SECONDS, RESTART_MOST_SECONDS)
        while True:
            began = time.monotonic()
            assert self._process is not None
            while (code := self._process.poll()) is None:
                served = served or self._serves()
                if self._stopping.wait(LOOK_SECONDS):
                    return self._terminate()
            if not served:
                return code
            if time.monotonic() - began > HEALTHY_SECONDS:
                backoff.reset()
            free = shutil.disk_usage(self._data).free >> 20
            text = "ZooKeeper ended with exit code %d, its disk has %d MiB free; restarting"
            log.warning(text, code, free)
            if self._stopping.wait(backoff.next()):
                return 0
            try:
                self.start()
            except (OSError, UserError) as error:
                log.warning("the ZooKeeper server cannot be started: %s", error)

    def start(self) -> None:
        """Start the server. Raises UserError as ``server_command``, OSError."""
        command = server_command(
            self._data,
            self.port,
            host=self._host,
            keystore=keystore_of("zookeeper"),
            plain_port=self._plain_port,
        )
        self._process = subprocess.Popen(
            command,
            env=secrets.without(os.environ),
            preexec_fn=die_with_parent,  # noqa: PLW1509  no thread runs
        )

    def _serves(self) -> bool:
        try:
            socket.create_connection((self._host, self.port), timeout=LOOK_SECONDS).close()
        except OSError:
            return False
        return True

    def _terminate(self) -> int:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return 0


def run(data: Path, port: int, *, host: str, plain_port: int | None) -> int:
    """Serve until SIGTERM or SIGINT, after printing the address; return the exit code. Raises
    UserError when the first server cannot be started."""
    os.umask(private_directory.OTHERS)
    processes.forbid_core_dumps()
    supervisor = ZooKeeperSupervisor(data, port, host, plain_port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    supervisor.start()
    print(f"zookeeper {host}:{supervisor.port}", flush=True)
    return supervisor.run()
