"""Answers to senders that wait for delivery: delivered, not delivered in time, and their timing."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from flumeng.connectors.api.deliveries import Deliveries, DeliveryWaits


def test_ack_answers_all_waits_at_or_below_it_and_none_above() -> None:
    waits: DeliveryWaits[str] = DeliveryWaits()
    for end, seconds, who in [(5, 30.0, "a"), (5, 1.0, "b"), (9, 30.0, "c"), (9, 1.0, "d")]:
        waits.add(end, seconds, 0.0, who)
    assert waits.delivered(4) == []
    assert sorted(waits.delivered(5)) == ["a", "b"]
    assert waits.delivered(8) == []
    assert sorted(waits.delivered(100)) == ["c", "d"]
    assert len(waits) == 0
    assert waits.next_deadline is None


def test_each_wait_has_its_own_deadline() -> None:
    waits: DeliveryWaits[str] = DeliveryWaits()
    waits.add(1, 30.0, 100.0, "long")
    waits.add(1, 1.0, 100.5, "short")
    waits.add(2, 1.0, 101.0, "later")
    assert waits.next_deadline == 101.5
    assert waits.late(101.4) == []
    assert waits.late(101.5) == ["short"]
    assert waits.late(129.9) == ["later"]
    assert waits.late(130.0) == ["long"]
    assert waits.next_deadline is None


def test_ack_that_falls_back_answers_no_wait() -> None:
    """As after `ack reset`; later events lie above both."""
    waits: DeliveryWaits[str] = DeliveryWaits()
    waits.add(10, 30.0, 0.0, "a")
    assert waits.delivered(9) == []
    assert waits.delivered(3) == []
    assert waits.delivered(10) == ["a"]


@pytest.mark.slow
def test_ten_thousand_waits_need_no_timer_each() -> None:
    """The cost of a step depends on its answers, not on the number of waits."""
    waits: DeliveryWaits[int] = DeliveryWaits()
    count = 100_000
    began = time.process_time()
    for number in range(count):
        waits.add(number + 1, 30.0, float(number), number)
        assert not waits.delivered(0)
    for number in range(count):
        assert waits.delivered(number + 1) == [number]
    assert time.process_time() - began < 10


def test_deliveries_report_when_the_first_wait_begins_and_the_last_ends() -> None:
    changes: list[bool] = []

    async def test() -> None:
        deliveries = Deliveries(lambda: changes.append(deliveries.awaited))
        first, second = deliveries.wait(5, 30.0), deliveries.wait(7, 30.0)
        assert changes == [True]
        deliveries.acked(6)
        assert await first is True
        assert not second.done()
        deliveries.acked(7)
        assert await second is True
        assert changes == [True, False]
        assert await deliveries.wait(7, 30.0) is True  # acked before anybody waited for it
        assert changes == [True, False]

    uvloop.run(test())


@pytest.mark.slow
def test_wait_ends_by_its_timeout() -> None:
    """A shorter one that comes later ends first; a cancelled one harms no other."""

    async def test() -> None:
        deliveries = Deliveries()
        long, given_up, short = (deliveries.wait(5, seconds) for seconds in (0.3, 0.2, 0.1))
        given_up.cancel()
        async with asyncio.timeout(60):
            assert await short is False
            assert not long.done()
            assert await long is False
        assert not deliveries.awaited
        with pytest.raises(asyncio.CancelledError):
            await given_up

    uvloop.run(test())
