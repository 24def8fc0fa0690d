"""Why a store has no connection or no access lists is logged once, with what follows, and its end.

Protects an operator who has only the log of a daemon.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError

from flumeng.control.zookeeper import kazoo_store, tls
from flumeng.control.zookeeper.kazoo_store import ZooKeeperStore
from flumeng.platform.errors import UnavailableError
from flumeng.platform.security.credentials import Keystore
from zkschema import codec, paths
from zkschema.records import Schema


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "kazoo")
    caplog.set_level(logging.INFO, "flumeng")


def test_reasons_that_alternate_are_logged_once_until_there_is_a_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = tls.Handler(None)
    for _ in range(3):
        handler.failed("zk1 refuses it")
        handler.failed("zk2 refuses it")
    assert handler.trouble == "zk2 refuses it"
    handler.connected()
    handler.connected()
    assert handler.trouble == ""
    handler.failed("zk1 refuses it")
    assert caplog.messages == [
        "zk1 refuses it",
        "zk2 refuses it",
        "ZooKeeper is connected, and accepts this process again",
        "zk1 refuses it",
    ]


@pytest.mark.parametrize(
    ("error", "plain"),
    [
        (ConnectionResetError("reset"), True),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), True),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), True),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] alert protocol version"), False),
        (ssl.SSLError(1, "[SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] handshake failure"), False),
    ],
)
def test_only_a_server_that_does_not_answer_in_tls_is_taken_for_a_plain_one(
    error: OSError, plain: bool
) -> None:
    why = tls.refused(error, Keystore(Path("/etc/flumeng"), "master"), "zk1:2281")
    assert ("does not speak TLS" in why) == plain
    assert plain or str(error) in why


class Answers:
    """kazoo's client, with the answer to each read of the schema."""

    def __init__(self) -> None:
        self.answer: bytes | Exception = b""

    def get_async(self, _path: str) -> Any:
        return self

    def get(self, timeout: float) -> tuple[bytes, None]:  # noqa: ARG002  kazoo's
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer, None


@pytest.fixture
def store() -> Iterator[ZooKeeperStore]:
    with closing(ZooKeeperStore("127.0.0.1:1", 1.0)) as store:
        client = store._client
        store._client, store._tls, store._member = Answers(), True, "master"
        yield store
        store._client = client


def test_unreadable_access_lists_are_logged_with_what_follows(
    store: ZooKeeperStore, caplog: pytest.LogCaptureFixture
) -> None:
    store._client.answer = b"?"
    assert store._learn_access()
    with pytest.raises(UnavailableError, match="its access list is unknown"):
        store._acl(paths.flows())
    assert caplog.messages[0].endswith("new znodes are not created until it can be read")
    schema = Schema(version=1, features=("acl",), certificates="c")
    store._client.answer = codec.encode(schema)
    assert store._learn_access()
    assert caplog.messages[1:] == ["the access lists can be read again"]
    store._client.answer = b"?"
    assert store._learn_access()
    assert "new znodes get the access lists read before" in caplog.messages[-1]


def test_certificate_without_rights_is_logged_once(
    store: ZooKeeperStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kazoo_store, "FORBIDDEN_SECONDS", 0.0)
    store._client.answer = NoAuthError()
    assert not store._learn_access() and not store._learn_access()
    assert store.expelled
    (message,) = caplog.messages
    assert message.startswith("this certificate has no rights in the cluster")
