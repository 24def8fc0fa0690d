"""Wire format of the messages between the primary and the copies of a journal.

Each is JSON in the metadata of a chunk of a Flight exchange; frames are the chunk's rows as they
lie on disk. ``state``: the source state where a log begins; ``key``: a reference to its encryption
key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, get_type_hints

import pyarrow as pa

from flumeng.journal.log.journal_cipher import KeyReference
from flumeng.journal.replication.history import History, Log, Start
from flumeng.journal.replication.messages import (
    Began,
    Begin,
    Frames,
    Persisted,
    Refused,
    Reset,
    ToCopy,
    ToPrimary,
    Unmatched,
)
from flumeng.platform.errors import CorruptError

PING = b"ping"
"""Sent when there is nothing else, and answered with the same."""
COPY = "copy"
"""The name of the exchange, and of the permission."""
_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (Begin, Frames, Reset, Began, Persisted, Unmatched, Refused)
}
_FIELDS = {name: get_type_hints(kind) for name, kind in _KINDS.items()}


class Envelope(NamedTuple):
    """A message about one journal; ``state`` and ``key`` come with ``Begin`` and ``Reset``."""

    journal: str
    message: ToCopy | ToPrimary
    state: Mapping[str, object] | None = None
    key: KeyReference | None = None


def encode(envelope: Envelope) -> bytes:
    message = envelope.message
    said = {
        "kind": type(message).__name__,
        "journal": envelope.journal,
        "fields": list(message),
        "state": envelope.state,
        "key": envelope.key.document if envelope.key else None,
    }
    return json.dumps(said, separators=(",", ":")).encode()


def buffer(envelope: Envelope) -> pa.Buffer:
    return pa.py_buffer(encode(envelope))


def decode(data: bytes) -> Envelope:
    """Raises CorruptError."""
    try:
        said = json.loads(data)
        kind = _KINDS[said["kind"]]
        fields = {
            name: _field(expected, value)
            for (name, expected), value in zip(
                _FIELDS[said["kind"]].items(), said["fields"], strict=True
            )
        }
        state, key = said.get("state"), said.get("key")
        if not isinstance(said["journal"], str) or not isinstance(state, dict | None):
            raise CorruptError("a message about a copy names no journal")
        reference = None if key is None else KeyReference.parse(key)
        return Envelope(said["journal"], kind(**fields), state, reference)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"a message about a copy cannot be read: {error}") from error


def _field(expected: Any, value: Any) -> object:
    if expected is Log:
        floor, end, safe, history = value
        return Log(_number(floor), _number(end), _number(safe), _history(history))
    if expected == History:
        return _history(value)
    if type(value) is not expected:
        raise TypeError(f"{value!r} where a message has another kind")
    return _number(value) if expected is int else value


def _history(value: Any) -> History:
    return tuple(Start(_number(term), _number(seq)) for term, seq in value)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError(f"{value!r} where a message has a number")
    return value
