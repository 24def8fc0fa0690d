"""A task's error for one that an executor has raised, of which only name and text arrive."""

from __future__ import annotations

import pytest

from flumeng.agent.collector.outcome import BatchFailedError, of_kind
from flumeng.connectors.elasticsearch.cluster import OverloadedError
from flumeng.journal.log.errors import NotServedError
from flumeng.platform.errors import FlumengError, UnavailableError, UserError


@pytest.mark.parametrize("kind", [UnavailableError, NotServedError, OverloadedError])
def test_temporary_error_is_unavailable(kind: type[FlumengError]) -> None:
    found = of_kind(kind.__name__, "no answer within 30 s")
    assert (type(found), str(found)) == (UnavailableError, "no answer within 30 s")


def test_user_error_is_not_a_failed_batch() -> None:
    assert type(of_kind("UserError", "no such index")) is UserError


def test_unknown_error_keeps_its_name() -> None:
    found = of_kind("ZeroDivisionError", "division by zero")
    assert type(found) is BatchFailedError
    assert str(found) == "ZeroDivisionError: division by zero"
