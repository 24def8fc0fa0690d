"""The options of the sink ``files``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.sinks import ExactlyOnce
from flumeng.platform.options.locations import (
    Credentials,
    InStore,
    check_location,
    credential_problem,
    shared_option,
)
from flumeng.platform.options.option import option

Format = Literal["parquet", "orc", "avro", "json", "csv", "text"]


@dataclass(frozen=True)
class Roll:
    """How large a file may grow. How long events gather for one is said by `batch.seconds`."""

    bytes: int = option(
        doc="A file that has grown to this size is closed, and the batch goes on in another.",
        unit="bytes",
        minimum=2**20,
        maximum=2**32,
        default=2**29,
    )


@dataclass(frozen=True)
class Files(InStore):
    """Writes files into a directory of a lake; a reader of it sees each event exactly once.

    The flow's staging directory `_flumeng` lies below the fixed part of the path.
    """

    path: str = option(
        doc="The directory, a path or a URL. `%Y %m %d %H %M` come from the event's time in UTC, "
        "`{column}` is the value of a column, as Hive writes it.",
        check=check_location,
        example='"s3a://lake/web/dt=%Y-%m-%d/hour=%H"',
    )
    format: Format = option(
        doc="The file format; `text` writes the bodies as lines, `avro` needs `flumeng[avro]`.",
        default="parquet",
    )
    compression: Literal["zstd", "snappy", "gzip", "none"] = option(
        doc="How files are compressed; `snappy` only with `parquet` and `orc`.", default="zstd"
    )
    columns: Literal["nested", "flat"] = option(
        doc="With `flat` a struct `a` is a column `a_b` for each of its fields, and maps and "
        "lists are JSON texts; `csv` always is so.",
        default="nested",
    )
    roll: Roll = option(doc="When a file is full.", default=Roll())
    shared: bool = shared_option()
    marker: bool = option(
        doc="Each commit puts an empty file `_SUCCESS` into the directories that have got files, "
        "after them.",
        default=False,
    )
    credentials: Credentials | None = option(
        doc="Who the sink is to its store; without it, who the environment says.", default=None
    )

    makes_files: ClassVar[bool] = True
    exactly_once: ClassVar[ExactlyOnce] = "staged"

    @property
    def readable(self) -> bool:
        """Whether dead letters in such files can be listed, replayed and purged."""
        return self.format in ("parquet", "json") and self.columns == "nested"

    def claims(self) -> Iterator[tuple[str, str]]:
        yield "path", self.path

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := credential_problem(self.path, self.credentials):
            yield "credentials", problem
        if self.compression == "snappy" and self.format not in ("parquet", "orc"):
            yield "compression", f"{self.format} files take zstd, gzip or none"
        if self.columns == "flat" and self.format == "text":
            yield "columns", "text has no columns"
