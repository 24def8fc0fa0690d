"""The options of the sink ``files``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.column_kinds import Columns
from flumeng.config.component import ExactlyOnce, SinkOptions
from flumeng.config.functions import BOOLEAN, DATE, INTEGER, TEXT, TIMESTAMP
from flumeng.platform.options.locations import (
    Credentials,
    InStore,
    check_location,
    credential_problem,
    shared_option,
)
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import FIELD, split_query
from flumeng.platform.options.problems import nearest

_VARIABLE = re.compile(r"\$\{[^}]*\}")
"""Unset variables in a path, which are reported elsewhere."""
_IN_PATHS = (TEXT, INTEGER, BOOLEAN, DATE)
Format = Literal["parquet", "orc", "avro", "json", "csv", "text"]


@dataclass(frozen=True)
class Roll:
    """The size limit of a file. `batch.seconds` sets how long events gather for one."""

    bytes: int = option(
        doc="A file of this size is closed, and the batch continues in another.",
        between=(2**20, 2**32),
        default=2**29,
    )


@dataclass(frozen=True)
class Files(InStore, SinkOptions):
    """Writes files into a directory of a lake; a reader of it sees each event exactly once.

    The flow's staging directory `_flumeng` lies below the fixed part of the path.
    """

    implementation: ClassVar[str] = "flumeng.connectors.files.sink:FilesSink"

    path: str = option(
        doc="The directory, a path or a URL. `%Y %m %d %H %M` come from the event's time in UTC; "
        "`{column}` is the value of a column, encoded as in Hive.",
        check=check_location,
        example='"s3a://lake/web/dt=%Y-%m-%d/hour=%H"',
    )
    format: Format = option(
        doc="The file format; `text` writes the bodies as lines, `avro` needs `flumeng[avro]`.",
        default="parquet",
    )
    compression: Literal["zstd", "snappy", "gzip", "none"] = option(
        doc="The compression of files; `snappy` only with `parquet` and `orc`.", default="zstd"
    )
    columns: Literal["nested", "flat"] = option(
        doc="With `flat`, a struct `a` becomes a column `a_b` for each of its fields, and maps "
        "and lists become JSON texts. `csv` is always flat.",
        default="nested",
    )
    roll: Roll = option(doc="The size limit of files.", default=Roll())
    shared: bool = shared_option()
    marker: bool = option(
        doc="Each commit ends with an empty file `_SUCCESS` in each directory that got files.",
        default=False,
    )
    credentials: Credentials | None = option(
        doc="Credentials for the store; by default those of the environment.", default=None
    )

    makes_files: ClassVar[bool] = True
    exactly_once: ClassVar[ExactlyOnce] = "staged"

    @property
    def dead_letter_files(self) -> InStore:
        return self

    @property
    def unreadable_form(self) -> str | None:
        if self.columns == "flat":
            return "flat"
        return None if self.format in ("parquet", "json") else self.format

    def misfits(self, columns: Columns, /) -> Iterator[str]:
        timed = columns.get("ts")
        if "%" in self.path and (timed is None or timed.name != TIMESTAMP):
            yield "time patterns in the path need the column ts, a timestamp: keep it in select"
        for name in FIELD.findall(_VARIABLE.sub("", split_query(self.path)[0])):
            if name not in columns:
                yield f"the path needs the column {name}; {nearest(name, list(columns))}"
            elif columns[name].name not in _IN_PATHS:
                yield (f"{name} is a {columns[name].name}, which no path can hold: cast it to text")
        if self.format == "text" and "body" not in columns:
            yield f"text writes the column body; {nearest('body', list(columns))}"

    def claims(self) -> Iterator[tuple[str, str]]:
        yield "path", self.path

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := credential_problem(self.path, self.credentials):
            yield "credentials", problem
        if self.compression == "snappy" and self.format not in ("parquet", "orc"):
            yield "compression", f"{self.format} files take zstd, gzip or none"
        if self.columns == "flat" and self.format == "text":
            yield "columns", "text has no columns"
