"""A connection to PostgreSQL, and the classification of errors. Calls run in a thread, since ADBC
has no time-outs: a hanging server is abandoned. The caller runs BEGIN and COMMIT as statements."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from adbc_driver_manager import Error

from flumeng.connectors.postgres.statements import SETTINGS
from flumeng.connectors.postgres.target import CONNECT_SECONDS, Server, TableName, Target
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.scrubbing import excerpt

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""A call is abandoned this long after the server should have ended the statement."""
IDLE_SECONDS = 60
"""The server ends a transaction whose client sends nothing for this long."""
MESSAGE_CHARACTERS = 500
REFUSING = ("21", "22", "23", "44", "54", "P0")
"""SQLSTATE classes of errors caused by rows, including limits (54) and triggers (P0)."""
PASSING = ("08", "25", "40", "53", "55", "57", "58")
"""SQLSTATE classes of temporary errors."""
_PRIMARY = str(b"PG_DIAG_MESSAGE_PRIMARY")
WRONG = ("password authentication failed", "does not exist", "pg_hba.conf", "SSL", "certificate")
"""Texts of permanent connection errors, which have no SQLSTATE."""


class RefusedRowsError(FlumengError):
    """The server permanently rejects one of the rows."""


class Connection:
    """A connection for one thread at a time. ``broken``: no longer usable."""

    def __init__(self, server: Server) -> None:
        """Connect. Raises UnavailableError, UserError."""
        self._server = server
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        self.broken = False
        self.prepared: dict[Target, tuple[str | None, dict[str, str]]] = {}
        """Temporary table of upserts, and the type of each column, by target."""
        threading.Thread(target=self._work, name=str(server), daemon=True).start()
        try:
            self._call(self._connect, CONNECT_SECONDS)
            limit = str(round(server.timeout_seconds * 1000))
            self.execute(SETTINGS, limit, str(IDLE_SECONDS * 1000))
        except BaseException:
            self.close()
            raise

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run, and return the rows. Raises RefusedRowsError, UnavailableError, UserError."""

        def run() -> list[tuple[Any, ...]]:
            self._cursor.execute(statement, values or None)
            return list(self._cursor.fetchall()) if self._cursor.description else []

        return self._call(run)

    def copy(self, rows: pa.RecordBatch, table: TableName | None, name: str) -> None:
        """Copy rows into ``table``, or the temporary table ``name``. Raises like ``execute``."""
        target: dict[str, Any] = {"temporary": True}
        if table is not None:
            name, target = table.name, {"db_schema_name": table.schema}
        self._call(lambda: self._cursor.adbc_ingest(name, rows, mode="append", **target))

    def close(self) -> None:
        """Return at once; the connection is closed after the last call."""
        self.broken = True
        self._calls.put(None)

    def _call(self, run: Callable[[], T], seconds: float | None = None) -> T:
        done: Future[T] = Future()
        self._calls.put((run, done))
        limit = self._server.timeout_seconds if seconds is None else seconds
        try:
            return done.result(limit + GRACE_SECONDS)
        except TimeoutError:
            self.broken = True
            raise UnavailableError(f"{self._server} has not responded for {limit:g} s") from None
        except Error as error:
            raise self._translated(error) from error

    def _work(self) -> None:
        """Run all ADBC calls, in the connection's own thread."""
        while (call := self._calls.get()) is not None:
            run, done = call
            try:
                done.set_result(run())
            except BaseException as error:
                done.set_exception(error)
        self._disconnect()

    def _connect(self) -> None:
        self._connection = adbc.connect(self._server.parameters, autocommit=True)
        self._cursor = self._connection.cursor()

    def _disconnect(self) -> None:
        for name in ("_cursor", "_connection"):
            if hasattr(self, name):
                with suppress(Error):
                    getattr(self, name).close()

    def _translated(self, error: Error) -> FlumengError:
        state, text = error.sqlstate or "", _sentence(error)
        if state.startswith(REFUSING):
            return RefusedRowsError(text)
        if not state or state.startswith(("08", "57P", "25P")):
            self.broken = True
        if state.startswith(PASSING) or (not state and not any(word in text for word in WRONG)):
            return UnavailableError(f"{self._server}: {text}")
        return UserError(f"{self._server}: {text}")


def _sentence(error: Error) -> str:
    """Return the server's message without ADBC's additions."""
    details = {str(name): value for name, value in error.details or ()}
    primary = details.get(_PRIMARY)
    if primary:
        return excerpt(primary.decode("utf-8", "replace"), MESSAGE_CHARACTERS)
    text = str(error).partition("\n")[0]
    for before in ("[libpq] ", "ERROR:  ", "FATAL:  "):
        text = text.rpartition(before)[2]
    return excerpt(text, MESSAGE_CHARACTERS)
