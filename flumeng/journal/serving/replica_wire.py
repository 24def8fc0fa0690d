"""Wire format of the messages between the primary and the replicas of a journal. Each is JSON in
the metadata of a chunk of a Flight exchange; frames are the chunk's rows, as stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import msgspec
import pyarrow as pa
from msgspec import MsgspecError

from flumeng.journal.log.journal_cipher import KeyReference
from flumeng.journal.replication.messages import ToFollower, ToPrimary
from flumeng.platform.errors import CorruptError

PING = b"ping"
"""A message on an idle connection, which the other end echoes."""
REPLICA = "replica"
"""The name of the Flight exchange, and of the permission for it."""
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, MsgspecError)
_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (*get_args(ToFollower), *get_args(ToPrimary))
}


class Envelope(NamedTuple):
    """A message about one journal; ``state`` and ``key`` come with ``Begin`` and ``Reset``."""

    journal: str
    message: ToFollower | ToPrimary
    state: Mapping[str, object] | None = None
    key: KeyReference | None = None


def encode(envelope: Envelope) -> bytes:
    message = envelope.message
    document = {
        "kind": type(message).__name__,
        "journal": envelope.journal,
        "fields": list(message),
        "state": envelope.state,
        "key": envelope.key.document if envelope.key else None,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def buffer(envelope: Envelope) -> pa.Buffer:
    return pa.py_buffer(encode(envelope))


def decode(data: bytes) -> Envelope:
    try:
        document = json.loads(data)
        kind = _KINDS[document["kind"]]
        message = msgspec.convert(document["fields"], kind)
        _require_numbers(document["fields"])
        state, key = document.get("state"), document.get("key")
        if not isinstance(document["journal"], str) or not isinstance(state, dict | None):
            raise CorruptError("a replica message names no journal")
        reference = None if key is None else KeyReference.parse(key)
        return Envelope(document["journal"], message, state, reference)
    except _UNREADABLE as error:
        raise CorruptError(f"a replica message cannot be read: {error}") from error


def _require_numbers(value: object) -> None:
    if isinstance(value, list):
        for item in value:
            _require_numbers(item)
    elif isinstance(value, int) and not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is neither a term nor a seq")
