"""What a task says of an error that an executor has raised, of which only name and text arrive."""

from __future__ import annotations

import pytest

from flumeng.agent.collector.outcome import BatchFailedError, of_kind
from flumeng.connectors.elasticsearch.cluster import OverloadedError
from flumeng.journal.log.errors import NotServedError
from flumeng.platform.errors import FlumengError, UnavailableError, UserError


@pytest.mark.parametrize("kind", [UnavailableError, NotServedError, OverloadedError])
def test_what_may_pass_is_waited_for(kind: type[FlumengError]) -> None:
    found = of_kind(kind.__name__, "no answer within 30 s")
    assert (type(found), str(found)) == (UnavailableError, "no answer within 30 s")


def test_what_a_person_has_to_mend_is_no_failed_batch() -> None:
    assert type(of_kind("UserError", "no such index")) is UserError


def test_an_unknown_error_says_its_name() -> None:
    found = of_kind("ZeroDivisionError", "division by zero")
    assert type(found) is BatchFailedError
    assert str(found) == "ZeroDivisionError: division by zero"
