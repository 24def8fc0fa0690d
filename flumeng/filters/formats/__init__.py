"""The formats of ``parse``, a module each: they read bodies and know of nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from flumeng.filters.options.parse import Parse


@dataclass(frozen=True)
class Found:
    """``columns`` in the order of the reader's; ``reasons`` is null where all of a body was read.

    A body that could not be read at all has null columns. One in which a value is wrong has null
    for that value and keeps all others. ``ts`` and ``host`` are null where the body names none.
    """

    columns: Sequence[pa.Array]
    reasons: pa.Array
    ts: pa.Array | None = None
    host: pa.Array | None = None


class Reader(Protocol):
    """Made from the options on the driver, and pickled with its stage."""

    @property
    def columns(self) -> pa.Schema:
        """What it adds to events."""

    def read(self, bodies: pa.Array, received: pa.Array) -> Found:
        """``bodies`` is a binary column without nulls, ``received`` when each came."""


_READERS: Mapping[str, str] = {
    "syslog": "syslog:SyslogReader.of",
    "json": "json:reader",
    "grok": "grok:GrokReader.of",
    "regex": "regex:RegexReader.of",
    "key_value": "key_value:PairsReader.of",
    "csv": "csv:CsvReader.of",
    "access_log": "log_format:reader",
    "cri": "containers:CriReader.of",
    "docker": "containers:DockerReader.of",
    "cef": "security:CefReader.of",
    "leef": "security:LeefReader.of",
    "logfmt": "key_value:PairsReader.of_logfmt",
}


def reader(options: Parse) -> Reader:
    """Raises UserError."""
    module, _, name = _READERS[options.format].partition(":")
    found: Any = import_module(f"{__name__}.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    made: Reader = found(options)
    return made
