"""Keeps Spark running between commands of one user, since its start dominates short runs.

A *keeper* process holds a Spark Connect server; each command has its own session there. A keeper
serves one command at a time, and only with equal code, Java, jars, environment and working
directory, which Spark's Python workers inherit. It ends after five idle minutes, at a command that
differs, or when one ends without reporting that its jobs are stopped. Without XDG_RUNTIME_DIR each
command starts Spark itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import flumeng
from flumeng.agent.collector import jvm
from flumeng.config.spark import SparkOptions
from flumeng.platform import private_directory
from flumeng.platform.errors import FlumengError
from flumeng.platform.processes import PYTHON

RUNTIME_VARIABLE = "XDG_RUNTIME_DIR"
OPTIONS = SparkOptions(master="local[1]")
"""Options of the kept Spark: one task at a time, so that events keep their order."""
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
CONNECT_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
SOCKET = "java.socket"
IDLE_SECONDS = 300.0
START_SECONDS = 120.0
ANSWER_SECONDS = 1.0
"""Longest wait for the keeper's answer; a keeper that serves another command refuses at once."""
LOOPBACK = "127.0.0.1"
_NO_SETTING = frozenset({"_", "OLDPWD", "SHLVL", "COLUMNS", "LINES"})
"""Environment variables that shells change with each command; they are not compared."""
_DONE = b"done\n"
_MOST_BYTES = 4096
_MOST_PATH_BYTES = 40
"""Most bytes of the directory's path, so that the names of Spark's Unix sockets fit."""


@dataclass
class KeptSpark:
    """The keeper's Spark Connect server, reserved for this process until ``give_back``."""

    port: int
    token: str
    connection: socket.socket

    @property
    def url(self) -> str:
        return f"sc://localhost:{self.port}/;token={self.token}"  # by no other name without TLS

    def give_back(self, *, stopped: bool) -> None:
        """Return it to the keeper. ``stopped``: no job of this command runs in it any more."""
        with self.connection, suppress(OSError):
            if stopped:
                self.connection.sendall(_DONE)


def take(starting: Callable[[], object]) -> KeptSpark | None:
    """Reserve the keeper's Spark; when no keeper runs, call ``starting`` and start one. None when
    it serves another command or cannot be started."""
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


def _ask(directory: Path, setting: str) -> KeptSpark | None:
    """Ask a running keeper for its Spark. None when no keeper runs, or when it ends since its
    setting differs. Raises OSError when it serves another command."""
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
        return KeptSpark(int(answer["port"]), str(answer["token"]), connection)
    except (OSError, ValueError, KeyError) as error:
        connection.close()
        raise OSError("the keeper does not answer") from error


def _start(directory: Path, setting: str) -> KeptSpark | None:
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
            answer = self._start_spark()
            try:
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(str(path))
                    listener.listen()
                    os.write(ready, b"\n")
                    os.close(ready)
                    self._listen(listener, answer)
            finally:
                path.unlink(missing_ok=True)
                jvm.end()
                shutil.rmtree(self._directory / "spark", ignore_errors=True)

    def _start_spark(self) -> dict[str, object]:
        """Start Spark with a Connect server; return the server's port and token."""
        from flumeng.agent.collector import class_archive, spark  # noqa: PLC0415  loads PySpark

        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port = probe.getsockname()[1]
        token = secrets.token_hex(32)
        settings = {
            "spark.plugins": CONNECT_PLUGIN,
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": str(port),
        }
        os.environ[TOKEN_VARIABLE] = token  # the host's users see command lines
        cache = class_archive.cache_of(self._directory)
        options = class_archive.java_options(cache)
        spark.start(
            self._directory / "spark", OPTIONS, more_java_options=options, more_settings=settings
        )
        return {"port": port, "token": token}

    def _listen(self, listener: socket.socket, answer: Mapping[str, object]) -> None:
        listener.settimeout(self._idle_seconds)
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
