"""Interprets the response to a bulk request: each event is indexed, to be retried, or refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from flumeng.platform.scrubbing import excerpt

REASON_CHARACTERS = 1_000
INDEX_ERRORS = frozenset(
    {
        "cluster_block_exception",
        "index_closed_exception",
        "index_not_found_exception",
        "security_exception",
        "validation_exception",
    }
)
"""Errors not caused by an event: a read-only, closed or missing index, or a missing right. The
cluster's operator can fix them, so the events wait."""
INDEX_ARGUMENT_ERRORS = re.compile(
    r"no write index is defined for alias \["
    r"|pipeline with id \[[^\]]*\] does not exist"
    r"|only write ops with an op_type of create are allowed in data streams"
)
"""Beginnings of messages with the type ARGUMENT that report a fault of the index. The type covers
many faults of events too, and the rest of a message may quote the event."""
ARGUMENT = "illegal_argument_exception"


class Cause(msgspec.Struct):
    type: str = ""
    reason: str | None = None


class BulkError(Cause):
    caused_by: Cause | None = None


class Item(msgspec.Struct):
    status: int
    error: BulkError | None = None


class Summary(msgspec.Struct):
    errors: bool


class Response(msgspec.Struct):
    items: list[dict[str, Item]]


@dataclass(frozen=True)
class Verdict:
    """Events by position in the request: ``again`` are to be retried, ``refused`` have reasons, all
    others are indexed. ``trouble``: the first reason to retry. ``overloaded``: a status 429."""

    again: Sequence[int] = ()
    trouble: str = ""
    overloaded: bool = False
    refused: Sequence[tuple[int, str]] = ()


def interpret(content: bytes, count: int) -> Verdict:
    """Return the verdict on ``count`` events. Raises ValueError for an invalid response."""
    try:
        if not msgspec.json.decode(content, type=Summary).errors:
            return Verdict()
        response = msgspec.json.decode(content, type=Response)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    if len(response.items) != count:
        raise ValueError(f"{len(response.items)} results for {count} events")
    again, refused, trouble, overloaded = [], [], "", False
    for position, ((op, item),) in enumerate(item.items() for item in response.items):
        if item.status < 300 or (item.status == 409 and op == "create"):
            continue
        message = reason(item)
        client = 400 <= item.status < 500 and item.status not in (409, 429)
        if client and not _is_index_error(item.error):
            refused.append((position, message))
        else:
            again.append(position)
            trouble = trouble or message
            overloaded = overloaded or item.status == 429
    return Verdict(again, trouble, overloaded, refused)


def _is_index_error(error: BulkError | None) -> bool:
    if error is None:
        return False
    if error.type == ARGUMENT:
        return INDEX_ARGUMENT_ERRORS.match(error.reason or "") is not None
    return error.type in INDEX_ERRORS


def reason(item: Item) -> str:
    error = item.error
    if error is None:
        return f"status {item.status}"
    parts = [error.type, error.reason]
    if error.caused_by is not None:
        parts.append(error.caused_by.reason)
    return excerpt(": ".join(part for part in parts if part), REASON_CHARACTERS)
