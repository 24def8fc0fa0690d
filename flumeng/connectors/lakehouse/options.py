"""The options of the sinks ``delta`` and ``iceberg``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, cast
from urllib.parse import urlsplit

from flumeng.config.column_kinds import Columns
from flumeng.config.component import ExactlyOnce, SinkOptions, missing
from flumeng.platform.options.locations import (
    Credentials,
    InStore,
    check_location,
    shared_option,
    table_credential_problem,
)
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.patterns import fixed_part

_PARTITION = re.compile(r"(?:(year|month|day|hour)\((\w+)\)|(\w+))")
_NAME = re.compile(r"\w[\w-]*(\.\w[\w-]*)+")

Compression = Literal["zstd", "snappy", "gzip", "none"]
Evolution = Literal["add", "fixed"]
Transform = Literal["identity", "year", "month", "day", "hour"]


def partition(text: str) -> tuple[str, Transform]:
    """Return column and transform of an entry of ``partition_by`` that was checked before."""
    match = _PARTITION.fullmatch(text)
    assert match is not None
    return match[2] or match[3], cast(Transform, match[1] or "identity")


def check_partition(text: str) -> None:
    if not _PARTITION.fullmatch(text):
        raise ValueError("expected a column or year, month, day or hour of one, like day(ts)")


def check_day_partition(text: str) -> None:
    check_partition(text)
    if partition(text)[1] not in ("identity", "day"):
        raise ValueError("expected a column or the day of one, like day(ts)")


def check_directory(text: str) -> None:
    check_location(text)
    if fixed_part(text) != text:
        raise ValueError("expected a directory without patterns: see partition_by")


def check_table_name(text: str) -> None:
    if not _NAME.fullmatch(text):
        raise ValueError("expected a namespace and a name, like web.events")


_URIS = {
    "rest": '"https://catalog.example/api"',
    "sql": '"postgresql://flumeng@db.example/catalog" or "sqlite:////data/catalog.db"',
}


def check_catalog_uri(text: str) -> None:
    uri = urlsplit(text)
    if uri.scheme.partition("+")[0] not in ("http", "https", "postgresql", "sqlite"):
        raise ValueError(f"expected an address, like {_URIS['rest']} or {_URIS['sql']}")
    if uri.password is not None:
        raise ValueError("expected no password in the address: use the option password")


def check_endpoint(text: str) -> None:
    uri = urlsplit(text)
    if uri.scheme not in ("http", "https") or not uri.hostname or uri.path.strip("/"):
        raise ValueError("expected a server, like https://s3.example:9000")


class TableOptions(SinkOptions):
    makes_files: ClassVar[bool] = True
    exactly_once: ClassVar[ExactlyOnce] = "by batch"
    in_driver: ClassVar[bool] = True

    partition_by: tuple[str, ...]

    def misfits(self, columns: Columns, /) -> Iterator[str]:
        names = (partition(text)[0] for text in self.partition_by)
        return missing("partition_by", names, columns)


@dataclass(frozen=True)
class Delta(InStore, TableOptions):
    """Appends to a Delta Lake table, which records the last batch of each flow: its readers see
    each event exactly once. Needs `flumeng[delta]`."""

    implementation: ClassVar[str] = "flumeng.connectors.lakehouse.delta:DeltaSink"

    path: str = option(
        doc="The table's directory, a path or a URL. A missing table is created.",
        check=check_directory,
        example='"s3a://lake/web"',
    )
    partition_by: tuple[str, ...] = option(
        doc="The columns by which a new table is partitioned; `day(ts)` makes a column `ts_day`. "
        "An existing table keeps its own partitioning.",
        check=check_day_partition,
        example='["day(ts)", app]',
        default=(),
    )
    schema: Evolution = option(
        doc="`add`: columns that the table lacks are added to it; `fixed`: they are an error.",
        default="add",
    )
    compression: Compression = option(doc="The compression of files.", default="zstd")
    shared: bool = shared_option()
    credentials: Credentials | None = option(
        doc="Credentials for S3; by default those of the environment.", default=None
    )

    def claims(self) -> Iterator[tuple[str, str]]:
        """Yield the table as claimed by one sink: two of a flow would share its batch numbers."""
        yield "path", re.sub("^s3[an]:", "s3:", self.path.rstrip("/"))

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := table_credential_problem(self.path, self.credentials):
            yield "credentials", problem


@dataclass(frozen=True)
class Catalog:
    """The catalog of an Iceberg table."""

    type: Literal["rest", "sql"] = option(
        doc="An Iceberg REST catalog, or a database: PostgreSQL, or SQLite to try it on one host."
    )
    uri: str = option(
        doc="The catalog's address.",
        check=check_catalog_uri,
        example='"https://catalog.example/api"',
    )
    name: str = option(
        doc="The catalog's name; in a `sql` catalog it is part of each table's key.",
        default="default",
    )
    warehouse: str | None = option(
        doc="For `sql`: where new tables are created, a path or a URL. For `rest`: the catalog's "
        "name of the warehouse.",
        default=None,
        example='"s3://lake/warehouse"',
    )
    token: str | None = option(
        doc="The bearer token for a `rest` catalog.",
        secret=True,
        default=None,
        example='"${secret:catalog-token}"',
    )
    credential: str | None = option(
        doc="Or the credential that a `rest` catalog exchanges for tokens, `id:secret`.",
        secret=True,
        default=None,
        example='"${secret:catalog-credential}"',
    )
    password: str | None = option(
        doc="The password for a `sql` catalog; the user is in its address.",
        secret=True,
        default=None,
        example='"${secret:catalog-password}"',
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if (self.type == "rest") != self.uri.startswith(("http://", "https://")):
            yield "uri", f"expected the address of a {self.type} catalog, like {_URIS[self.type]}"
        if self.type == "sql" and self.warehouse is None:
            yield "", "a sql catalog needs a warehouse"


@dataclass(frozen=True)
class Snapshots:
    """The retention of a table's snapshots. Each retained snapshot slows down every commit."""

    expire: bool = option(
        doc="Expire snapshots of flumeng's own commits that are followed only by appends, so "
        "that no row is lost. `false` leaves expiry to the table's own maintenance.",
        default=True,
    )
    seconds: float | None = option(
        doc="Snapshots younger than this are kept. Default: the table's "
        "`history.expire.max-snapshot-age-ms`, else one hour.",
        default=None,
        minimum=0,
    )
    least: int | None = option(
        doc="This many of the newest are kept, however old. Default: the table's "
        "`history.expire.min-snapshots-to-keep`, else 20.",
        default=None,
        minimum=1,
    )


@dataclass(frozen=True)
class Iceberg(TableOptions):
    """Appends to an Apache Iceberg table, which records the last batch of each flow: its readers
    see each event exactly once. Needs `flumeng[iceberg]`."""

    implementation: ClassVar[str] = "flumeng.connectors.lakehouse.iceberg:IcebergSink"

    catalog: Catalog = option(
        doc="The table's catalog.", example='{type: rest, uri: "https://catalog.example/api"}'
    )
    table: str = option(
        doc="Its namespace and name. A missing table is created.",
        check=check_table_name,
        example="web.events",
    )
    partition_by: tuple[str, ...] = option(
        doc="The columns, or their year, month, day or hour, by which a new table is "
        "partitioned. An existing table keeps its own partitioning.",
        check=check_partition,
        example='["day(ts)", app]',
        default=(),
    )
    schema: Evolution = option(
        doc="`add`: columns that the table lacks are added to it, and its numbers are widened to "
        "those of the events; `fixed`: both are errors.",
        default="add",
    )
    compression: Compression = option(doc="The compression of files.", default="zstd")
    snapshots: Snapshots = option(
        doc="The retention of flumeng's snapshots: by default as the table says, else the last "
        "hour and the newest 20. Snapshots of other writers are always kept.",
        example="{seconds: 86400}",
        factory=Snapshots,
    )
    endpoint: str | None = option(
        doc="The table's S3 server, if not Amazon's.",
        check=check_endpoint,
        example='"https://s3.example:9000"',
        default=None,
    )
    region: str | None = option(
        doc="The region of the S3 server.", example="eu-central-1", default=None
    )
    credentials: Credentials | None = option(
        doc="Credentials for S3; by default those of the environment.", default=None
    )

    @property
    def local_path(self) -> str:
        """The file of a SQLite catalog; empty for other catalogs."""
        uri = self.catalog.uri
        return urlsplit(uri).path[1:] if uri.startswith("sqlite") else ""

    def claims(self) -> Iterator[tuple[str, str]]:
        """Yield the table, like ``Delta.claims``."""
        yield "table", f"{self.table} of {self.catalog.uri}"

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := table_credential_problem("s3://", self.credentials):
            yield "credentials", problem

    def needs(self) -> Iterator[Need]:
        uri = urlsplit(self.catalog.uri)
        if self.local_path:
            yield "output", self.local_path
        else:
            host = uri.netloc.rpartition("@")[2]
            yield "output", f"{uri.scheme.partition('+')[0]}://{host}"
        if self.catalog.type == "sql" and self.catalog.warehouse is not None:
            yield "output", self.catalog.warehouse
