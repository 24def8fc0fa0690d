"""A row in the table of sources, for each type of Flume NG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flumeng_flume.answers import Answers, Options
from flumeng_flume.findings import Log
from flumeng_flume.ng.agents import Part
from flumeng_flume.stream import Stream

Build = Callable[[Part, Options, Stream, Log], list[Options]]


@dataclass(frozen=True)
class Row:
    """The mapping of a type: ``to`` is a source of flumeng, ``but`` describes how it differs.
    ``build`` gets the options of the table, and returns those of one, several or no sources."""

    to: str
    answers: Answers = field(default_factory=dict)
    build: Build = lambda _part, options, _stream, _log: [options]
    but: str = ""
