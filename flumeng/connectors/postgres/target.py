"""Describes a PostgreSQL table for executors, as plain data that shows no secret."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from flumeng.connectors.postgres.options import Sql
from flumeng.events import identity
from flumeng.platform.errors import UserError
from flumeng.platform.scrubbing import Secret

CONNECT_SECONDS = 5
KEY = ("journal", "seq")
"""Columns with the id of an event; the primary key for upserts."""
IDENTITY_OF = dict(zip(KEY, (identity.JOURNAL, identity.SEQ), strict=True))
MOST_NAME_BYTES = 63
"""Longest name: the server truncates longer ones."""
BATCHES = "flumeng_batches"
COUNT_SCHEMA = pa.schema([pa.field("events", pa.int64())])


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    database: str
    username: str
    password: Secret
    sslmode: str
    sslrootcert: str
    timeout_seconds: float

    def __str__(self) -> str:
        return f"PostgreSQL at {self.host}:{self.port}/{self.database}"

    @property
    def parameters(self) -> str:
        given: dict[str, object] = {
            "host": self.host,
            "port": self.port,
            "dbname": self.database,
            "user": self.username,
            "sslmode": self.sslmode,
            "client_encoding": "UTF8",
            "application_name": "flumeng",
            "connect_timeout": CONNECT_SECONDS,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": round(self.timeout_seconds * 1000),
        }
        if self.password:
            given["password"] = self.password
        if self.sslmode.startswith("verify"):
            given["sslrootcert"] = self.sslrootcert
        return " ".join(f"{name}='{_escaped(str(value))}'" for name, value in given.items())


@dataclass(frozen=True)
class TableName:
    """The name of a table; ``str`` returns it quoted."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def batches(self) -> TableName:
        """The table of batch numbers, ``flumeng_batches`` in the same schema."""
        return TableName(self.schema, BATCHES)


@dataclass(frozen=True)
class Target:
    """A table to write to. ``schema``: the written columns. ``upserts``: by key, else append.
    ``creates`` the table, or ``adds`` columns, when missing."""

    server: Server
    table: TableName
    schema: pa.Schema
    upserts: bool
    creates: bool
    adds: bool

    @classmethod
    def of(cls, server: Server, options: Sql, events: pa.Schema) -> Target:
        """Describe the table for ``events``. Raises UserError if no table can hold them."""
        upserts = options.mode == "upsert"
        schema = identity.without(events)
        if upserts:
            others = [field for field in schema if field.name not in KEY]
            keys = [events.field(IDENTITY_OF[name]).with_name(name) for name in KEY]
            schema = pa.schema([*others, *keys])
        _check_names(schema.names)
        adds = options.schema == "add"
        table = TableName(*options.schema_and_name)
        return cls(server, table, schema, upserts, options.create, adds)

    def source(self, name: str) -> str:
        """Return the events' column that is written into the table's column ``name``."""
        return IDENTITY_OF.get(name, name) if self.upserts else name


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_names(names: list[str]) -> None:
    if not names:
        raise UserError("sql: the filters keep no column")
    for name in names:
        if not 0 < len(name.encode()) <= MOST_NAME_BYTES or "\0" in name:
            raise UserError(f"sql: a column name needs 1 to 63 bytes, not {name[:80]!r}")
        if names.count(name) > 1:
            raise UserError(f"sql: two columns are called {name}: rename one with select")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
