"""Texts of filters that Spark's parser refuses are wrong input; a parser that is gone is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import ParseException

from flumeng.filters.spark_syntax import require_expressions, require_statement
from flumeng.platform.errors import UserError


def session(error: Exception) -> Any:
    def parse(_text: str) -> None:
        raise error

    parser = SimpleNamespace(parseExpression=parse, parsePlan=parse)
    state = SimpleNamespace(sqlParser=lambda: parser)
    return SimpleNamespace(_jsparkSession=SimpleNamespace(sessionState=lambda: state))


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ParseException("near x"), UserError), (Py4JNetworkError("no answer"), Py4JNetworkError)],
)
def test_a_lost_jvm_is_no_wrong_text(error: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected):
        require_expressions(session(error), ["a +"])
    with pytest.raises(expected):
        require_statement(session(error), "select", [])
