"""The protocol between a gateway and its filter processes: one request, then one answer, over a
socket. Each request has all that the process needs: it keeps caches only."""

from __future__ import annotations

import msgspec

MODULE = "flumeng.agent.filtering"


class Request(msgspec.Struct, frozen=True):
    """Filter ``events``, an Arrow stream in READ_SCHEMA, as the flow with this ``text`` does;
    without events, return the schema behind the filters."""

    text: str
    events: bytes = b""


class Answer(msgspec.Struct, frozen=True):
    """``data``: the events for ``filtered_wire``, or the schema. ``kind``: that of an error on the
    wire, with its ``message``; "" without one."""

    data: bytes = b""
    kind: str = ""
    message: str = ""
