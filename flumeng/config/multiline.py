"""Options for joining lines of a source to one event."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flumeng.config.stack_traces import TRACES
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import check_re2

Preset = Literal["java", "python", "go", "dotnet", "ruby", "rust"]
Container = Literal["cri", "docker", "auto"]

PIECE_SECONDS = 60.0
"""Time limit for the other pieces of a container's message: longer than a restart."""

KEY = ("host", "source", "path", "peer", "command")
"""Attributes that identify a stream of lines."""


def check_names(text: str) -> None:
    if not text.strip():
        raise ValueError("expected the name of an attribute or a column")


@dataclass(frozen=True)
class Multiline:
    """Joins lines that belong together to one event, before all filters. Its body has the lines
    with newlines between them; its other columns are those of the first line. The attribute `lines`
    counts them. `multiline_closed` has the reason when it did not end with the start of the next.

    One of `starts`, `continues` and `preset` says which lines belong together. With `container`
    they apply to the messages of a container, and without one of them each message is an event.
    """

    container: Container | None = option(
        doc="`cri` (containerd, CRI-O), `docker` (its `json-file`) or `auto` (either, line by "
        "line): unwraps lines, and joins the pieces of a long message, before all else. The body "
        "is the message, `ts` the runtime's time, and `attrs['stream']` is `stdout` or `stderr`, "
        "which are separate streams. Any other line stays as it is, with the reason in "
        "`attrs['parse_error']`.",
        default=None,
    )

    starts: str | None = option(
        doc="A regular expression (RE2) that matches in the first line of each event, and in no "
        "other; `^` is the beginning of a line.",
        check=check_re2,
        example="'^\\d{4}-\\d{2}-\\d{2} '",
        default=None,
    )
    continues: str | None = option(
        doc="A regular expression (RE2) that matches in each line that continues the event of the "
        "line before, and in no other.",
        check=check_re2,
        example="'^\\s'",
        default=None,
    )
    preset: Preset | None = option(
        doc="`java`, `python`, `go`, `dotnet`, `ruby` or `rust`: the lines of a stack trace of "
        "this language belong together, and to the log line before it.",
        default=None,
    )
    key: tuple[str, ...] = option(
        doc="The columns and attributes that identify a stream: lines of two streams are never "
        "joined. When not given: `host`, `source`, `path`, `peer` and `command`, so that each "
        "file, connection and command is a stream.",
        between=(1, 10),
        check=check_names,
        example="[path]",
        default=KEY,
    )
    timeout_seconds: float = option(
        doc="A line that came later than this after the one before it begins another event. The "
        "newest event of each stream waits this long, and about as much is read again with each "
        "batch. For the rest of a container's message it is at least a minute.",
        between=(0.1, 600),
        default=5.0,
    )
    max_lines: int = option(
        doc="The most lines of an event; more begin another.", between=(2, 100_000), default=500
    )
    max_bytes: int = option(
        doc="The most bytes of an event of several lines; the next line begins another.",
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
                "expected starts, continues, preset or container, which say which lines belong "
                "together",
            )
        for name in given[1:]:
            yield name, f"{given[0]} already says which lines belong together: remove one of them"

    @property
    def messages_alone(self) -> bool:
        """Whether each message of a container is an event."""
        return self.starts is self.continues is self.preset is None

    @property
    def digest(self) -> str:
        """A hash of all options that determine how lines are joined."""
        pattern = self.pattern if self.preset is None else (repr(TRACES[self.preset]), True)
        options = [*pattern, self.key, self.timeout_seconds, self.max_lines, self.max_bytes]
        options += [] if self.container is None else [self.container]
        return hashlib.sha256(json.dumps(options).encode()).hexdigest()[:16]

    @property
    def pattern(self) -> tuple[str, bool]:
        """The pattern (empty for a preset, see ``TRACES``); whether matches continue an event."""
        if self.starts is not None or self.messages_alone:
            return self.starts or "", False
        return self.continues or "", True
