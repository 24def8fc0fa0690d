"""When the HTTP source answers: at once, when events are durable, or when they are delivered."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest

from flumeng.connectors.http import app as http_app
from flumeng.connectors.http.app import MOST_WAITING
from tests.unit.connectors.http_sending import Journal, run, serving, silent


@pytest.mark.slow
def test_ack_received_answers_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """A later failure of its events is not logged as an exception without a reader."""

    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal, ack="received") as (_, connect):
            client = await connect()
            client.post(b"x")
            assert await client.status() == 200
            assert journal.bodies() == [b"x"]
            client.post(b"y")
            assert await client.status() == 200
            taken, unfit = journal.blocks
            assert taken.on_durable is not None
            taken.on_durable(1)
            assert unfit.on_unfit is not None
            unfit.on_unfit("too large")
            journal.blocks.clear()

    run(test)
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.slow
def test_ack_delivered_waits_for_the_ack_of_the_last_event() -> None:
    """A request may be several appends: an ack of a part of it answers no sender."""

    async def test() -> None:
        journal = Journal(durable=False)
        deliveries = journal.context.deliveries
        async with serving(journal, ack="delivered") as (_, connect):
            client = await connect()
            client.post(b"a\nb\nc\n")
            await silent(client)
            journal.make_durable(7)
            await silent(client)
            assert deliveries.awaited
            deliveries.acked(6)
            await silent(client)
            deliveries.acked(7)
            assert await client.status() == 200
            client.post(b"d")
            await silent(client)
            journal.make_durable(7)
            assert await client.status() == 200, "it was acked before it was known as durable"

    run(test)


@pytest.mark.slow
def test_undelivered_events_are_answered_504_and_the_next_request_is_served() -> None:
    async def test() -> None:
        journal = Journal(durable=False)
        options: dict[str, Any] = {"ack": "delivered", "ack_timeout_seconds": 0.3}
        async with serving(journal, **options) as (_, connect):
            client = await connect()
            client.post(b"x")
            await silent(client)
            journal.make_durable(1)
            status, _, said = await client.answer()
            assert status == 504
            assert journal.context.counters.undelivered == 1
            assert said["error"].startswith(
                "the events are journaled, but not delivered within 0.3 s"
            )
            assert not journal.context.deliveries.awaited
            client.post(b"y")
            await silent(client)
            journal.make_durable(2)
            journal.context.deliveries.acked(2)
            assert await client.status() == 200

    run(test)


@pytest.mark.slow
def test_waiting_sender_is_answered_503_when_the_source_stops() -> None:
    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal, ack="delivered") as (source, connect):
            client = await connect()
            client.post(b"x")
            await silent(client)
            journal.make_durable(1)
            await silent(client)
            await source.stop()
            status, _, said = await client.answer()
            assert status == 503
            assert "the events are journaled" in said["error"]

    run(test)


@pytest.mark.slow
def test_sender_beyond_the_limit_of_waits_gets_429() -> None:
    """Each wait gives its place back, however its request ends."""

    async def test() -> None:
        journal = Journal(durable=False)
        async with serving(journal, ack="delivered") as (_, connect):
            waiting = [await connect() for _ in range(2)]
            for client in waiting:
                client.post(b"x")
                await silent(client)
            refused = await connect()
            refused.post(b"x")
            status, headers, _ = await refused.answer()
            assert (status, headers["retry-after"]) == (429, "1")
            assert len(journal.blocks) == 2
            journal.make_durable(2)
            journal.context.deliveries.acked(2)
            assert [await client.status() for client in waiting] == [200, 200]
            bad = "Content-Type: application/json"
            for client in waiting:
                client.post(b"{", bad)
                assert await client.status() == 400
            refused.post(b"x")
            await silent(refused)
            journal.make_durable(3)
            journal.context.deliveries.acked(3)
            assert await refused.status() == 200

    with contextlib.ExitStack() as others:
        for _ in range(MOST_WAITING - 2):
            others.enter_context(http_app._delivery_slot())
        run(test)
