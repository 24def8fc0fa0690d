"""Options for joining lines of a source to one event."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flumeng.config.traces import TRACES
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import check_re2

Preset = Literal["java", "python", "go", "dotnet", "ruby", "rust"]
Container = Literal["cri", "docker", "auto"]

PIECE_SECONDS = 60.0
"""Time limit for the rest of a container's message: longer than a restart."""

KEY = ("host", "source", "path", "peer", "command")
"""Attributes that identify a stream of lines."""


def check_names(text: str) -> None:
    if not text.strip():
        raise ValueError("expected the name of an attribute or a column")


@dataclass(frozen=True)
class Multiline:
    """Lines that belong together become one event before all filters: its body has the lines with
    newlines between them, and all else is that of its first line. Attributes: `lines`, how many it
    has, and `multiline_closed` when it ends for another reason than that the next one begins.

    One of `starts`, `continues` and `preset` says which lines belong together. With `container`
    they see the messages that a container has written, and without one of them each message is an
    event.
    """

    container: Container | None = option(
        doc="`cri` (containerd, CRI-O), `docker` (its `json-file`) or `auto` (each line is one of "
        "both): lines are unwrapped, and the pieces of a long message joined, before all else. The "
        "body is the message, `ts` the time that the runtime has noted, and `attrs['stream']` is "
        "`stdout` or `stderr`, which are told apart. Any other line stays as it is, with the "
        "reason in `attrs['parse_error']`.",
        default=None,
    )

    starts: str | None = option(
        doc="A regular expression (RE2) that is found in the first line of each event, and in no "
        "other; `^` is the beginning of a line.",
        check=check_re2,
        example="'^\\d{4}-\\d{2}-\\d{2} '",
        default=None,
    )
    continues: str | None = option(
        doc="A regular expression (RE2) that is found in each line that goes on with the event of "
        "the line before, and in no other.",
        check=check_re2,
        example="'^\\s'",
        default=None,
    )
    preset: Preset | None = option(
        doc="`java`, `python`, `go`, `dotnet`, `ruby` or `rust`: the lines of a stack trace of "
        "this language belong together, and to the line of the log before it.",
        default=None,
    )
    key: tuple[str, ...] = option(
        doc="By these columns and attributes streams of lines are told apart: lines of two streams "
        "are never joined. When not given: `host`, `source`, `path`, `peer` and `command`, so that "
        "each file, connection and command is a stream.",
        between=(1, 10),
        check=check_names,
        example="[path]",
        default=KEY,
    )
    timeout_seconds: float = option(
        doc="A line that came later than this after the one before it begins another event. So "
        "long the newest event of each stream waits, and about as much is read again with each "
        "batch. The rest of a container's message is waited for a minute, if this is less.",
        between=(0.1, 600),
        default=5.0,
    )
    max_lines: int = option(
        doc="No event has more lines; what follows are others.", between=(2, 100_000), default=500
    )
    max_bytes: int = option(
        doc="No event of several lines is larger; what follows are others.",
        between=(1024, 2**26),
        default=2**20,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        given = [
            name for name in ("starts", "continues", "preset") if getattr(self, name) is not None
        ]
        if not given and self.container is None:
            yield (
                "",
                "expected one of starts, continues, preset and container: which lines belong "
                "together?",
            )
        for name in given[1:]:
            yield name, f"{given[0]} says already which lines belong together: give one of them"

    @property
    def messages_alone(self) -> bool:
        """Whether each message of a container is an event."""
        return self.starts is self.continues is self.preset is None

    @property
    def digest(self) -> str:
        """Changes when lines are joined differently."""
        pattern = self.pattern if self.preset is None else (repr(TRACES[self.preset]), True)
        said = [*pattern, self.key, self.timeout_seconds, self.max_lines, self.max_bytes]
        said += [] if self.container is None else [self.container]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]

    @property
    def pattern(self) -> tuple[str, bool]:
        """The pattern, and whether a matching line continues an event; presets use ``TRACES``."""
        if self.starts is not None or self.messages_alone:
            return self.starts or "", False
        return self.continues or "", True
