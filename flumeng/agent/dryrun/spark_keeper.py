"""Keeps a Spark context running between commands of one user, since its start dominates short runs.

A *keeper* process holds the context; each command has its own session. A keeper serves one command
at a time, and only with equal code, Java, jars, environment and working directory, which Spark's
Python workers inherit. It ends after five idle minutes, at a command that differs, or when one ends
without reporting that its jobs are stopped. Without XDG_RUNTIME_DIR each command starts a JVM.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import flumeng
from flumeng.config.spark import SparkOptions
from flumeng.platform import private_directory
from flumeng.platform.errors import FlumengError
from flumeng.platform.processes import PYTHON

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

RUNTIME_VARIABLE = "XDG_RUNTIME_DIR"
PORT_VARIABLE, SECRET_VARIABLE = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
"""PySpark connects to an existing JVM when these variables are set."""
OPTIONS = SparkOptions(master="local[1]")
"""Options of the kept Spark: one task at a time, so that events keep their order."""
SOCKET = "java.socket"
IDLE_SECONDS = 300.0
START_SECONDS = 120.0
ANSWER_SECONDS = 1.0
"""Longest wait for the keeper's answer; a keeper that serves another command refuses at once."""
_NO_SETTING = frozenset({"_", "OLDPWD", "SHLVL", "COLUMNS", "LINES"})
"""Environment variables that shells change with each command; they are not compared."""
_DONE = b"done\n"
_MOST_BYTES = 4096
_MOST_PATH_BYTES = 40
"""Most bytes of the directory's path, so that the names of Spark's Unix sockets fit."""


@dataclass
class KeptJvm:
    """The keeper's JVM, reserved for this process until ``give_back``."""

    port: int
    secret: str
    connection: socket.socket

    def environment(self) -> dict[str, str]:
        return {PORT_VARIABLE: str(self.port), SECRET_VARIABLE: self.secret}

    def give_back(self, *, stopped: bool) -> None:
        """Return the JVM to the keeper. ``stopped``: no job of this command runs in it any more."""
        with self.connection, suppress(OSError):
            if stopped:
                self.connection.sendall(_DONE)


def take(starting: Callable[[], object]) -> KeptJvm | None:
    """Reserve the keeper's JVM; when no keeper runs, call ``starting`` and start one. None when it
    serves another command or cannot be started."""
    directory = _directory()
    if directory is None:
        return None
    try:
        setting = _setting()
        if jvm := _ask(directory, setting):
            return jvm
        starting()
        return _start(directory, setting)
    except (OSError, ValueError, FlumengError):
        return None


def _directory() -> Path | None:
    given = os.environ.get(RUNTIME_VARIABLE, "")
    with suppress(OSError):
        runtime = Path(given)
        if runtime.is_absolute() and runtime.stat().st_uid == os.getuid():
            directory = runtime / "flumeng"
            directory.mkdir(exist_ok=True, mode=private_directory.DIRECTORY_MODE)
            status = directory.lstat()
            short = len(os.fsencode(directory)) <= _MOST_PATH_BYTES
            if (
                short
                and status.st_uid == os.getuid()
                and not status.st_mode & private_directory.OTHERS
            ):
                return directory
    return None


def _setting() -> str:
    """Return a hash of everything that the JVM and its Python workers inherit from this command."""
    from flumeng.agent.collector import class_archive  # noqa: PLC0415  loads PySpark

    variables = {name: value for name, value in os.environ.items() if name not in _NO_SETTING}
    archive = class_archive.archive_in(Path()).name
    code = max(file.stat().st_mtime for file in Path(flumeng.__file__).parent.rglob("*.py"))
    inherited = [code, sys.executable, archive, str(Path.cwd()), variables]
    return hashlib.sha256(json.dumps(inherited, sort_keys=True).encode()).hexdigest()


def _ask(directory: Path, setting: str) -> KeptJvm | None:
    """Ask a running keeper for its JVM. None when no keeper runs, or when it ends since its setting
    differs. Raises OSError when it serves another command."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(str(directory / SOCKET))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        connection.sendall(f"{setting}\n".encode())
        answer = json.loads(connection.recv(_MOST_BYTES) or b"{}")
        if answer.get("ends"):
            connection.close()
            return None
        return KeptJvm(int(answer["port"]), str(answer["secret"]), connection)
    except (OSError, ValueError, KeyError) as error:
        connection.close()
        raise OSError("the keeper does not answer") from error


def _start(directory: Path, setting: str) -> KeptJvm | None:
    keeper = subprocess.Popen(
        [*PYTHON, "flumeng.agent.dryrun.spark_keeper", str(directory), setting, str(IDLE_SECONDS)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert keeper.stdout is not None
    with keeper.stdout:
        ready, _, _ = select.select([keeper.stdout], [], [], START_SECONDS)
        if not ready or not keeper.stdout.read(1):
            keeper.terminate()
            return None
    return _ask(directory, setting)


class _Keeper:
    def __init__(self, directory: Path, setting: str, idle_seconds: float) -> None:
        self._directory = directory
        self._setting = setting
        self._idle_seconds = idle_seconds

    def run(self) -> None:
        with (self._directory / "java.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            ready = os.dup(sys.stdout.fileno())
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            path = self._directory / SOCKET
            path.unlink(missing_ok=True)
            gateway = self._start_java()
            try:
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(str(path))
                    listener.listen()
                    os.write(ready, b"\n")
                    os.close(ready)
                    self._listen(listener, gateway)
            finally:
                path.unlink(missing_ok=True)
                gateway.proc.stdin.close()
                gateway.proc.wait()
                shutil.rmtree(self._directory / "spark", ignore_errors=True)

    def _start_java(self) -> JavaGateway:
        from flumeng.agent.collector import class_archive, spark  # noqa: PLC0415  that loads PySpark

        cache = class_archive.cache_of(self._directory)
        options = class_archive.java_options(cache)
        session = spark.start(self._directory / "spark", OPTIONS, more_java_options=options)
        gateway = session.sparkContext._gateway
        assert gateway is not None
        return gateway

    def _listen(self, listener: socket.socket, gateway: JavaGateway) -> None:
        listener.settimeout(self._idle_seconds)
        parameters = gateway.gateway_parameters
        answer = {"port": parameters.port, "secret": parameters.auth_token}
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                return
            with connection, suppress(OSError):
                connection.settimeout(ANSWER_SECONDS)
                setting = connection.recv(_MOST_BYTES).decode(errors="replace").strip()
                connection.settimeout(None)
                if not setting:
                    continue
                if setting != self._setting:
                    # Another keeper takes the place of this one.
                    (self._directory / SOCKET).unlink(missing_ok=True)
                    (self._directory / "java.lock").unlink(missing_ok=True)
                    connection.sendall(json.dumps({"ends": True}).encode())
                    return
                connection.sendall(json.dumps(answer).encode())
                if not _serve(listener, connection):
                    return


def _serve(listener: socket.socket, connection: socket.socket) -> bool:
    """Wait until the command ends, refusing others. Returns whether it has stopped its jobs."""
    while True:
        ready, _, _ = select.select([listener, connection], [], [])
        if connection in ready:
            with suppress(OSError):
                return connection.recv(_MOST_BYTES) == _DONE
            return False
        listener.accept()[0].close()


def main() -> None:
    """``python -m flumeng.agent.dryrun.spark_keeper DIRECTORY SETTING IDLE_SECONDS``."""
    directory, setting, idle_seconds = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.umask(private_directory.OTHERS)
    _Keeper(Path(directory), setting, float(idle_seconds)).run()


if __name__ == "__main__":
    main()
