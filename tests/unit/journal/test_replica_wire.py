"""Messages of primaries and replicas, as bytes: they are decoded as sent, or CorruptError."""

from __future__ import annotations

import json

import pytest

from flumeng.journal.log.journal_cipher import MOST_SECRETS, KeyReference
from flumeng.journal.replication.history import Log, Start
from flumeng.journal.replication.messages import (
    Began,
    Begin,
    Frames,
    Persisted,
    Refused,
    Reset,
    Unmatched,
)
from flumeng.journal.serving.replica_wire import Envelope, decode, encode
from flumeng.platform.errors import CorruptError

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
def test_each_message_is_decoded_as_it_was_sent(message: Begin) -> None:
    key = KeyReference("0123456789abcdef", ("${secret:a}", "${secret:b}"))
    for told in (None, key):
        envelope = Envelope("web.n1.0.0a1b2c3d", message, {"cursor": 7}, told)
        assert decode(encode(envelope)) == envelope


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_invalid_message_is_refused(message: Begin) -> None:
    said = json.loads(encode(Envelope("web.n1.0.0a1b2c3d", message)))
    changes: tuple[dict[str, object], ...] = (
        {"kind": "Other"},
        {"journal": 7},
        {"state": [1]},
        {"key": [1]},
        {"key": {}},
        {"key": {"key": "../../etc", "secrets": []}},
        {"key": {"key": "0123456789abcdef", "secrets": "x"}},
        {"fields": said["fields"][1:]},
        {"fields": [-1 if type(f) is int else f for f in said["fields"]]},
        {"fields": [True if type(f) is int else f for f in said["fields"]]},
        {"fields": [None, *said["fields"][1:]]},
    )
    for changed in changes:
        with pytest.raises(CorruptError):
            decode(json.dumps({**said, **changed}).encode())
    for data in (b"", b"[]", b"{}", b"[" * 100_000, b"\xff"):
        with pytest.raises(CorruptError):
            decode(data)


def test_number_of_secret_references_in_a_message_is_bounded() -> None:
    """Anything else than a reference is no path and no command to this host."""
    key = KeyReference("0123456789abcdef", tuple(f"${{secret:s{n}}}" for n in range(1000)))
    said = json.loads(encode(Envelope("web.n1.0.0a1b2c3d", Refused(5), {}, key)))
    found = decode(json.dumps(said).encode()).key
    assert found is not None
    assert found.secrets == key.secrets[:MOST_SECRETS]
    said["key"]["secrets"] = ["/etc/shadow", "${secret:../x}", 7, None, "${secret:a}"]
    found = decode(json.dumps(said).encode()).key
    assert found is not None
    assert found.secrets == ("${secret:a}",)
