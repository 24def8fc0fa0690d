"""The options of the sink ``spark``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.column_kinds import Columns
from flumeng.config.component import SinkOptions, missing
from flumeng.platform.options.locations import own_path
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.patterns import SECRET, SECRET_NAME, check_lake_path, fixed_part
from flumeng.platform.options.texts import FILE_FORMATS, check_format

OWN = ("path", "paths", "table")
"""Options that would bypass the node's policy, so they are not allowed."""
OWN_CATALOGS = ("default", "spark_catalog")
"""Spark's own catalogs: their directory is emptied when a collector starts."""
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_TABLE = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*){1,3}", re.ASCII)


def check_option(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError("expected the name of an option, like compression")
    if name.lower() in OWN:
        raise ValueError("expected the path or table in the sink's own option")


def check_table(text: str) -> None:
    if not _TABLE.fullmatch(text):
        raise ValueError("expected a table of a catalog, like lake.web.events")
    if text.partition(".")[0].lower() in OWN_CATALOGS:
        raise ValueError(
            "expected a table of a catalog of yours, like lake.web.events: Spark's own catalogs "
            "are emptied when the collector restarts"
        )


def check_path(text: str) -> None:
    check_lake_path(text)
    if fixed_part(text) != text or "?" in text:
        raise ValueError("expected a directory without patterns and without a query")


@dataclass(frozen=True)
class Spark(SinkOptions):
    """Hands each batch to a DataFrame writer of Spark: any format for which the session has a data
    source. At least once: a batch that is repeated after a crash is duplicated."""

    implementation: ClassVar[str] = "flumeng.connectors.spark.sink:SparkSink"

    format: str = option(
        doc="The data source; the node's policy has to list it in `spark_formats`.",
        check=check_format,
        example="parquet",
    )
    path: str | None = option(
        doc="The directory, a path or a URL as in Hadoop.",
        check=check_path,
        example='"hdfs://namenode:8020/logs/web"',
        default=None,
    )
    table: str | None = option(
        doc="Or the table, of a catalog that `spark.conf` configures with "
        "`spark.sql.catalog.NAME`.",
        check=check_table,
        example="lake.web.events",
        default=None,
    )
    mode: Literal["append", "overwrite"] = option(
        doc="`append` adds each batch; `overwrite` replaces the content, as the format defines.",
        default="append",
    )
    partition_by: tuple[str, ...] = option(
        doc="The columns to partition by.", example="[app]", default=()
    )
    shared: bool = option(
        doc="A path without a host is the same directory on all hosts that collect the flow, "
        "such as an NFS mount. A URL like `hdfs://` always is.",
        default=False,
    )
    options: Mapping[str, str] = option(
        doc="The writer's options; a value may contain references to secrets. Spark's own file "
        "formats accept no names with a dot.",
        check=check_option,
        example='{url: "jdbc:postgresql://db.example/logs", password: "${secret:logs-db}"}',
        factory=dict,
    )

    in_driver: ClassVar[bool] = True

    @property
    def local_path(self) -> str:
        """The path when it names each host's own files, else empty."""
        return own_path(self.path or "", shared=self.shared)

    @property
    def catalog(self) -> str | None:
        return None if self.table is None else self.table.partition(".")[0]

    def needs(self) -> Iterator[Need]:
        yield "spark format", self.format
        if self.path is not None:
            yield "output", self.path

    def misfits(self, columns: Columns, /) -> Iterator[str]:
        return missing("partition_by", self.partition_by, columns)

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.path is not None and self.table is not None:
            yield "table", "expected path or table, not both"
        for name, value in self.options.items():
            if SECRET_NAME.search(name) and not SECRET.search(value):
                yield f"options.{name}", "expected a reference to a secret, like ${secret:NAME}"
            if "." in name and self.format.lower() in FILE_FORMATS:
                yield (
                    f"options.{name}",
                    f"expected a name without a dot: for {self.format} these are Hadoop's",
                )
