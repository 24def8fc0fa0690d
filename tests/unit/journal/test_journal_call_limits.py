"""Calls at once are bounded, and frozen readers do not keep the others out for ever."""

from __future__ import annotations

import pytest

from flumeng.journal.serving.taps import STUCK, Places
from tests.testkit.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


@pytest.fixture
def places(clock: Clock) -> Places:
    return Places(2, 30.0, clock)


def test_number_of_calls_at_once_is_bounded(places: Places) -> None:
    assert [places.take(number) for number in range(3)] == [True, True, False]
    places.leave(0)
    assert places.take(3)
    assert not places.take(4)


def test_call_without_progress_loses_its_place(places: Places, clock: Clock) -> None:
    assert places.take("frozen")
    assert places.take("slow")
    clock.now = 20.0
    places.moved("slow")
    clock.now = 30.0
    assert places.take("new")
    assert not places.take("newer")


def test_number_of_calls_without_progress_is_bounded_too(places: Places, clock: Clock) -> None:
    taken = 0
    for number in range(100):
        taken += places.take(number)
        clock.now += 30.0
    assert taken == 2 * (1 + STUCK)
