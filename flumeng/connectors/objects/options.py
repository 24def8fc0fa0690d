"""The options of the source ``objects``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, Literal

from flumeng.config.component import Guarantee, Placing, SourceOptions, TimeBounds
from flumeng.connectors.objects.globs import check_objects, overlap
from flumeng.platform.options.locations import (
    Credentials,
    check_location,
    credential_problem,
    located,
    own_path,
    shared_option,
    store_of,
)
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.texts import time_of

Format = Literal["lines", "ndjson", "json", "csv", "parquet", "avro"]
Order = Literal["name", "modified", "any"]
MOST_LANES = 256
MOST_COLUMNS = 10_000
MOST_TAGS = 10
_NAMED = {"tab": "\t", "space": " "}
_TAG = re.compile(r"[\w .:/=+@-]*")
_OF_FORMATS = {
    "delimiter": ("csv",),
    "quote": ("csv",),
    "escape": ("csv",),
    "header": ("csv",),
    "names": ("csv",),
    "records": ("json",),
    "columns": ("csv", "parquet", "avro"),
}


def check_delimiter(text: str) -> None:
    if text not in _NAMED and not re.fullmatch(r"[ -~\t]", text):
        raise ValueError("expected one ASCII character, or the words tab or space")


def check_quote(text: str) -> None:
    if not re.fullmatch(r"[!-/:-@\[-`{-~]?", text):
        raise ValueError("expected one character such as \" or ', or nothing")


def check_records(text: str) -> None:
    if "" in text.split("."):
        raise ValueError("expected names separated by dots, like data.items")


def check_tag(name: str) -> None:
    if not 1 <= len(name) <= 128 or name.startswith("aws:") or not _TAG.fullmatch(name):
        raise ValueError(
            "expected a tag of S3: 1 to 128 letters, digits, spaces or + - = . _ : / @"
        )


def check_time(text: str) -> None:
    try:
        time_of(text)
    except ValueError:
        raise ValueError("expected a time with its zone, like 2026-11-22T08:00:00Z") from None


@dataclass(frozen=True, kw_only=True)
class ObjectsSource(SourceOptions):
    """Reads objects of stores and files of directories, each once: those that are there, and those
    that appear later.

    An event's body is a line, or a row as JSON. Its time is when the object was written last, and
    its attribute `path` is the object's location.
    """

    implementation: ClassVar[str] = "flumeng.connectors.objects.finder:ObjectsFinder"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})

    paths: tuple[str, ...] = option(
        doc="The objects to read, as globs: `*` and `[...]` match within one directory, `**` "
        "matches any number of directories. On a disk `?` matches one character; in a URL it "
        "begins the parameters of the store.",
        check=check_objects,
        between=(1, 100),
        example='["s3a://logs/web/*/*.gz"]',
    )
    format: Format = option(
        doc="The format. An event is a line (`lines`, or `ndjson` without the empty ones), an "
        "element of JSON arrays or of concatenated JSON texts (`json`), or a row (`csv`, "
        "`parquet`, `avro`).",
        default="lines",
    )
    archives: bool = option(
        doc="Whether the members of tars and zips are read, each as an object of this format. With "
        "`false` an archive itself is read as such an object.",
        default=True,
    )
    delimiter: str = option(
        doc="For `csv`: the character between values, or `tab` or `space`.",
        check=check_delimiter,
        example='";"',
        default=",",
    )
    quote: str = option(
        doc="For `csv`: the character around values; empty when values are not quoted.",
        check=check_quote,
        example='"\'"',
        default='"',
    )
    escape: str = option(
        doc="For `csv`: the character before a quote, delimiter or line end inside a value, as "
        "Redshift and Spark write it; by default there is none, and a quote is doubled.",
        check=check_quote,
        example='"\\\\"',
        default="",
    )
    header: bool | None = option(
        doc="For `csv`: whether the first row has the names of the columns, and is no event. By "
        "default it has, unless there are `names`.",
        default=None,
    )
    names: tuple[str, ...] | None = option(
        doc="For `csv`: the names of the columns. With `header: true` they replace those of the "
        "first row.",
        between=(1, MOST_COLUMNS),
        example="[time, user, bytes]",
        default=None,
    )
    records: str | None = option(
        doc="For `json`: the path to the array of events in each object, as names separated by "
        "dots. An object there is one event, and `null` is none.",
        check=check_records,
        example="data.items",
        default=None,
    )
    columns: tuple[str, ...] | None = option(
        doc="For `csv`, `parquet` and `avro`: the columns to take, of those that an object has; by "
        "default all.",
        between=(1, MOST_COLUMNS),
        example="[time, user]",
        default=None,
    )
    order: Order = option(
        doc="The order in which objects appear. `name`: a new object comes after all others by "
        "name, so none is listed twice. `modified`: it is younger than all settled ones. "
        "`any`: no order; each object is remembered.",
        default="any",
    )
    settle_seconds: float = option(
        doc="An object is read when it has not changed for this time.",
        between=(0, 86_400),
        default=10.0,
    )
    rewritten: Literal["read", "ignore"] = option(
        doc="Whether an object that was rewritten under its name is read again.", default="read"
    )
    written_from: str | None = option(
        doc="Read only objects that were written at this time or later.",
        check=check_time,
        example="2026-11-22T08:00:00Z",
        default=None,
    )
    written_before: str | None = option(
        doc="Read only objects that were written before this time. The flow stops when all that "
        "exist are read. `flow backfill` sets both times.",
        check=check_time,
        example="2026-11-23T08:00:00Z",
        default=None,
    )
    after: Literal["keep", "delete", "move", "tag"] = option(
        doc="The action on an object when all of its events are acked. `tag` is for S3.",
        default="keep",
    )
    tag: Mapping[str, str] | None = option(
        doc="The tags that `after: tag` adds to those of an object; by default `flumeng: done`.",
        check=check_tag,
        example="{state: collected}",
        default=None,
    )
    move_to: str | None = option(
        doc="The directory to which `after: move` moves objects, in the same store.",
        check=check_location,
        example="s3a://logs/done",
        default=None,
    )
    seen_in: str | None = option(
        doc="A directory or a part of a bucket that remembers the seen objects when they are too "
        "many for ZooKeeper: millions with `order: any`.",
        check=check_location,
        example="s3a://logs-seen/web",
        default=None,
    )
    lanes: int = option(
        doc="The number of partitions over which objects are spread. It can only grow.",
        between=(1, MOST_LANES),
        default=8,
    )
    encoding: str = option(
        doc="The encoding of text. Only UTF-8 is read in parts.", default="utf-8"
    )
    discovery_seconds: float = option(
        doc="How often to look for new objects.", between=(0.5, 86_400), default=10.0
    )
    shared: bool = shared_option()
    credentials: Credentials | None = option(
        doc="Credentials for the store; by default those of the environment.", default=None
    )

    @property
    def separator(self) -> str:
        return _NAMED.get(self.delimiter, self.delimiter)

    @property
    def named_by_row(self) -> bool:
        return self.names is None if self.header is None else self.header

    @property
    def tags(self) -> Mapping[str, str]:
        return self.tag or {"flumeng": "done"}

    @property
    def weighed(self) -> bool:
        return True

    @property
    def locations(self) -> tuple[str, ...]:
        """The paths with references to their credentials, and no secret."""
        return tuple(located(path, self.credentials) for path in self.paths)

    @property
    def seen_location(self) -> str | None:
        return self.seen_in and located(self.seen_in, self.credentials)

    @property
    def local_path(self) -> str:
        """A path that differs by host, or empty."""
        paths = (*self.paths, self.seen_in or "")
        return next(filter(None, (own_path(path, shared=self.shared) for path in paths)), "")

    @cached_property
    def _written_us(self) -> tuple[float, float]:
        """The bounds in microseconds since the epoch, half-open."""
        bounds = (self.written_from, "-inf"), (self.written_before, "inf")
        first, end = (time_of(text).timestamp() * 1e6 if text else float(no) for text, no in bounds)
        return first, end

    def wants(self, modified_us: int) -> bool:
        first, end = self._written_us
        return first <= modified_us < end

    def needs(self) -> Iterator[Need]:
        for path in self.paths:
            yield "input", path
        for path in filter(None, (self.move_to, self.seen_in)):
            yield "output", path

    def problems(self) -> Iterator[tuple[str, str]]:
        for path in filter(None, (*self.paths, self.seen_in)):
            if problem := credential_problem(path, self.credentials):
                yield "credentials", problem
        if self.order != "any":
            for number, path in enumerate(self.paths):
                if same := next((p for p in self.paths[:number] if overlap(p, path)), ""):
                    yield (
                        "paths",
                        f"{same} and {path} may match the same object, which would be read twice "
                        f"with `order: {self.order}`: set `order: any`, or separate the paths",
                    )
        if (self.after == "move") != (self.move_to is not None):
            yield "move_to", "expected with `after: move`, and not otherwise"
        yield from self._problems_of_format()
        yield from self._problems_of_tag()
        for path in self.paths if self.move_to else ():
            before, deep, _ = path.partition("**")
            if deep and f"{self.move_to}/".startswith(before):
                yield "move_to", f"moved objects would match {path} and be read again"

    def _problems_of_format(self) -> Iterator[tuple[str, str]]:
        defaults = {field.name: field.default for field in fields(self)}
        for name, formats in _OF_FORMATS.items():
            if self.format not in formats and getattr(self, name) != defaults[name]:
                yield name, f"expected with `format: {' or '.join(formats)}` only"
        if self.header is False and self.names is None:
            yield "names", "required with `header: false`"
        for name in ("names", "columns"):
            given = getattr(self, name) or ()
            if twice := next((column for column in given if given.count(column) > 1), None):
                yield name, f"duplicate {twice}"
        if self.names and self.columns and (unknown := sorted({*self.columns} - {*self.names})):
            yield "columns", f"not in names: {', '.join(unknown)}"
        if self.quote == self.separator:
            yield "quote", "the quote must differ from the delimiter"
        if self.escape and self.escape in (self.separator, self.quote):
            yield "escape", "the escape must differ from the delimiter and the quote"

    def _problems_of_tag(self) -> Iterator[tuple[str, str]]:
        if self.after != "tag":
            if self.tag is not None:
                yield "tag", "expected with `after: tag` only"
            return
        for path in self.paths:
            if store_of(path) != "s3":
                yield "after", f"{path} is not in S3, and has no tags: use delete or move"
        if len(self.tags) > MOST_TAGS:
            yield "tag", f"expected at most {MOST_TAGS} tags"
        for name, value in self.tags.items():
            if len(value) > 256 or not _TAG.fullmatch(value):
                yield (
                    "tag",
                    f"{name}: expected up to 256 letters, digits, spaces or + - = . _ : / @",
                )

    @property
    def placing(self) -> Placing:
        return "partitioned"

    @property
    def queued(self) -> bool:
        return True

    @property
    def bounds(self) -> TimeBounds:
        replaced = ("after", "move_to", "written_from", "written_before")
        return TimeBounds("paths", "written_from", "written_before", replaced)

    def arrival(self) -> str:
        return "each object that is there is read once"
