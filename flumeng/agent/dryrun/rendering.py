"""Events as lines: JSON, as the JSON sinks write it, or text for people."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events import identity, json_text
from flumeng.events.attributes import PARSE_ERROR
from flumeng.events.schema import EVENT_SCHEMA, READ_SCHEMA

OF_READERS = frozenset(READ_SCHEMA.names) - frozenset(EVENT_SCHEMA.names)
"""Columns that the reader of a journal adds; they mean nothing in a dry run."""
SOURCE = "source"


END = "@end"
"""The JSON key that names an event's branch, or marks the event as a dead letter."""


def json_lines(events: pa.RecordBatch, end: str | None = None) -> memoryview:
    events = identity.strip(events)
    if end is not None:
        names = pa.repeat(pa.scalar(end), events.num_rows)
        events = events.add_column(0, END, names)
    return json_text.content_of(json_text.rows(events, end=b"\n")).data


def text_lines(events: pa.RecordBatch, end: str | None = None) -> memoryview:
    """Return a line for each event: ``end`` if given, time, host, and the other columns by name.
    The body is shown when no filter has parsed it, or when parsing failed."""
    parts = list(_parts(identity.strip(events)))
    if parts and end is not None:
        parts.insert(0, f"[{end}] ".encode())
    if not events.num_rows or not parts:
        return memoryview(b"\n" * int(events.num_rows))
    pieces = json_text.merged([*parts, b"\n"])
    lines = pc.binary_join_element_wise(*pieces, b"", null_handling="skip")
    return json_text.content_of(lines).data


def _parts(events: pa.RecordBatch) -> Iterator[pa.Array | bytes]:
    names = [name for name in events.schema.names if name not in OF_READERS]
    taken = not set(names) <= set(EVENT_SCHEMA.names)
    between = b""
    for name in ("ts", "host"):
        if name in names and _is_as_received(events, name):
            before, texts, after = json_text.parts(name, events[name])
            yield from _between(between + before.strip(b'"'), texts, after.strip(b'"'))
            between = b" "
            names.remove(name)
    if "body" in names and taken and _is_as_received(events, "body"):
        names.remove("body")
        unread = _unread_bodies(events)
        if unread is not None:
            yield from _between(b' body="', json_text.of_bodies(unread), b'"')
    if "attrs" in names and _is_as_received(events, "attrs"):
        names.remove("attrs")
        yield from _attributes(events["attrs"])
    for name in names:
        prefix = between + name.encode() + b"="
        between = b" "
        if pa.types.is_binary(events.schema.field(name).type):
            yield from _between(prefix + b'"', json_text.of_bodies(events[name]), b'"')
        else:
            before, texts, after = json_text.parts(name, events[name])
            yield from _between(prefix + before, texts, after)


def _unread_bodies(events: pa.RecordBatch) -> pa.Array | None:
    """Return the bodies of events with a ``parse_error``, else null; None when no event has one."""
    if "attrs" not in events.schema.names or not _is_as_received(events, "attrs"):
        return None
    if not pc.any(pc.equal(events["attrs"].keys, PARSE_ERROR)).as_py():
        return None
    reasons = pc.map_lookup(events["attrs"], PARSE_ERROR, "last")
    return pc.if_else(reasons.is_valid(), events["body"], pa.scalar(None, pa.binary()))


def _between(before: bytes, texts: pa.Array, after: bytes) -> Iterator[pa.Array | bytes]:
    if texts.null_count == len(texts):
        return
    if texts.null_count:
        yield pc.binary_join_element_wise(before, texts, after, b"")
    else:
        yield from (before, texts, after)


def _is_as_received(events: pa.RecordBatch, name: str) -> bool:
    return bool(events.schema.field(name).type == EVENT_SCHEMA.field(name).type)


def _attributes(attrs: pa.MapArray) -> Iterator[pa.Array]:
    for key in pc.unique(attrs.keys).to_pylist():
        if key != SOURCE:
            before, texts, after = json_text.parts(key, pc.map_lookup(attrs, key, "last"))
            yield from _between(f" attrs.{key}=".encode() + before, texts, after)
