"""The options of lookup tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flumeng.config.column_kinds import Columns, require_new
from flumeng.config.functions import ATOMIC
from flumeng.platform.options.locations import (
    Credentials,
    check_location,
    credential_problem,
    located,
    table_credential_problem,
)
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.patterns import fixed_part

MOST_ROWS = 1_000_000
MOST_BYTES = 64 * 2**20
DRIVERS: Mapping[str, str] = {
    "postgresql": "org.postgresql.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "db2": "com.ibm.db2.jcc.DB2Driver",
}
"""JDBC driver classes by database; Spark does not find those of packages itself."""
SILENT_SECONDS = 90
SILENT: Mapping[str, tuple[str, int]] = {
    "postgresql": ("socketTimeout", 1),
    "mysql": ("socketTimeout", 1000),
    "mariadb": ("socketTimeout", 1000),
    "sqlserver": ("socketTimeout", 1000),
    "db2": ("blockingReadConnectionTimeout", 1),
}
"""The driver's property for the read time-out, and its units per second; most drivers have no
time-out by default."""
_JDBC = re.compile(
    rf"jdbc:(?P<server>(?:{'|'.join(DRIVERS)})://(?P<host>[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])"
    r"(?::[0-9]{1,5})?(?:/[A-Za-z0-9_.-]*)?)(?:;databaseName=(?P<database>[A-Za-z0-9_.-]+))?",
    re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*){0,2}", re.ASCII)
PROPERTIES = (
    "connectTimeout", "encrypt", "hostNameInCertificate", "loginTimeout", "requireSSL",
    "socketTimeout", "ssl", "sslMode", "sslmode", "sslrootcert", "trustServerCertificate", "useSSL",
)  # fmt: skip
"""Allowed properties: none makes a driver load a class or read other data."""


def check_jdbc(text: str) -> None:
    if not _JDBC.fullmatch(text):
        raise ValueError(
            'expected a database without parameters, like "jdbc:postgresql://db.example/shop"; '
            f"known are {', '.join(DRIVERS)}"
        )


def check_table(text: str) -> None:
    if not _NAME.fullmatch(text):
        raise ValueError('expected a table, like "apps" or "shop.apps"')


def check_property(name: str) -> None:
    if name not in PROPERTIES:
        raise ValueError(f"expected one of {', '.join(PROPERTIES)}")


def check_file(text: str) -> None:
    check_location(text)
    if fixed_part(text) != text:
        raise ValueError("expected a path or URL without patterns")


@dataclass(frozen=True)
class Jdbc:
    """A table of a database, read through Spark. Its driver is a package of the session."""

    url: str = option(
        doc="The database, without parameters and without a user.",
        check=check_jdbc,
        example='"jdbc:postgresql://db.example:5432/shop"',
    )
    table: str = option(doc="The table or view.", check=check_table, example="shop.apps")
    username: str | None = option(doc="The user that reads.", example="flumeng", default=None)
    password: str | None = option(
        doc="The password of `username`.", secret=True, example="${secret:shop-db}", default=None
    )
    properties: Mapping[str, str] = option(
        doc="Properties of the driver about TLS and time-outs.",
        check=check_property,
        example="{sslmode: verify-full}",
        factory=dict,
    )

    @property
    def driver(self) -> str:
        return DRIVERS[self.kind]

    def properties_within(self, seconds: int) -> dict[str, str]:
        cursor = {"useCursorFetch": "true"} if self.kind == "mysql" else {}
        name, units = SILENT[self.kind]
        return {**cursor, name: str(seconds * units), **self.properties}

    @property
    def kind(self) -> str:
        """The kind of the database: a key of ``DRIVERS``."""
        return self.address.partition(":")[0]

    @property
    def address(self) -> str:
        """The server and database, as written in the policy of a node."""
        match = _JDBC.fullmatch(self.url)
        assert match is not None
        return f"{match['server']}/{match['database']}" if match["database"] else match["server"]

    @property
    def table_address(self) -> str:
        """The database that a qualified table name refers to."""
        *qualifiers, _ = self.table.split(".")
        catalogs = qualifiers if self.kind in ("mysql", "mariadb") else qualifiers[:-1]
        if not catalogs:
            return self.address
        return f"{self.server}/{catalogs[0]}"

    @property
    def server(self) -> str:
        return "/".join(self.address.split("/")[:3])


@dataclass(frozen=True)
class LookupTable:
    """A table of 1,000,000 rows and 64 MiB at most: one of `csv`, `parquet`, `delta` and `jdbc`."""

    schema: str = option(
        doc="The columns to read, as Spark DDL; the table may have more.",
        example='"app STRING, team STRING"',
    )
    csv: str | None = option(
        doc="A CSV file with a header, a path or a URL.",
        check=check_file,
        example="/etc/flumeng/apps.csv",
        default=None,
    )
    parquet: str | None = option(
        doc="A Parquet file, or a directory of them.",
        check=check_file,
        example='"s3a://lake/apps.parquet"',
        default=None,
    )
    delta: str | None = option(
        doc="The directory of a Delta table; needs `flumeng[delta]`.",
        check=check_file,
        example='"s3a://lake/apps"',
        default=None,
    )
    jdbc: Jdbc | None = option(
        doc="A table of a database.",
        example='{url: "jdbc:postgresql://db.example/shop", table: apps}',
        default=None,
    )
    credentials: Credentials | None = option(
        doc="The identity that reads the files; without it, that of the environment.", default=None
    )
    refresh_seconds: float = option(
        doc="At this age it is read again, at the start of a batch.",
        between=(1, 366 * 86_400),
        default=300.0,
    )
    stale_seconds: float = option(
        doc="How long it is used when it cannot be read again; then the task waits.",
        between=(1, 366 * 86_400),
        default=3600.0,
    )

    @property
    def path(self) -> str | None:
        return self.csv or self.parquet or self.delta

    @property
    def location(self) -> str:
        """The location of a table of files, with references to credentials."""
        assert self.path is not None
        return located(self.path, self.credentials)

    @property
    def name(self) -> str:
        if self.jdbc is not None:
            return f"{self.jdbc.table} of {self.jdbc.address}"
        return self.path or ""

    def columns(self) -> Columns:
        """Return the columns of ``schema``. Raises ValueError."""
        from flumeng.config import expressions  # noqa: PLC0415  # loads sqlglot

        columns = expressions.columns_of_ddl(self.schema)
        require_new((), columns)
        for name, kind in columns.items():
            if kind.name not in ATOMIC:
                raise ValueError(f"the column {name} of a table cannot be a {kind.name}")
        return columns

    def needs(self) -> Iterator[Need]:
        if self.jdbc is not None:
            for address in dict.fromkeys((self.jdbc.address, self.jdbc.table_address)):
                yield "input", address
            if "sslrootcert" in self.jdbc.properties:
                yield "path", self.jdbc.properties["sslrootcert"]
        elif self.path is not None and self.path.startswith(("/", "file:")):
            yield "path", self.path.removeprefix("file://")
        elif self.path is not None:
            yield "input", self.path

    def problems(self) -> Iterator[tuple[str, str]]:
        if sum(it is not None for it in (self.csv, self.parquet, self.delta, self.jdbc)) != 1:
            yield "", "expected one of csv, parquet, delta and jdbc"
        elif self.path is None and self.credentials is not None:
            yield "credentials", "expected username and password of jdbc"
        elif self.path is not None:
            of = credential_problem if self.delta is None else table_credential_problem
            if problem := of(self.path, self.credentials):
                yield "credentials", problem
        if self.stale_seconds < self.refresh_seconds:
            yield "", "expected stale_seconds of at least refresh_seconds"
