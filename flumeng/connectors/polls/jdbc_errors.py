"""What databases and their drivers say, as errors of ours, by the classes of SQLSTATE (ISO/IEC
9075, and those that PostgreSQL and ODBC have)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError

from flumeng.config.tables import Jdbc
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.scrubbing import excerpt

LATER = ("08", "40", "53", "57", "58", "55P03", "HYT")
"""The connection, transactions that others broke, too little of something, a server that is
stopped or has not answered in time, its disk, locks, time-outs."""
NEVER = ("57P04",)
"""A database that was dropped."""
MOST_CHARACTERS = 500
PACKAGES = {
    "postgresql": "org.postgresql:postgresql:42.7.4",
    "mysql": "com.mysql:mysql-connector-j:VERSION",
    "mariadb": "org.mariadb.jdbc:mariadb-java-client:VERSION",
    "sqlserver": "com.microsoft.sqlserver:mssql-jdbc:VERSION",
    "db2": "com.ibm.db2:jcc:VERSION",
}


def told(thrown: Any, error: Exception, database: Jdbc) -> FlumengError:
    """``thrown`` by Java, as what a person is to do, or as UnavailableError."""
    causes = list(_causes(thrown))
    for cause in causes:
        if cause.getClass().getName() == "java.lang.ClassNotFoundException":
            return UserError(
                f"Spark has no driver for {database.place}: flumeng cluster set spark.packages "
                f"'[\"{PACKAGES[database.kind]}\"]'"
            )
    for cause in reversed(causes):
        if (state := _sql_state(cause)) is not None:
            return _of_state(state, _line(cause), database)
    for cause in reversed(causes):
        name = cause.getClass().getName()
        if name.endswith(("AnalysisException", "ArithmeticException", "DateTimeException")):
            return UserError(f"Spark cannot read rows of {database.place}: {_line(cause)}")
    said = _line(causes[-1]) if causes else str(error)
    return UnavailableError(f"{database.place} was not read: {excerpt(said, MOST_CHARACTERS)}")


def _of_state(state: str, said: str, database: Jdbc) -> FlumengError:
    if state.startswith(LATER) and state not in NEVER:
        return UnavailableError(f"{database.place} does not answer: {said}")
    what = {
        "28": "look at username, password and what that user may",
        "3D": "look at the url",
        "42": "look at table, query, columns and track, and what the user may",
    }.get(state[:2])
    return UserError(f"{database.place} refuses: {said}" + (f"; {what}" if what else ""))


def _causes(thrown: Any) -> Iterator[Any]:
    while thrown is not None:
        yield thrown
        thrown = thrown.getCause()


def _sql_state(cause: Any) -> str | None:
    """Of a ``java.sql.SQLException``."""
    try:
        found = cause.getSQLState()
    except Py4JError:  # it is another exception, and has no such method
        return None
    return str(found) if found else None


def _line(cause: Any) -> str:
    lines = str(cause.getMessage() or cause.getClass().getName()).strip().splitlines()
    return excerpt(lines[0].strip(), MOST_CHARACTERS)
