"""Patterns are judged without RE2 and run with it: the judgement must agree."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flumeng.config.column_kinds import EVENT
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.options.patterns import check_lake_path, check_regex, split_query

GOOD = [
    r"^(?P<client>\S+) \[(?P<time>[^\]]+)\] \"(?P<request>[^\"]*)\"$",
    r"(?P<rest>[(?=\]]*)\\1",
    r"(?i)(?P<a>x)(?:b|c)*?",
    r"(?P<a>(?i:x))(?-i:y)",
    r"(?P<a>[]a]{2,1000}[^]])",
    r"(?P<a>[[:alpha:]]+)\b\d\w\s\D\W\S",
    r"(?P<a>\x41\t\n\.)",
    r"(?P<a>)",
    r"\A(?P<a>ä+)",
]
BAD = [
    r"(?P<a>x)(?=y)",
    r"(?P<a>x)(?!y)",
    r"(?<=y)(?P<a>x)",
    r"(?<!y)(?P<a>x)",
    r"(?P<a>x)\1",
    r"(?P<a>x)(?P=a)",
    r"(?P<a>x)(?(a)y|z)",
    r"(?P<a>x{1001})",
    r"(?P<a>x)\Z",
    r"(?P<a>x)(?#c)",
    r"(?x)(?P<a>x)",
    r"(?P<a>\u00e9)",
    r"(?P<a>x)++",
    r"(?P<a>(?>x))",
    r"(?P<a>x",
]


def runs_in_re2(pattern: str) -> bool:
    try:
        pc.extract_regex(pa.array(["x"]), pattern)
    except pa.ArrowInvalid:
        return False
    return True


@pytest.mark.parametrize("pattern", GOOD)
def test_accepted_patterns_run_in_re2(pattern: str) -> None:
    check_regex(pattern)
    assert runs_in_re2(pattern)


@pytest.mark.parametrize("pattern", BAD)
def test_pattern_that_re2_refuses_is_refused_before(pattern: str) -> None:
    assert not runs_in_re2(pattern)
    with pytest.raises(ValueError, match=r"RE2|expected"):
        check_regex(pattern)


def test_duplicate_group_name_is_refused_though_re2_takes_it() -> None:
    with pytest.raises(ValueError, match="redefinition of group name"):
        check_regex(r"(?P<a>x)(?P<a>y)")


def test_columns_that_every_event_has_are_known_without_arrow() -> None:
    assert set(EVENT) == set(READ_SCHEMA.names)


def test_the_query_of_a_url_has_no_time_patterns() -> None:
    check_lake_path("s3://lake/web/%Y?endpoint_override=localhost%3A9000&scheme=http")
    with pytest.raises(ValueError, match="fixed directory"):
        check_lake_path("s3://%Y?region=a/b")
    assert split_query("file:///a?b/%Y") == ("file:///a?b/%Y", "")
