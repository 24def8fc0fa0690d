"""A real PostgreSQL on a free port, from the packages of the system.

``FLUMENG_TEST_POSTGRES=postgresql://USER:PASSWORD@HOST:PORT/DATABASE`` names one that runs already;
it is not killed then. A server refuses to run as root, so root runs it as another user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import adbc_driver_postgresql.dbapi as adbc

from flumeng.errors import UserError
from flumeng.runtime.embedded import free_port

USER, DATABASE, PASSWORD = "flumeng", "logs", "never-a-secret"
UNPRIVILEGED = ("postgres", "nobody")
CONFIGURATION = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
max_connections = 50
"""


def find() -> Path:
    """The directory of the server's programs. Raises UserError where there is none."""
    beside = shutil.which("initdb")
    places = [Path(beside).resolve().parent] if beside else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "postgres").exists():
            return place
    raise UserError("PostgreSQL is missing; on Debian or Ubuntu: sudo apt-get install postgresql")


class RealPostgres:
    """One server with one database. ``close`` removes what it had on disk."""

    def __init__(self) -> None:
        given = os.environ.get("FLUMENG_TEST_POSTGRES")
        parts = urlsplit(
            given or f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{free_port()}/{DATABASE}"
        )
        self.given = given is not None
        self.host, self.port = parts.hostname or "", parts.port or 5432
        self.username, self.password = parts.username or "", parts.password or ""
        self.database = parts.path.removeprefix("/")
        self.url = f"postgresql://{self.host}:{self.port}/{self.database}"
        self.process: subprocess.Popen[bytes] | None = None
        self._folder = Path()
        if not self.given:
            self._programs = find()
            self._create()

    def start(self, *, wait_seconds: float = 30.0) -> None:
        """Start, and return when the server answers and has the database."""
        if not self.given:
            with (self._folder / "server.log").open("ab") as log:
                command = [str(self._programs / "postgres"), "-D", str(self._folder / "data")]
                self.process = subprocess.Popen(command, stdout=log, stderr=log, **self._user)
        deadline = time.monotonic() + wait_seconds
        while not self._answers():
            assert time.monotonic() < deadline, "PostgreSQL did not answer in time"
            time.sleep(0.05)

    def kill(self) -> None:
        """An immediate end, as after a crash: what was not committed is lost."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()

    def freeze(self) -> None:
        """The server and all of its backends stop, and their connections live on."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.thaw()
            self.kill()
        if not self.given:
            shutil.rmtree(self._folder)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """The rows of the last one; each is a transaction."""
        rows: list[tuple[Any, ...]] = []
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def connect(self) -> Any:
        return adbc.connect(
            f"host={self.host} port={self.port} dbname={self.database} user={self.username} "
            f"password='{self.password}' connect_timeout=5",
            autocommit=True,
        )

    @property
    def _user(self) -> dict[str, Any]:
        if os.getuid():
            return {}
        names = {user.pw_name for user in pwd.getpwall()}
        name = next(name for name in UNPRIVILEGED if name in names)
        return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}

    def _create(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="flumeng-postgres-"))
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        if user := self._user:
            for path in (self._folder, secret):
                shutil.chown(path, user["user"])
        self._run("initdb", "--pgdata=data", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8",
            f"--username={USER}", "--pwfile=password", "--auth=scram-sha-256")  # fmt: skip
        with (self._folder / "data" / "postgresql.conf").open("a") as file:
            file.write(CONFIGURATION.format(port=self.port))
        command = f"CREATE DATABASE {DATABASE};\n".encode()
        self._run("postgres", "--single", "-D", "data", "postgres", given=command)

    def _run(self, program: str, *arguments: str, given: bytes = b"") -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            cwd=self._folder,
            input=given,
            capture_output=True,
            check=True,
            **self._user,
        )

    def _answers(self) -> bool:
        if self.process is not None:
            assert self.process.poll() is None, (self._folder / "server.log").read_text()
        try:
            return self.run("SELECT 1") == [(1,)]
        except adbc.Error:
            return False

    def _signal(self, number: int) -> None:
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in (self.process.pid, *map(int, children.read_text().split())):
            os.kill(pid, number)
