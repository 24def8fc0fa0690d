"""The waits of tests: they return values, and fail with a reason."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.testkit.waiting import async_wait_for, happens, retry, wait_for, wait_while_changing


def test_first_true_value_is_returned() -> None:
    values = iter([None, 0, "there"])
    assert wait_for(lambda: next(values)) == "there"
    numbers = itertools.count()
    assert asyncio.run(async_wait_for(lambda: next(numbers))) == 1


def test_wait_in_vain_fails_with_reason_and_last_value() -> None:
    with pytest.raises(AssertionError, match="waited 0 s in vain: no node is live; last value: ''"):
        wait_for(str, "no node is live", seconds=0)
    with pytest.raises(AssertionError, match="in vain: 2 of 3; last value: None"):
        asyncio.run(async_wait_for(lambda: None, lambda: "2 of 3", seconds=0))


def test_only_ignored_errors_count_as_not_yet() -> None:
    def refuse() -> bool:
        raise ConnectionError("refused")

    with pytest.raises(AssertionError, match=r"last value: ConnectionError\('refused'\)"):
        wait_for(refuse, seconds=0.01, ignoring=OSError)
    with pytest.raises(ConnectionError):
        wait_for(refuse, seconds=0.01, ignoring=ValueError)


def test_action_is_retried_until_it_succeeds() -> None:
    results = iter([ConnectionError("refused"), 7])

    def connect() -> object:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    assert retry(connect, ConnectionError) == 7


def test_progress_extends_a_wait_and_a_standstill_ends_it() -> None:
    counter = itertools.count()
    wait_while_changing(
        lambda: next(counter) >= 5, lambda: next(counter), seconds=0.2, pause_seconds=0.001
    )
    with pytest.raises(AssertionError, match=r"nothing changed for 0\.01 s: 3 acks"):
        wait_while_changing(lambda: False, lambda: 3, "acks", seconds=0.01, pause_seconds=0.001)


def test_happens_reports_whether_a_condition_came_true() -> None:
    values = iter([False, True])
    assert happens(lambda: next(values))
    assert not happens(lambda: False, seconds=0.0)
