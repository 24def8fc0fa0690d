"""What primaries and copies say, as bytes: what comes out is what went in, or CorruptError."""

from __future__ import annotations

import json

import pytest

from flumeng.errors import CorruptError
from flumeng.journal.copy_wire import Envelope, decode, encode
from flumeng.replication.history import Log, Start
from flumeng.replication.messages import (
    Began,
    Begin,
    Frames,
    Persisted,
    Refused,
    Reset,
    Unmatched,
)

HISTORY = (Start(1, 0), Start(4, 17))
MESSAGES = [
    Begin("a", 4, Log(3, 20, 20, HISTORY)),
    Begin("a", 1, Log()),
    Frames(4, 10, 20, HISTORY, 9, 3),
    Reset(4, 17),
    Began(4, "n2/ab", 12),
    Persisted(4, "n2/ab", 20),
    Persisted(4, "n2/ab", 20, gap=True),
    Unmatched(4, "n2/ab"),
    Refused(5),
]


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_each_message_comes_as_it_was_sent(message: Begin) -> None:
    envelope = Envelope("web.n1.0.0a1b2c3d", message, {"cursor": 7})
    assert decode(encode(envelope)) == envelope


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_what_is_none_is_said(message: Begin) -> None:
    said = json.loads(encode(Envelope("web.n1.0.0a1b2c3d", message)))
    for changed in (
        {"kind": "Other"},
        {"journal": 7},
        {"state": [1]},
        {"fields": said["fields"][1:]},
        {"fields": [-1 if type(f) is int else f for f in said["fields"]]},
        {"fields": [True if type(f) is int else f for f in said["fields"]]},
        {"fields": [None, *said["fields"][1:]]},
    ):
        with pytest.raises(CorruptError):
            decode(json.dumps({**said, **changed}).encode())
    for data in (b"", b"[]", b"{}", b"[" * 100_000, b"\xff"):
        with pytest.raises(CorruptError):
            decode(data)
