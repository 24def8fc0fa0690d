"""A real PostgreSQL on a free port, from the packages of the system.

``FLUMENG_TEST_POSTGRES=postgresql://USER:PASSWORD@HOST:PORT/DATABASE`` names one that runs already,
with a user that may create databases; a database of its own is made there, and dropped again. A
server refuses to run as root, so root runs it as another user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import adbc_driver_postgresql.dbapi as adbc

from flumeng.agent.standalone.embedded import free_port
from flumeng.platform.errors import UserError
from tests.testkit.servers.server_process import ServerProcess

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


class RealPostgres(ServerProcess):
    """One server with one database. ``close`` removes its files."""

    name = "PostgreSQL"
    variable = "FLUMENG_TEST_POSTGRES"

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        """``certificate``: the files of a certificate and its key, which enable TLS."""
        self._programs = Path() if os.environ.get(self.variable) else find()
        self._folder = Path(tempfile.mkdtemp(prefix="flumeng-postgres-"))
        super().__init__(self._folder / "server.log")
        parts = urlsplit(
            self.given or f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{free_port()}/{DATABASE}"
        )
        self.host, self.port = parts.hostname or "", parts.port or 5432
        self.username, self.password = parts.username or "", parts.password or ""
        self.database = self._first_database = parts.path.removeprefix("/")
        if self.given is None:
            self._create()
            if certificate is not None:
                self._secure(*certificate)
        else:
            self.database = f"flumeng_test_{uuid.uuid4().hex[:12]}"
            self._ask_first(f"CREATE DATABASE {self.database}")
        self.url = f"postgresql://{self.host}:{self.port}/{self.database}"

    def start(self, *, wait_seconds: float = 30.0) -> None:
        """Start, and return when the server answers and has the database."""
        if self.given is None:
            data = str(self._folder / "data")
            self._launch([str(self._programs / "postgres"), "-D", data], **self._user)
        self._wait(self._answers, wait_seconds)

    def kill(self) -> None:
        """End it immediately, as a crash does: uncommitted transactions are lost."""
        self._end(signal.SIGQUIT)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.thaw()
        self.stop()
        if self.given is not None:
            self._ask_first(f"DROP DATABASE {self.database} WITH (FORCE)")
        shutil.rmtree(self._folder)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run each statement in a transaction; returns the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def connect(self, database: str | None = None) -> Any:
        return adbc.connect(
            f"host={self.host} port={self.port} dbname={database or self.database} "
            f"user={self.username} password='{self.password}' connect_timeout=5",
            autocommit=True,
        )

    def _ask_first(self, statement: str) -> None:
        """Run in the server's own database, before the test's exists or after it."""
        with self.connect(self._first_database) as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    @property
    def _user(self) -> dict[str, Any]:
        if os.getuid():
            return {}
        names = {user.pw_name for user in pwd.getpwall()}
        name = next(name for name in UNPRIVILEGED if name in names)
        return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}

    def _create(self) -> None:
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

    def _secure(self, certificate: Path, key: Path) -> None:
        data = self._folder / "data"
        for source, name in ((certificate, "server.crt"), (key, "server.key")):
            shutil.copyfile(source, data / name)
            (data / name).chmod(0o600)
            if user := self._user:
                shutil.chown(data / name, user["user"])
        with (data / "postgresql.conf").open("a") as file:
            file.write("ssl = on\n")

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
        try:
            return self.run("SELECT 1") == [(1,)]
        except adbc.Error:
            return False

    def _signal(self, number: signal.Signals) -> None:
        """Signal its backends too, whose connections live on."""
        super()._signal(number)
        children = Path(f"/proc/{self._started.pid}/task/{self._started.pid}/children")
        for pid in map(int, children.read_text().split()):
            with suppress(ProcessLookupError):  # a backend that has just ended
                os.kill(pid, number)
