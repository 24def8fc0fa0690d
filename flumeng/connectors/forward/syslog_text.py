"""Formats rows as RFC 5424 messages, from the columns of ``parse: {format: syslog}``."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.events.columns import check_plain, texts
from flumeng.platform.errors import UserError

NAMES = (("host", 255), ("app", 48), ("procid", 128), ("msgid", 32))
USER, NOTICE = 1, 5
FACILITIES, SEVERITIES = 24, 8
NONE = b"-"


def check(events: pa.Schema) -> None:
    """Raise UserError when columns are missing or have unsuitable types."""
    if "message" not in events.names and "body" not in events.names:
        raise UserError("message rfc5424 needs the column message or body")
    for name in ("facility", "severity"):
        if name in events.names and not pa.types.is_integer(events.field(name).type):
            raise UserError(f"rfc5424: the column {name} is not an integer")
    if "ts" in events.names and not pa.types.is_timestamp(events.field("ts").type):
        raise UserError("rfc5424: the column ts is not a timestamp")
    text_columns = ("structured", "message", "body", *(name for name, _ in NAMES))
    check_plain(events, [name for name in text_columns if name in events.names], "rfc5424")


def rows(events: pa.RecordBatch) -> pa.BinaryArray:
    """Return each event as an RFC 5424 message. A missing or invalid facility becomes user, such a
    severity notice, and other missing fields of the header ``-``."""
    content = "message" if "message" in events.schema.names else "body"
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(b"<", _priority(events), b">1", b""),
        _column(events, "ts"),
        *(_name(events, name, most) for name, most in NAMES),
        _structured(events),
        pc.fill_null(texts(events.column(content)), b""),
        b" ",
    )


def _priority(events: pa.RecordBatch) -> pa.BinaryArray:
    facility = _number(events, "facility", FACILITIES, USER)
    severity = _number(events, "severity", SEVERITIES, NOTICE)
    return texts(pc.add(pc.multiply(facility, 8), severity))


def _number(events: pa.RecordBatch, name: str, end: int, default: int) -> pa.Array:
    if name not in events.schema.names:
        return pa.repeat(pa.scalar(default, pa.int64()), events.num_rows)
    number = events.column(name).cast(pa.int64())
    legal = pc.and_(pc.greater_equal(number, 0), pc.less(number, end))
    return pc.if_else(pc.fill_null(legal, False), number, default)


def _name(events: pa.RecordBatch, name: str, most: int) -> pa.BinaryArray:
    """Return up to ``most`` bytes of printable ASCII without spaces; other bytes become ``?``."""
    text = _column(events, name)
    plain = pc.replace_substring_regex(text, rb"[^!-~]", b"?")
    return pc.binary_slice(plain, 0, most)


def _structured(events: pa.RecordBatch) -> pa.BinaryArray:
    text = _column(events, "structured")
    return pc.if_else(pc.starts_with(text, b"["), text, NONE)


def _column(events: pa.RecordBatch, name: str) -> pa.BinaryArray:
    if name not in events.schema.names:
        return pa.array([NONE] * events.num_rows, pa.binary())
    text = texts(events.column(name))
    return pc.if_else(pc.fill_null(pc.greater(pc.binary_length(text), 0), False), text, NONE)
