"""Sinks talk TLS with servers of their configured authority, and with no others.

The authority is made by the tests. A sink's error for a wrong one says how to fix it, and shows no
secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flumeng.connectors.postgres.options import Sql
from flumeng.connectors.postgres.target import Server, Target
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.file_store import open_store
from flumeng.platform.options.locations import Credentials, located
from flumeng.platform.scrubbing import Secret
from tests.live.own_server import need_own
from tests.live.receiver import Receiver, taken
from tests.live.test_sink_http import send, seqs, sink
from tests.live.test_sink_postgres import FIRST, SCHEMA, events, write
from tests.testkit.servers.postgres import RealPostgres
from tests.testkit.servers.s3 import RealS3
from tests.testkit.servers.tls import Authority, TlsFront


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strangers"), "somebody else")


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver(tmp_path / "taken")
    receiver.start()
    yield receiver
    receiver.shutdown()
    receiver.server_close()


def test_http_trusts_its_configured_authority_only(
    receiver: Receiver, ours: Authority, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_HOOKS", "t0ken-of-hooks")
    headers = {"Authorization": "Bearer ${secret:hooks}"}
    front = TlsFront(receiver.server_port, *ours.issue("receiver"))
    url = f"https://127.0.0.1:{front.port}/events"
    assert send(sink(url, ca=str(ours.ca), headers=headers), events(0, 3)) == 3
    for options in ({"ca": str(stranger.ca)}, {}):
        with pytest.raises(UserError, match="its certificate is not trusted") as told:
            send(sink(url, headers=headers, **options), events(3, 3))
        assert "t0ken" not in str(told.value)
    plain = url.replace("https", "http")
    with pytest.raises(UnavailableError, match="no answer"):
        send(sink(plain, headers=headers), events(3, 3))
    assert seqs(taken(receiver.folder)) == [0, 1, 2]
    front.close()


def test_postgres_trusts_its_configured_authority_only(
    ours: Authority, stranger: Authority
) -> None:
    try:
        postgres = RealPostgres(ours.issue("database"))
    except UserError as error:
        pytest.skip(str(error))
    postgres.start()

    def target(mode: str, ca: Path, host: str = postgres.host) -> Target:
        sql = Sql(postgres.url, "events", postgres.username, create=True)
        place = (host, postgres.port, postgres.database)
        password = Secret(postgres.password)
        server = Server(*place, sql.username, password, mode, str(ca), sql.timeout_seconds)
        return Target.of(server, sql, SCHEMA)

    try:
        need_own(postgres)
        assert write(target("verify-full", ours.ca), FIRST, events(0, 3)) == 3
        secured = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
        assert postgres.run(secured + "WHERE application_name = 'flumeng'") == [(True,)]
        for mode in ("verify-full", "verify-ca"):
            with pytest.raises(UserError, match="certificate verify failed") as told:
                write(target(mode, stranger.ca), FIRST, events(0, 3))
            assert postgres.password not in str(told.value)
        with pytest.raises(UserError, match='does not match host name "localhost"'):
            write(target("verify-full", ours.ca, "localhost"), FIRST, events(0, 3))
    finally:
        postgres.close()


def test_s3_trusts_its_configured_authority_only(
    ours: Authority, stranger: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RealS3(tmp_path / "s3")
    need_own(server)
    server.start()
    front = TlsFront(int(server.address.rpartition(":")[2]), *ours.issue("store"))
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_ID", server.access_key)
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", server.secret_key)
    place = f"s3a://{server.bucket}/x?endpoint_override=127.0.0.1:{front.port}&scheme=https"

    def put(**options: Any) -> None:
        keys = Credentials("${secret:lake-id}", "${secret:lake-key}", **options)
        store, path = open_store(located(f"{place}&region=us-east-1", keys))
        with store.open_output(path) as out:
            out.write(b"whole")

    try:
        put(ca=str(ours.ca))
        with server.files.open_input_stream(f"{server.bucket}/x") as found:
            assert found.read() == b"whole"
        for options in ({"ca": str(stranger.ca)}, {}):
            with pytest.raises(OSError, match=r"(?i)certificate") as told:
                put(**options)
            assert server.secret_key not in str(told.value)
    finally:
        front.close()
        server.stop()
