"""The options of the sink ``files``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.spec.locations import Credentials, check_location, credential_problem, located
from flumeng.spec.option import option
from flumeng.spec.sinks import ExactlyOnce


@dataclass(frozen=True)
class Files:
    """Writes files into a directory of a lake; a reader of it sees each event exactly once.

    The flow's staging directory `_flumeng` lies below the fixed part of the path.
    """

    path: str = option(
        doc="The directory, a path or a URL. `%Y %m %d %H %M` come from the event's time in UTC.",
        check=check_location,
        example='"s3a://lake/web/dt=%Y-%m-%d/hour=%H"',
    )
    format: Literal["parquet", "json", "text"] = option(
        doc="The file format; `text` writes the bodies as lines.", default="parquet"
    )
    compression: Literal["zstd", "snappy", "gzip", "none"] = option(
        doc="How files are compressed; `snappy` only with `parquet`.", default="zstd"
    )

    shared: bool = option(
        doc="A path without a host is the same directory on all hosts that collect the flow, such "
        "as a mounted NFS. A URL like `s3a://` always is.",
        default=False,
    )
    credentials: Credentials | None = option(
        doc="Who the sink is to its store; without it, who the environment says.", default=None
    )

    makes_files: ClassVar[bool] = True
    exactly_once: ClassVar[ExactlyOnce] = "staged"

    @property
    def location(self) -> str:
        """Where files go, and as whom; it holds references and no secret."""
        return located(self.path, self.credentials)

    @property
    def local(self) -> bool:
        """Whether each host has files of its own there."""
        return not self.shared and self.path.startswith(("/", "file:"))

    def claims(self) -> Iterator[tuple[str, str]]:
        yield "path", self.path

    def needs(self) -> Iterator[tuple[str, str]]:
        yield "output", self.path

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := credential_problem(self.path, self.credentials):
            yield "credentials", problem
        if self.compression == "snappy" and self.format != "parquet":
            yield "compression", f"{self.format} files take zstd, gzip or none"
