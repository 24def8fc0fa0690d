"""A lasting trouble is logged once, however often it is met, and so is its end."""

from __future__ import annotations

import logging

import pytest

from flumeng.platform.errors import UnavailableError
from flumeng.platform.trouble_log import MOST_KINDS, TroubleLog


@pytest.fixture
def trouble(caplog: pytest.LogCaptureFixture) -> TroubleLog:
    caplog.set_level(logging.INFO)
    return TroubleLog(logging.getLogger("flumeng.test"))


def test_alternating_troubles_are_logged_once_each_until_their_end(
    trouble: TroubleLog, caplog: pytest.LogCaptureFixture
) -> None:
    trouble.end("works again")
    for _ in range(3):
        trouble.log(logging.WARNING, "%s is down", "a")
        trouble.log(logging.ERROR, "%s is down", "b")
    lasting = [trouble.lasts]
    for _ in range(2):
        trouble.end("works again")
        lasting.append(trouble.lasts)
    assert lasting == [True, False, False]
    trouble.log(logging.WARNING, "%s is down", "a")
    assert caplog.messages == ["a is down", "b is down", "works again", "a is down"]


def test_texts_of_one_kind_are_logged_once(
    trouble: TroubleLog, caplog: pytest.LogCaptureFixture
) -> None:
    for kind, port in (("down", 1), ("down", 2), ("slow", 2)):
        trouble.log(logging.WARNING, "port %d", port, kind=kind)
    assert caplog.messages == ["port 1", "port 2"]


@pytest.mark.parametrize(
    ("cause", "traced"),
    [(ValueError(), True), (UnavailableError(), False), (TimeoutError(), False), (None, False)],
)
def test_only_unexpected_errors_have_a_traceback(
    trouble: TroubleLog, caplog: pytest.LogCaptureFixture, cause: Exception | None, *, traced: bool
) -> None:
    trouble.log(logging.ERROR, "it fails", cause=cause)
    assert bool(caplog.records[0].exc_info) == traced


def test_memory_is_bounded(trouble: TroubleLog, caplog: pytest.LogCaptureFixture) -> None:
    """An error's text may contain a number that never repeats."""
    for number in [*range(MOST_KINDS + 1), 0]:
        trouble.log(logging.WARNING, "try %d", number)
    assert len(caplog.messages) == MOST_KINDS + 2
