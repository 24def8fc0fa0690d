"""The options of every sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flumeng.spec.option import option
from flumeng.spec.patterns import check_lake_path


@dataclass(frozen=True)
class Files:
    """Writes files into a directory of a lake; a reader of it sees each event exactly once.

    The flow's staging directory `_flumeng` lies below the fixed part of the path.
    """

    path: str = option(
        doc="The directory, a path or a URL. `%Y %m %d %H %M` come from the event's time in UTC.",
        check=check_lake_path,
        example='"s3a://lake/web/dt=%Y-%m-%d/hour=%H"',
    )
    format: Literal["parquet", "json", "text"] = option(
        doc="The file format; `text` writes the bodies as lines.", default="parquet"
    )
    compression: Literal["zstd", "snappy", "gzip", "none"] = option(
        doc="How files are compressed.", default="zstd"
    )


@dataclass(frozen=True)
class Console:
    """Prints events on the collector's standard error, to look at while trying a flow."""


@dataclass(frozen=True)
class Noop:
    """Computes everything and writes nothing, to measure."""
