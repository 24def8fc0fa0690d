"""Limits of a gateway: rates hold over all streams, by priority, and streams wait for a place."""

from __future__ import annotations

import threading
import time

import pytest

from flumeng.agent.gateway import limits
from flumeng.agent.gateway.limits import Limits
from flumeng.config.policy import Subscriber
from flumeng.journal.log.errors import ThrottledError
from flumeng.journal.serving.wire import Choke
from tests.testkit.waiting import wait_for

FREE = Subscriber(("*",))
KIB = 1024


def run(*calls: threading.Thread) -> float:
    """Return the seconds until all calls have ended."""
    began = time.monotonic()
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    return time.monotonic() - began


def sending(of: Limits, times: int, granted: Subscriber, choke: Choke) -> threading.Thread:
    def send() -> None:
        for _ in range(times):
            of.take("nyc", 10 * KIB, granted, choke)

    return threading.Thread(target=send)


@pytest.mark.parametrize(
    ("granted", "choke"),
    [
        (Subscriber(("*",), bytes_per_second=200 * KIB), Choke()),
        (FREE, Choke("nyc", "a", link_bytes_per_second=200 * KIB)),
        (FREE, Choke("nyc", "a", bytes_per_second=200 * KIB)),
        (
            Subscriber(("*",), bytes_per_second=10**9),
            Choke("nyc", "a", link_bytes_per_second=200 * KIB),
        ),
    ],
)
def test_streams_of_a_site_share_the_lowest_rate(granted: Subscriber, choke: Choke) -> None:
    shared = Limits()
    seconds = run(*(sending(shared, 3, granted, choke) for _ in range(4)))
    assert seconds >= 11 * 10 / 200 - 0.15, "one send is overdrawn, and a burst is allowed"


def test_rate_of_a_flow_holds_up_no_other_flow() -> None:
    shared = Limits()
    slow = Choke("nyc", "slow", bytes_per_second=KIB)
    shared.take("nyc", 100 * KIB, FREE, slow)
    began = time.monotonic()
    shared.take("nyc", 100 * KIB, FREE, Choke("nyc", "fast", bytes_per_second=2**30))
    assert time.monotonic() - began < 1.0


def test_higher_priority_sends_first() -> None:
    shared, order = Limits(), list[int]()
    rate = 100 * KIB
    shared.take("nyc", 50 * KIB, FREE, Choke("nyc", "a", 0, rate))
    bucket = shared._site("nyc").bucket

    def send(priority: int) -> None:
        shared.take("nyc", KIB, FREE, Choke("nyc", "a", 0, rate, priority))
        order.append(priority)

    calls = [threading.Thread(target=send, args=[n]) for n in (0, 5, 1, 9)]
    for call in calls:
        call.start()
    wait_for(lambda: len(bucket._waiting) == 4 or order, "all wait")
    for call in calls:
        call.join()
    assert order == [9, 5, 1, 0]


def test_stream_that_waited_long_comes_before_higher_priorities() -> None:
    waited = limits._Turn(0, since=0.0)
    urgent = limits._Turn(9, since=4.0)
    assert urgent.rank(limits.PATIENCE_SECONDS) < waited.rank(limits.PATIENCE_SECONDS)
    assert waited.rank(5.1) < urgent.rank(5.1)


def test_stream_beyond_the_limit_waits_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, ended = Limits(), threading.Event()
    one = Subscriber(("*",), streams=1)
    entered = list[str]()

    def second() -> None:
        with shared.stream("nyc", one, ended):
            entered.append("second")

    waiting = threading.Thread(target=second)
    with shared.stream("nyc", one, ended):
        waiting.start()
        with shared.stream("lon", one, ended):
            entered.append("another site")
        monkeypatch.setattr(limits, "MOST_SECONDS", 0.0)
        with (
            pytest.raises(ThrottledError, match="reads 1 streams at once"),
            shared.stream("nyc", one, ended),
        ):
            pass
        entered.append("first ends")
    waiting.join()
    assert entered == ["another site", "first ends", "second"]


def test_stream_that_waits_too_long_is_told_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Limits()
    choke = Choke("nyc", "copy", bytes_per_second=KIB)
    shared.take("nyc", 100 * KIB, FREE, choke)
    monkeypatch.setattr(limits, "MOST_SECONDS", 0.05)
    with pytest.raises(ThrottledError, match="limit of flow copy of nyc, 1024 bytes/s"):
        shared.take("nyc", KIB, FREE, choke)


def test_wait_ends_with_the_server() -> None:
    shared, ended = Limits(), threading.Event()
    choke = Choke("nyc", "copy", bytes_per_second=KIB)
    shared.take("nyc", 100 * KIB, FREE, choke)
    ended.set()
    with pytest.raises(ThrottledError):
        shared.take("nyc", KIB, FREE, choke, ended)
