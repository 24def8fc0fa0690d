"""The files of TLS change while senders come: good files are used, others reported."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from flumeng.config.policy import UNRESTRICTED, Policy
from flumeng.connectors.api.counters import Counters
from flumeng.connectors.network.handshakes import NO_DESCRIPTORS_SECONDS, Handshakes
from flumeng.connectors.network.server_tls import Tls
from flumeng.connectors.network.tls import ServerTls, every
from flumeng.platform.errors import UserError
from tests.testkit.logs import tracebacks
from tests.testkit.waiting import PATIENCE_SECONDS
from tests.unit.connectors.authority import Authority

LATER = [timedelta()]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    LATER[0] = timedelta()
    return Authority(tmp_path)


def options(authority: Authority, **more: Any) -> Tls:
    certificate, key = authority.issue("server", "127.0.0.1")
    return Tls(certificate=str(certificate), key=str(key), client_ca=str(authority.ca), **more)


def made(options: Tls, policy: Policy = UNRESTRICTED) -> ServerTls:
    return ServerTls(options, policy, lambda: None, lambda: datetime.now(UTC) + LATER[0])


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(test())


class Served(asyncio.Protocol):
    """Answers with the name of the accepted client."""

    tls: ServerTls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(self.tls.client(transport).name.encode())
        transport.close()


class Server:
    """A port whose connections are TLS, and its accepted clients."""

    def __init__(self, tls: ServerTls, **limits: Any) -> None:
        self.tls = tls
        self.counters = Counters()
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self.handshakes = Handshakes(listener, tls, self._protocol, self.counters, **limits)

    def _protocol(self) -> Served:
        served = Served()
        served.tls = self.tls
        return served

    async def close(self) -> None:
        self.handshakes.close()
        await asyncio.wait_for(self.handshakes.wait_closed(), PATIENCE_SECONDS)

    async def said_to(self, authority: Authority, client: tuple[Path, Path] | None) -> str:
        """The server's answer to this client; empty when it is rejected."""
        context = ssl.create_default_context(cafile=str(authority.ca))
        if client is not None:
            context.load_cert_chain(*client)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
                said = await reader.read()
                writer.close()
                return said.decode()
        except OSError:
            return ""


def test_new_certificate_is_used_and_an_invalid_one_is_not(authority: Authority) -> None:
    async def test() -> None:
        tls = made(options(authority))
        await tls.start()
        first = tls.context
        await tls.refresh()
        assert tls.context is first, "unchanged files are not read again"
        authority.issue("server", "127.0.0.1")
        await tls.refresh()
        second = tls.context
        assert second is not first
        assert tls.problem == ""
        (authority.folder / "server.key").write_text("no key")
        await tls.refresh()
        assert tls.context is second
        assert "server.key are not a PEM certificate and its key" in tls.problem
        (authority.folder / "server.pem").unlink()
        await tls.refresh()
        assert tls.context is second
        assert tls.problem.startswith("cannot read")
        authority.issue("server", "127.0.0.1")
        await tls.refresh()
        assert tls.context not in (None, first, second)
        assert tls.problem == ""

    run(test)


def test_a_new_file_that_the_policy_does_not_allow_is_not_read(
    authority: Authority, tmp_path: Path
) -> None:
    """A symlink is switched to a file elsewhere."""

    async def test() -> None:
        tls = made(options(authority), Policy(paths=(str(tmp_path),)))
        await tls.start()
        before = tls.context
        (tmp_path / "server.pem").unlink()
        (tmp_path / "server.pem").symlink_to("/etc/passwd")
        await tls.refresh()
        assert tls.context is before
        assert "policy file does not allow to read" in tls.problem

    run(test)


def test_revoked_client_is_refused(authority: Authority) -> None:
    async def test() -> None:
        good, bad = authority.issue("good", "good.example"), authority.issue("bad", "bad.example")
        path = authority.revoke(authority.folder / "crl.pem")
        tls = made(options(authority, client_crl=str(path)))
        await tls.start()
        server = Server(tls)
        assert await server.said_to(authority, good) == "good.example"
        assert await server.said_to(authority, bad) == "bad.example"
        authority.revoke(path, bad[0])
        await tls.refresh()
        assert await server.said_to(authority, good) == "good.example"
        assert await server.said_to(authority, bad) == ""
        assert server.counters.unauthorized == 1
        await server.close()

    run(test)


def with_unreadable_issuer(crl: str) -> str:
    """The list, whose issuer is no UTF-8: cryptography loads it, and OpenSSL does not."""
    content = ssl.PEM_cert_to_DER_cert(crl.replace("X509 CRL", "CERTIFICATE"))
    damaged = ssl.DER_cert_to_PEM_cert(content.replace(b"authority", b"\xffuthority"))
    return damaged.replace("CERTIFICATE", "X509 CRL")


@pytest.mark.parametrize("damage", ["gone", "no list", "damaged", "no issuer"])
def test_all_clients_are_refused_without_a_readable_revocation_list(
    authority: Authority, damage: str
) -> None:
    async def test() -> None:
        good = authority.issue("good", "good.example")
        path = authority.revoke(authority.folder / "crl.pem")
        tls = made(options(authority, client_crl=str(path)))
        await tls.start()
        server = Server(tls)
        text = path.read_text()
        if damage == "gone":
            path.unlink()
        elif damage == "no issuer":
            path.write_text(with_unreadable_issuer(text))
        else:
            path.write_text("no list" if damage == "no list" else text[:100] + "x" + text[150:])
        await tls.refresh()
        assert str(path) in tls.problem
        assert tls.problem.endswith("; senders are rejected")
        assert await server.said_to(authority, good) == ""
        assert server.counters.refused == 1
        with pytest.raises(UserError, match=str(path)):
            await made(options(authority, client_crl=str(path))).start()
        authority.issue("server", "127.0.0.1")
        authority.revoke(path)
        await tls.refresh()
        assert tls.problem == ""
        assert await server.said_to(authority, good) == "good.example"
        await server.close()

    run(test)


def test_outdated_revocation_list_refuses_all_clients_and_is_reported(authority: Authority) -> None:
    async def test() -> None:
        good = authority.issue("good", "good.example")
        path = authority.revoke(authority.folder / "crl.pem")
        tls = made(options(authority, client_crl=str(path)))
        await tls.start()
        server = Server(tls)
        before = tls.context
        LATER[0] = timedelta(days=2)
        await tls.refresh()
        assert "the revocation list of CN=authority expired at" in tls.problem
        assert tls.context is not before, "no session of before is resumed"
        authority.revoke(path, until=datetime.now(UTC) - timedelta(days=1))
        await tls.refresh()
        assert await server.said_to(authority, good) == ""
        LATER[0] = timedelta()
        authority.revoke(path)
        await tls.refresh()
        assert tls.problem == ""
        assert await server.said_to(authority, good) == "good.example"
        await server.close()

    run(test)


def test_revocation_counts_although_another_file_is_invalid(authority: Authority) -> None:
    async def test() -> None:
        bad = authority.issue("bad", "bad.example")
        path = authority.revoke(authority.folder / "crl.pem")
        tls = made(options(authority, client_crl=str(path)))
        await tls.start()
        certificate = ssl.PEM_cert_to_DER_cert(bad[0].read_text())
        assert not tls.is_revoked(certificate)
        (authority.folder / "server.key").write_text("no key")
        authority.revoke(path, bad[0])
        await tls.refresh()
        assert tls.is_revoked(certificate)
        assert tls.problem.endswith("; the old files stay in use")

    run(test)


def test_failure_of_a_refresh_is_logged_once_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    outcomes = [KeyError("a"), KeyError("a"), KeyError("b"), None, None, KeyError("b")]

    async def test() -> None:
        async def step() -> None:
            if not outcomes:
                raise asyncio.CancelledError
            if (outcome := outcomes.pop(0)) is not None:
                raise outcome

        with contextlib.suppress(asyncio.CancelledError):
            await every(0, step)

    run(test)
    assert tracebacks(caplog) == 3
    assert caplog.messages.count("TLS files and secrets are refreshed again") == 1


def test_list_with_an_unreadable_issuer_leaves_the_previous_one_in_use(
    authority: Authority,
) -> None:
    """Else connections that were accepted before could not be checked any more."""

    async def test() -> None:
        bad = authority.issue("bad", "bad.example")
        path = authority.revoke(authority.folder / "crl.pem", bad[0])
        tls = made(options(authority, client_crl=str(path)))
        await tls.start()
        path.write_text(with_unreadable_issuer(path.read_text()))
        await tls.refresh()
        assert f"{path} is damaged" in tls.problem
        assert tls.is_revoked(ssl.PEM_cert_to_DER_cert(bad[0].read_text()))

    run(test)


def test_missing_certificate_or_one_of_another_authority_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    async def test() -> None:
        tls = made(options(authority))
        await tls.start()
        server = Server(tls)
        other = Authority(tmp_path / "other", "authority").issue("good", "good.example")
        assert await server.said_to(authority, None) == ""
        assert await server.said_to(authority, other) == ""
        assert server.counters.unauthorized == 2
        await server.close()

    run(test)


def test_silent_connections_make_room_for_a_good_sender(authority: Authority) -> None:
    """Of all addresses together, and of one address sooner: its own go first."""

    async def silent(port: int, host: str) -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        return writer

    async def test() -> None:
        tls = made(options(authority))
        await tls.start()
        server = Server(tls, most_half_open=8, most_of_one_address=4)
        good = authority.issue("good", "good.example")
        held = [await silent(server.port, "127.0.0.1") for _ in range(6)]
        assert await server.said_to(authority, good) == "good.example"
        assert server.counters.refused == 3, "two of the address, and one for the good sender"
        for number in range(2, 9):
            held.append(await silent(server.port, f"127.0.0.{number}"))
        assert await server.said_to(authority, good) == "good.example"
        server.handshakes.check()
        await server.close()
        server.handshakes.check()
        for writer in held:
            writer.close()

    run(test)


def test_a_handshake_takes_bounded_time(authority: Authority) -> None:
    async def test() -> None:
        tls = made(options(authority))
        await tls.start()
        server = Server(tls, handshake_seconds=0.1)
        begun = bytes.fromhex("16030100c8010000c40303")
        for first in (b"", begun, b"<13>plain text, and much of it\n" * 10):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(first)
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert await reader.read() == b""
            writer.close()
        assert server.counters.idle == 2
        assert server.counters.malformed == 1
        server.handshakes.check()
        await server.close()

    run(test)


def test_only_tls_1_2_and_later_is_accepted(authority: Authority) -> None:
    async def test() -> None:
        tls = made(options(authority))
        await tls.start()
        assert tls.context is not None
        assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert tls.context.num_tickets == 0
        assert tls.context.options & ssl.OP_NO_TICKET

    run(test)


def test_a_shortage_of_memory_makes_accepting_wait(authority: Authority) -> None:
    """The connection stays in the kernel's queue, and each try would fail at once."""
    tries = 0

    class Poor(socket.socket):
        def accept(self) -> Any:
            nonlocal tries
            tries += 1
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    async def test() -> None:
        with Poor() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            listener.setblocking(False)
            handshakes = Handshakes(listener, made(options(authority)), Served, Counters())
            with socket.create_connection(listener.getsockname()):
                await asyncio.sleep(3 * NO_DESCRIPTORS_SECONDS)
            handshakes.close()

    run(test)
    assert 1 <= tries <= 4
