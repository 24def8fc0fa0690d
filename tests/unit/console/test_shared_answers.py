"""One viewer computes what many ask at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from flumeng.console.shared_answers import KEEP_SECONDS, SharedAnswers
from flumeng.platform.errors import UnavailableError
from tests.testkit.clock import Clock


def test_viewers_at_once_share_one_computation() -> None:
    shared = SharedAnswers(Clock())
    began, go = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> int:
        made.append(1)
        began.set()
        go.wait(10)
        return 7

    with ThreadPoolExecutor(20) as viewers:
        answers = [viewers.submit(shared.answer, "lag", make) for _ in range(20)]
        began.wait(10)
        go.set()
        assert [answer.result(10) for answer in answers] == [7] * 20
    assert made == [1]


def test_an_answer_is_kept_for_two_seconds_from_when_it_is_made() -> None:
    clock = Clock()
    shared = SharedAnswers(clock)
    numbers = iter(range(10))

    def make() -> int:
        clock.now += 5.0
        return next(numbers)

    assert shared.answer("lag", make) == 0
    clock.now += KEEP_SECONDS - 0.1
    assert shared.answer("lag", make) == 0
    clock.now += 0.2
    assert shared.answer("lag", make) == 1
    assert shared.answer("other", make) == 2


def test_errors_are_shared_and_kept_too() -> None:
    shared = SharedAnswers(Clock())
    asked: list[int] = []

    def fail() -> None:
        asked.append(1)
        raise UnavailableError("node n1 does not answer")

    for _ in range(3):
        with pytest.raises(UnavailableError, match="node n1"):
            shared.answer("lag", fail)
    assert asked == [1]


def test_a_fault_of_the_program_is_not_kept() -> None:
    shared = SharedAnswers(Clock())
    with pytest.raises(ZeroDivisionError):
        shared.answer("lag", lambda: 1 / 0)
    assert shared.answer("lag", lambda: 3) == 3


def test_the_number_of_answers_is_bounded() -> None:
    shared = SharedAnswers(Clock(), most=3)
    for number in range(10):
        shared.answer(number, lambda: None)
    assert len(shared._answers) == 3
