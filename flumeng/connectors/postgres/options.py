"""The options of the sink ``sql``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from flumeng.config.component import ExactlyOnce, SinkOptions
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.quantities import check_absolute

SCHEME = "postgresql"
DEFAULT_PORT = 5432
SYSTEM = "system"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")


def check_url(text: str) -> None:
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise ValueError("expected no user or password in the URL: use username and password")
    if parts.port == 0:
        raise ValueError("expected a port from 1 to 65535")
    if parts.scheme != SCHEME or not parts.hostname or not re.fullmatch("/[^/]+", parts.path):
        raise ValueError('expected a database, like "postgresql://db.example:5432/logs"')
    if parts.query or parts.fragment:
        raise ValueError("expected nothing after the database name")


def check_table(text: str) -> None:
    names = text.split(".")
    if len(names) > 2 or not all(_NAME.fullmatch(name) for name in names):
        raise ValueError('expected a table, like "events" or "logs.events"')


def check_root_certificate(text: str) -> None:
    if text != SYSTEM:
        check_absolute(text)


@dataclass(frozen=True)
class Sql(SinkOptions):
    """Copies events into a table of PostgreSQL, each column into the column of its name.

    `append` is exactly once by batch: in a flow with that delivery, the table `flumeng_batches` in
    the same schema records the batch, in the transaction of its events. `upsert` is exactly once by
    event: the columns `journal` and `seq` are the key, and a repeated event replaces its row.
    """

    implementation: ClassVar[str] = "flumeng.connectors.postgres.sink:SqlSink"

    url: str = option(
        doc="The database; the default port is 5432.",
        check=check_url,
        example='"postgresql://db.example:5432/logs"',
    )
    table: str = option(
        doc="The table, case-sensitive; the default schema is `public`.",
        check=check_table,
        example="logs.events",
    )
    username: str = option(doc="The database user.", example="flumeng")
    password: str | None = option(
        doc="The password of `username`; without one the server must not require it.",
        default=None,
        secret=True,
        example='"${secret:logs-db}"',
    )
    sslmode: Literal["verify-full", "verify-ca", "require", "prefer", "disable"] = option(
        doc="The security of the connection, in the words of libpq.", default="verify-full"
    )
    sslrootcert: str = option(
        doc="The CA certificates for `verify-full` and `verify-ca`: a file on each collecting "
        "host, or `system` for the host's own.",
        default=SYSTEM,
        check=check_root_certificate,
        example="/etc/flumeng/tls/db-ca.pem",
    )
    mode: Literal["append", "upsert"] = option(
        doc="`append` adds rows; `upsert` replaces the row of the same event.", default="append"
    )
    create: bool = option(doc="Create the table when it is missing.", default=False)
    schema: Literal["fixed", "add"] = option(
        doc="For a column that the table lacks: `fixed` fails the task, `add` adds it to the "
        "table.",
        default="fixed",
    )
    timeout_seconds: float = option(
        doc="Time limit for one statement, including waits for locks.",
        default=30.0,
        between=(1, 600),
    )

    @property
    def exactly_once(self) -> ExactlyOnce:
        return "by event" if self.mode == "upsert" else "by batch"

    @property
    def one_row_an_event(self) -> bool:
        return self.mode == "upsert"

    @property
    def address(self) -> tuple[str, int, str]:
        """Host, port and database of the server."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or DEFAULT_PORT, parts.path.removeprefix("/")

    @property
    def schema_and_name(self) -> tuple[str, str]:
        schema, _, name = self.table.rpartition(".")
        return schema or "public", name

    def needs(self) -> Iterator[Need]:
        host, port, database = self.address
        yield "output", f"{SCHEME}://{host}:{port}/{database}"
        if self.sslrootcert != SYSTEM:
            yield "path", self.sslrootcert
