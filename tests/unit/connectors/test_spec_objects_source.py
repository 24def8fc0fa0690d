"""Options of a source `objects` fit its format and its store, or are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from flumeng.connectors.objects.options import (
    ObjectsSource,
    check_delimiter,
    check_quote,
    check_tag,
)

S3 = ("s3a://logs/web/*.gz",)


def problems(paths: tuple[str, ...] = ("/in/*",), **options: Any) -> dict[str, str]:
    return dict(ObjectsSource(paths=paths, **options).problems())


@pytest.mark.parametrize(
    "options",
    [
        {"format": "csv", "delimiter": "tab", "quote": "", "names": ("a", "b"), "columns": ("a",)},
        {"format": "csv", "header": True, "names": ("a",)},
        {"format": "json", "records": "data.items"},
        {"format": "parquet", "columns": ("a",)},
        {"format": "avro", "columns": ("a",)},
    ],
)
def test_options_of_a_format_are_accepted_with_it(options: dict[str, Any]) -> None:
    assert problems(**options) == {}
    wrong = {**options, "format": "lines"}
    assert problems(**wrong).keys() >= {*options} - {"format"}


def test_columns_of_csv_are_named_once() -> None:
    assert problems(format="csv", header=False) == {"names": "required with `header: false`"}
    assert problems(format="csv", names=("a", "b", "a")) == {"names": "duplicate a"}
    assert problems(format="csv", names=("a",), columns=("b",)) == {"columns": "not in names: b"}
    assert problems(format="csv", delimiter='"') == {
        "quote": "the quote must differ from the delimiter"
    }


def test_tags_are_for_s3_and_for_objects_that_are_tagged() -> None:
    assert problems(S3, after="tag") == {}
    assert problems(S3, after="tag", tag={"state": "read by all"}) == {}
    for path in ("/in/*", "gs://logs/*", "abfss://c@a.dfs.core.windows.net/*"):
        assert "not in S3, and has no tags" in problems((*S3, path), after="tag")["after"]
    assert problems(S3, tag={"a": "b"}).keys() == {"tag"}
    assert problems(S3, after="tag", tag={str(n): "" for n in range(11)}).keys() == {"tag"}
    assert problems(S3, after="tag", tag={"a": "b,c"}).keys() == {"tag"}


def test_invalid_delimiters_quotes_and_tags_are_refused() -> None:
    refused = ((check_delimiter, "::"), (check_delimiter, ""), (check_quote, "x"), (check_tag, ""))
    for check, text in (*refused, (check_tag, "aws:a"), (check_tag, "ä,b")):
        with pytest.raises(ValueError, match="expected"):
            check(text)
