"""The formats of ``parse``, a module each: they read bodies and know of nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from flumeng.filters.byte_column import Mask
from flumeng.spec.filters.parse import Parse


@dataclass(frozen=True)
class Found:
    """``columns`` in the order of the reader's, null where there is a reason; ``reasons`` is null
    where the body was read. ``ts`` and ``host`` are null where the body names none."""

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
    "cef": "cef:CefReader.of",
    "leef": "leef:LeefReader.of",
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


def because(why: str, where: Mask) -> pa.Array:
    """The reason ``why`` where that is true."""
    return pa.array([why]).take(pa.array(np.zeros(len(where), np.int8), mask=~where))
