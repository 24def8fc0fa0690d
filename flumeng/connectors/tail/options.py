"""The options of the source ``tail``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.component import Guarantee, SourceOptions
from flumeng.connectors.api.line_options import max_line_bytes
from flumeng.connectors.tail.file_globs import check_file_glob, expand, matches
from flumeng.platform.options.option import Need, option

UTF_8 = "utf-8"
_LINE_ENDS = {b"\n": 1, b"\n\0": 2, b"\0\n": 2, b"\xff\xfe\n\0": 2}


def width_of(name: str) -> int:
    """Return the bytes of a newline in an encoding. Raises ValueError for an unsuitable one."""
    try:
        width = _LINE_ENDS.get("\n".encode(name))
    except (LookupError, UnicodeError):
        width = None
    if width is None:
        raise ValueError(
            "expected an encoding such as utf-8, utf-16, latin-1 or windows-1252, in which a line "
            "ends with a newline"
        )
    return width


def check_encoding(text: str) -> None:
    width_of(text)


@dataclass(frozen=True)
class Tail(SourceOptions):
    """Follows files that grow, through rotation by rename and by copy and truncate.

    It continues where it was after any restart: each line is taken exactly once. Attributes:
    `source`, `path`, `inode`, `offset`.
    """

    implementation: ClassVar[str] = "flumeng.connectors.tail.source:TailSource"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})

    keeps_place: ClassVar[bool] = True
    paths: tuple[str, ...] = option(
        doc="The files, as absolute globs. `**` stands for any folders, `{a,b}` for either. "
        "Files that appear later are followed too.",
        minimum=1,
        check=check_file_glob,
        example='["/var/log/app/*.log"]',
    )
    exclude: tuple[str, ...] = option(
        doc="Files to ignore although `paths` matches them, as absolute globs.",
        check=check_file_glob,
        example='["/var/log/app/debug*.log"]',
        default=(),
    )
    encoding: str = option(
        doc="The encoding of the files: `utf-8`, `utf-16`, `latin-1`, `windows-1252` and others "
        "that Python knows. Bodies are UTF-8. A byte order mark is removed; one of UTF-16 "
        "overrides `utf-8`.",
        check=check_encoding,
        default=UTF_8,
    )
    last_line_seconds: float = option(
        doc="The last line of a file needs no newline once the file has not changed for this "
        "long. 0: a line always waits for its newline, or until its file is renamed or deleted.",
        between=(0, 604_800),
        default=3600,
    )
    start_from: Literal["beginning", "end"] = option(
        doc="Where to start in a file that existed before the flow.", default="beginning"
    )
    max_line_bytes: int = max_line_bytes()
    poll_seconds: float = option(
        doc="How often to look for new lines and files.", between=(0.01, 3600), default=0.1
    )

    def claims(self) -> Iterator[tuple[str, str]]:
        for index, path in enumerate(self.paths):
            for glob in expand(path):
                yield f"paths[{index}]", glob

    def needs(self) -> Iterator[Need]:
        for path in self.paths:
            for glob in expand(path):
                yield "path", glob

    def problems(self) -> Iterator[tuple[str, str]]:
        excluded = {glob for path in self.exclude for glob in expand(path)}
        for index, path in enumerate(self.paths):
            if all(any(matches(glob, out) for out in excluded) for glob in expand(path)):
                yield f"paths[{index}]", f"exclude removes all files of {path!r}"

    def arrival(self) -> str:
        return "each line of a file is taken once, except lines truncated or deleted unread"
