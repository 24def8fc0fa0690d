"""The formats of ``parse``: readers of bodies, a module each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from flumeng.filters.options.parse import Parse


@dataclass(frozen=True)
class Parsed:
    """The values of parsed bodies: ``columns`` in the order of the reader's schema, and
    ``reasons``, null where the whole body was read. An unreadable body has null columns; of a wrong
    value only its column is null. ``ts`` and ``host``: null, or None for all, if absent."""

    columns: Sequence[pa.Array]
    reasons: pa.Array
    ts: pa.Array | None = None
    host: pa.Array | None = None


class Reader(Protocol):
    """Reads bodies of a format. Created from options on the driver, and pickled with its stage."""

    @property
    def columns(self) -> pa.Schema:
        """The columns that the reader adds."""

    def read(self, bodies: pa.Array, received: pa.Array) -> Parsed:
        """Parse ``bodies``, binary without nulls; ``received`` are their times of receipt."""


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
    module, _, name = _READERS[options.format].partition(":")
    factory: Any = import_module(f"{__name__}.{module}")
    for part in name.split("."):
        factory = getattr(factory, part)
    made: Reader = factory(options)
    return made
