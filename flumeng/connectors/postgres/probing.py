"""Asks a database before a flow is applied: one connection, which writes nothing."""

from __future__ import annotations

from flumeng.connectors.postgres.connection import Connection
from flumeng.connectors.postgres.options import Sql
from flumeng.connectors.postgres.statements import FIND_COLUMNS, MAY_INSERT
from flumeng.connectors.postgres.target import Server, TableName
from flumeng.platform.errors import UserError


def probe(server: Server, options: Sql) -> None:
    """Raises UnavailableError, UserError."""
    connection = Connection(server)
    try:
        table = TableName(*options.place)
        if connection.execute(FIND_COLUMNS, str(table)):
            if connection.execute(MAY_INSERT, str(table)) != [("true",)]:
                raise UserError(
                    f"{server}: the user may not insert rows into table {table}: grant INSERT"
                )
        elif not options.create:
            raise UserError(
                f"{server}: there is no table {table}, or the user may not see it: create it, or "
                "set `create: true`"
            )
    finally:
        connection.close()
