"""Unwraps the lines of a container runtime (CRI, Docker). Marks each line as a whole message or as
a piece of a message; ``groups`` joins the pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flumeng.agent.collector.lines.machine import Flags
from flumeng.config.multiline import Container
from flumeng.events.attributes import note
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.filters.formats.containers import CriLines, DockerReader

STREAM = "stream"
_TIME = EVENT_SCHEMA.field("ts").type


@dataclass(frozen=True)
class Unwrapped:
    """Columns of unwrapped lines. ``unfinished``: the message continues in another line. ``times``:
    set by the runtime. An unreadable line has an entry in ``reasons``, its text and no stream."""

    texts: pa.Array
    streams: pa.Array
    unfinished: Flags
    times: pa.Array
    reasons: pa.Array

    def events(self, lines: pa.RecordBatch) -> pa.RecordBatch:
        attrs = note(note(lines["attrs"], self.streams, STREAM), self.reasons)
        changed = {"body": self.texts, "ts": pc.coalesce(self.times, lines["ts"]), "attrs": attrs}
        columns = [changed.get(field.name, lines[field.name]) for field in lines.schema]
        return pa.RecordBatch.from_arrays(columns, schema=lines.schema)


def unwrap(lines: pa.RecordBatch, container: Container) -> Unwrapped:
    bodies = pc.fill_null(lines["body"], b"")
    if container != "auto":
        return _READ[container](bodies)
    docker = pc.starts_with(bodies, b"{").to_numpy(zero_copy_only=False)
    if not docker.any() or docker.all():
        return _READ["docker" if docker.any() else "cri"](bodies)
    parts = [
        _read_cri(bodies.filter(pa.array(~docker))),
        _read_docker(bodies.filter(pa.array(docker))),
    ]
    places = np.argsort(np.concatenate((np.flatnonzero(~docker), np.flatnonzero(docker))))
    rows = pa.array(places)

    def both(column: Callable[[Unwrapped], pa.Array]) -> pa.Array:
        return pa.concat_arrays([column(part) for part in parts]).take(rows)

    return Unwrapped(
        both(lambda part: part.texts),
        both(lambda part: part.streams),
        np.concatenate([part.unfinished for part in parts])[places],
        both(lambda part: part.times),
        both(lambda part: part.reasons),
    )


def _read_cri(bodies: pa.Array) -> Unwrapped:
    """Unwrap CRI lines. A line without a time is kept: it may be the tail of a torn line."""
    lines = CriLines(bodies)
    reasons = pc.coalesce(lines.unread, lines.untimed)
    is_line = reasons.is_null()
    if reasons.null_count == len(reasons):
        return Unwrapped(lines.message, lines.stream, lines.partial, lines.time, reasons)
    return Unwrapped(
        pc.if_else(is_line, lines.message, bodies),
        pc.if_else(is_line, lines.stream, None),
        lines.partial & is_line.to_numpy(zero_copy_only=False),
        pc.if_else(is_line, lines.time, pa.scalar(None, _TIME)),
        reasons,
    )


def _read_docker(bodies: pa.Array) -> Unwrapped:
    parsed = DockerReader().read(bodies, bodies)
    stream, tag, message = parsed.columns
    assert parsed.ts is not None
    texts = pc.if_else(message.is_null(), bodies, message.cast(pa.binary()))
    partial = pc.fill_null(pc.equal(tag, "P"), False).to_numpy(zero_copy_only=False)
    return Unwrapped(texts, stream, partial, parsed.ts, parsed.reasons)


_READ: dict[str, Callable[[pa.Array], Unwrapped]] = {"cri": _read_cri, "docker": _read_docker}
