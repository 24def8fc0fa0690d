"""Lines of container runtimes: containerd and CRI-O (``cri``), Docker's json-file. ``logtag`` is
``P`` for a part of a line that the next event continues, else ``F``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.attributes import because, misfit
from flumeng.events.byte_column import ByteColumn, following, text
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.filters import iso8601
from flumeng.filters.formats import Parsed
from flumeng.filters.formats.fields import Field, parsed_of
from flumeng.filters.formats.json import OTHER, FieldsReader
from flumeng.filters.options.parse import CONTAINER, Parse

_TIME = EVENT_SCHEMA.field("ts").type
_COLUMNS = pa.schema([pa.field(name, pa.string()) for name in CONTAINER])
_FIELDS = FieldsReader(
    (
        Field("log", ("log",), pa.string(), ""),
        Field("stream", ("stream",), pa.string(), ""),
        Field("ts", ("time",), _TIME, "time is no TIMESTAMP"),
    ),
    None,
)


class CriLines:
    """Fields of CRI lines: ``2016-10-06T00:17:09.669794202Z stdout F message``."""

    def __init__(self, bodies: pa.Array) -> None:
        self._flat = flat = ByteColumn(bodies)
        spaces = flat.find(" ")
        self._first = first = following(spaces, flat.starts, flat.ends)
        second = following(spaces, np.minimum(first + 1, flat.ends), flat.ends)
        self._third = following(spaces, np.minimum(second + 1, flat.ends), flat.ends)
        self._time = iso8601.read(flat, flat.starts, flat.ends)
        self.timed = self._time.valid & (self._time.behind == first)
        self._all = np.ones(len(flat), np.bool_)
        self.stream = text(flat.column(np.minimum(first + 1, flat.ends), second, self._all))
        has_stream = pc.is_in(self.stream, value_set=pa.array(["stdout", "stderr"])).to_numpy(False)
        self._tag = np.minimum(second + 1, flat.ends)
        letter, behind = flat.at(self._tag, flat.ends), flat.at(self._tag + 1, flat.ends)
        self.partial = letter == ord("P")
        self.tagged = ((letter == ord("F")) | self.partial) & (
            (behind == 0) | (behind == ord(" ")) | (behind == ord(":"))
        )
        self.unread = pc.coalesce(
            because("cri: no stream", ~has_stream), because("cri: no tag", ~self.tagged)
        )

    @property
    def untimed(self) -> pa.Array:
        if self.timed.all():
            return pa.nulls(len(self.timed), pa.string())
        values = text(self._flat.column(self._flat.starts, self._first, self._all))
        return misfit("cri: no time", values, ~self.timed)

    @property
    def tag(self) -> pa.Array:
        return text(self._flat.column(self._tag, self._tag + 1, self.tagged))

    @property
    def message(self) -> pa.Array:
        """The messages, as bytes of any encoding."""
        flat = self._flat
        return flat.column(np.minimum(self._third + 1, flat.ends), flat.ends, self._all)

    @property
    def time(self) -> pa.Array:
        return pa.array(self._time.micros, mask=~self.timed).cast(_TIME)


@dataclass(frozen=True)
class CriReader:
    @classmethod
    def of(cls, _options: Parse) -> CriReader:
        return cls()

    @property
    def columns(self) -> pa.Schema:
        return _COLUMNS

    def read(self, bodies: pa.Array, _received: pa.Array) -> Parsed:
        lines = CriLines(bodies)
        columns = [lines.stream, lines.tag, text(lines.message), lines.time]
        return parsed_of([*CONTAINER, "ts"], columns, lines.unread, lines.untimed)


@dataclass(frozen=True)
class DockerReader:
    r"""Reads ``{"log":"message\n","stream":"stdout","time":"2016-10-06T00:17:09.669794202Z"}``.
    Containers with a terminal write a carriage return before the newline."""

    @classmethod
    def of(cls, _options: Parse) -> DockerReader:
        return cls()

    @property
    def columns(self) -> pa.Schema:
        return _COLUMNS

    def read(self, bodies: pa.Array, received: pa.Array) -> Parsed:
        parsed = _FIELDS.read(bodies, received)
        assert parsed.ts is not None
        log, stream = parsed.columns
        named = pc.replace_substring(parsed.reasons, OTHER, "docker: not an object")
        misfits = pc.replace_substring_regex(named, "^json:", "docker:")
        absent = log.is_null()
        no_log = because("docker: no log", absent.to_numpy(False))
        unread = pc.coalesce(pc.if_else(absent, misfits, None), no_log)
        whole = pc.ends_with(log, "\n")
        columns = [
            stream,
            pc.if_else(whole, "F", "P"),
            pc.if_else(whole, pc.utf8_rtrim(pc.utf8_slice_codeunits(log, 0, -1), "\r"), log),
            parsed.ts,
        ]
        return parsed_of([*CONTAINER, "ts"], columns, unread, misfits)
