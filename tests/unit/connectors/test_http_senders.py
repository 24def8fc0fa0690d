"""Authentication of senders to the HTTP source: the others are refused before their bodies are
read."""

from __future__ import annotations

import asyncio
import base64
import logging
from pathlib import Path
from typing import Any

import pytest

from flumeng.connectors.http.received_body import Limits
from flumeng.connectors.http.senders import Senders
from flumeng.connectors.network.senders import PeerLimits, SenderAuth
from flumeng.platform import secrets
from flumeng.platform.errors import UserError
from flumeng.platform.secrets import SecretBackend
from tests.testkit.waiting import PATIENCE_SECONDS
from tests.unit.connectors.http_sending import Client, Journal, run, serving, silent

SHOP, NEXT, ANN = "shop-token-1", "shop-token-2", "pass:word ä"
SECRETS = {"shop": SHOP, "next": NEXT, "ann": ANN}


@pytest.fixture(autouse=True)
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the secret files."""
    monkeypatch.setenv("FLUMENG_SECRETS", str(tmp_path))
    for name, secret in SECRETS.items():
        put(tmp_path, name, secret)
    return tmp_path


def put(folder: Path, name: str, secret: str) -> None:
    (folder / name).write_text(secret)
    (folder / name).chmod(0o600)


def auth(**more: Any) -> SenderAuth:
    tokens = {"shop": "${secret:shop}", "shop-next": "${secret:next}"}
    return SenderAuth(tokens=tokens, users={"ann": "${secret:ann}"}, **more)


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


def basic(user: str, password: str) -> str:
    return f"Authorization: Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.parametrize(
    ("header", "client"),
    [
        (bearer(SHOP), "shop"),
        (bearer(NEXT), "shop-next"),
        (f"authorization: bearer  {SHOP}", "shop"),
        (basic("ann", ANN), "ann"),
    ],
)
def test_known_senders_are_accepted_under_their_names(header: str, client: str) -> None:
    async def test() -> None:
        journal = Journal()
        async with serving(journal, auth=auth()) as (_, connect):
            sender = await connect()
            for body in (b"1", b"2"):
                sender.post(body, header)
                assert await sender.status() == 200
            assert journal.bodies() == [b"1", b"2"]
            assert {dict(block.origin.attrs)["client"] for block in journal.blocks} == {client}

    run(test)


@pytest.mark.parametrize(
    "header",
    [
        "X: y",
        "Authorization: ",
        "Authorization: Bearer",
        bearer("wrong"),
        bearer(SHOP[:-1]),
        bearer(SHOP + "x"),
        f"Authorization: {SHOP}",
        f"Authorization: Basic {SHOP}",
        f"Authorization: Digest {SHOP}",
        basic("ann", "wrong"),
        basic("ann", ""),
        basic("shop", SHOP),
        basic("nobody", ANN),
        basic("nobody", ""),
        "Authorization: Basic !!!",
        "Authorization: Basic /w==",
    ],
)
def test_unknown_senders_are_answered_401_before_their_body(header: str) -> None:
    limits = Limits(drain_seconds=10 * PATIENCE_SECONDS)

    async def test() -> None:
        journal = Journal()
        async with serving(journal, limits, auth=auth()) as (_, connect):
            sender = await connect()
            sender.send(
                f"POST / HTTP/1.1\r\nHost: h\r\n{header}\r\nContent-Length: 9\r\n\r\n".encode()
            )
            status, headers, said = await sender.answer()
            assert status == 401
            assert headers["www-authenticate"] == (
                'bearer realm="flumeng", basic realm="flumeng", charset="utf-8"'
            )
            assert headers["connection"] == "close"
            assert said["error"].startswith("the header Authorization is")
            sender.send(b"x" * 9)
            await sender.closed()
            assert journal.blocks == []
            assert journal.context.counters.unauthorized == 1

    run(test)


def test_unauthorized_sender_gets_no_100_continue() -> None:
    async def test() -> None:
        async with serving(Journal(), auth=auth()) as (_, connect):
            stranger, sender = await connect(), await connect()
            stranger.send(
                b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
            )
            assert await stranger.status() == 401
            sender.send(
                f"POST / HTTP/1.1\r\nHost: h\r\n{bearer(SHOP)}\r\nExpect: 100-continue\r\n".encode()
                + b"Content-Length: 1\r\n\r\n"
            )
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await sender.reader.readline() == b"HTTP/1.1 100 Continue\r\n"
                await sender.reader.readline()
            sender.send(b"x")
            assert await sender.status() == 200

    run(test)


def test_path_is_open_to_its_allowed_clients_only() -> None:
    async def test() -> None:
        journal = Journal()
        paths = {"/shop": ("shop", "shop-next"), "/shop/till": ("ann",)}
        async with serving(journal, auth=auth(paths=paths)) as (_, connect):
            answers = {}
            for path in ("/shop", "/shop/x", "/shop/till", "/shop/%74ill", "/other", "/shop/../x"):
                for header in (bearer(SHOP), basic("ann", ANN)):
                    sender = await connect()
                    head = f"POST {path} HTTP/1.1\r\nHost: h\r\n{header}\r\n"
                    sender.send(f"{head}Content-Length: 1\r\n\r\nx".encode())
                    answers[path, header.split()[1]] = await sender.status()
            assert answers == {
                ("/shop", "Bearer"): 200,
                ("/shop", "Basic"): 403,
                ("/shop/x", "Bearer"): 200,
                ("/shop/x", "Basic"): 403,
                ("/shop/till", "Bearer"): 403,
                ("/shop/till", "Basic"): 200,
                ("/shop/%74ill", "Bearer"): 403,
                ("/shop/%74ill", "Basic"): 200,
                ("/other", "Bearer"): 403,
                ("/other", "Basic"): 403,
                ("/shop/../x", "Bearer"): 403,
                ("/shop/../x", "Basic"): 403,
            }
            assert len(journal.blocks) == 4

    run(test)


def test_health_needs_no_credentials() -> None:
    async def test() -> None:
        async with serving(Journal(), auth=auth()) as (_, connect):
            client = await connect()
            client.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await client.status() == 200

    run(test)


def test_old_secrets_are_used_while_the_command_of_one_fails() -> None:
    async def test() -> None:
        senders = Senders(auth(), "[::]:8080", lambda: None)
        await senders.start()
        secrets.use({"next": SecretBackend(command=("/bin/false",))})
        await senders.refresh()
        assert "its command /bin/false ended with 1" in senders.problem
        assert senders.of(f"Bearer {NEXT}".encode()) == "shop-next"

    try:
        run(test)
    finally:
        secrets.use({})


def test_changed_secret_is_used_and_a_missing_one_is_reported_until_it_is_there(
    stored: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def test() -> None:
        changes: list[str] = []
        senders = Senders(auth(), "[::]:8080", lambda: changes.append(senders.problem))
        await senders.start()
        put(stored, "shop", "other")
        await senders.refresh()
        assert changes == []
        assert senders.of(bearer("other").partition(" ")[2].encode()) == "shop"
        assert senders.of(bearer(SHOP).partition(" ")[2].encode()) is None
        (stored / "next").unlink()
        put(stored, "shop", "third")
        for _ in range(2):
            await senders.refresh()
        (problem,) = changes
        assert problem.startswith(
            "auth of the http source at [::]:8080 still uses all the old secrets, until each can "
            "be read: there is no secret next"
        )
        assert senders.of(f"Bearer {NEXT}".encode()) == "shop-next"
        assert senders.of(b"Bearer other") == "shop"
        put(stored, "next", NEXT)
        await senders.refresh()
        assert changes[1:] == [""]
        assert senders.of(b"Bearer third") == "shop"

    run(test)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize("secret", ["", "two words", "tokén", "=x"])
def test_invalid_token_keeps_the_source_from_starting(stored: Path, secret: str) -> None:
    async def test() -> None:
        put(stored, "shop", secret)
        with pytest.raises(UserError) as error:
            await Senders(auth(), "[::]:8080", lambda: None).start()
        assert not secret or secret not in str(error.value)

    run(test)


@pytest.mark.slow
def test_sender_over_its_rate_gets_429_with_retry_after() -> None:
    async def test() -> None:
        journal = Journal()
        limits = PeerLimits(bytes_per_second=10_000)
        async with serving(journal, per_peer=limits) as (_, connect):
            client = await connect()
            client.post(b"x" * 19_000)
            assert await client.status() == 200
            other = await connect()
            other.post(b"y")
            status, headers, said = await other.answer()
            assert (status, headers["retry-after"]) == (429, "2")
            assert "rate limit of your address exceeded" in said["error"]
            await asyncio.sleep(2)
            other.post(b"y")
            assert await other.status() == 200

    run(test)


def test_event_rate_counts_events_in_lines_and_arrays() -> None:
    async def test() -> None:
        limits = PeerLimits(events_per_second=10)
        for body, kind in (
            (b"x\n" * 95, "text/plain"),
            (b"[" + b"1," * 94 + b"1]", "application/json"),
        ):
            async with serving(Journal(), per_peer=limits) as (_, connect):
                client = await connect()
                client.post(body, f"Content-Type: {kind}")
                assert await client.status() == 200
                client.post(b"y")
                status, headers, _ = await client.answer()
                assert (status, headers["retry-after"]) == (429, "10")

    run(test)


def test_connections_of_one_address_are_bounded() -> None:
    async def test() -> None:
        journal = Journal()
        async with serving(journal, per_peer=PeerLimits(connections=2)) as (_, connect):
            first, second = await connect(), await connect()
            third = await connect()
            await third.closed()
            assert journal.context.counters.refused == 1
            first.writer.close()
            second.post(b"x")
            assert await second.status() == 200
            fourth: Client = await connect()
            fourth.post(b"x")
            assert await fourth.status() == 200

    run(test)


@pytest.mark.slow
def test_unauthorized_request_does_not_wait_for_the_journal() -> None:
    """Nor does its answer disclose the state of the journal."""

    async def test() -> None:
        async with serving(Journal(durable=False), auth=auth()) as (source, connect):
            source.pause()
            stranger, sender = await connect(), await connect()
            stranger.post(b"x")
            assert await stranger.status() == 401
            sender.post(b"x", bearer(SHOP))
            assert await sender.status() == 429
            source.resume()
            sender.post(b"x", bearer(SHOP))
            await silent(sender)

    run(test)
