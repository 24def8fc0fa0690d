"""The check for valid JSON: RFC 8259, in the categories of JSONTestSuite."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flumeng.filters.json_check import are_json

TEXTS = Path(__file__).parent / "corpora" / "json" / "texts.yaml"
DOCS = Path(__file__).parents[3] / "docs" / "reference" / "formats.md"
CORPUS: dict[str, Any] = yaml.load(TEXTS.read_text(), yaml.CSafeLoader)


def texts(entries: list[Any]) -> list[bytes]:
    return [
        bytes.fromhex(entry["hex"]) if isinstance(entry, dict) else entry.encode()
        for entry in entries
    ]


def checked(*bodies: bytes | None) -> list[bool]:
    found: list[bool] = are_json(pa.array(bodies, pa.binary())).to_pylist()
    return found


def alone(bodies: list[bytes]) -> dict[bytes, bool]:
    return {body: checked(body)[0] for body in bodies}


def test_valid_json_is_accepted() -> None:
    valid = texts(CORPUS["valid"])
    assert alone(valid) == dict.fromkeys(valid, True)
    assert checked(*valid) == [True] * len(valid)


def test_invalid_json_is_refused() -> None:
    invalid = texts([*CORPUS["invalid"]])
    assert alone(invalid) == dict.fromkeys(invalid, False)
    assert checked(*invalid) == [False] * len(invalid)
    assert checked(b"[" * 100_000, b'[{"":' * 50_000, None) == [False] * 3


def test_documented_decision_holds_where_the_rfc_leaves_it_open() -> None:
    for name, decided in CORPUS["free"].items():
        free = texts(decided["texts"])
        assert alone(free) == dict.fromkeys(free, decided["taken"]), name


def test_the_table_in_the_docs_has_these_numbers() -> None:
    rows = re.findall(
        r"^\| (valid|invalid|free: [a-z0-9-]+) \| (\d+) \| (taken|refused)\b",
        DOCS.read_text(),
        re.MULTILINE,
    )
    assert rows == [
        ("valid", str(len(CORPUS["valid"])), "taken"),
        ("invalid", str(len(CORPUS["invalid"])), "refused"),
        *(
            (f"free: {name}", str(len(free["texts"])), "taken" if free["taken"] else "refused")
            for name, free in CORPUS["free"].items()
        ),
    ]


pieces = st.sampled_from(
    rb'{|}|[|]|,|:|"|\|\ud83d|\ude00|\u|1|-|e|.|null|{"a":1}|[1,2]|"x"| |'.split(b"|")
)


@given(st.lists(st.builds(b"".join, st.lists(pieces, max_size=5)), max_size=6))
def test_bodies_are_judged_alike_alone_and_together(bodies: list[bytes]) -> None:
    assert checked(*bodies) == [checked(body)[0] for body in bodies]


@given(st.builds(b"".join, st.lists(pieces, max_size=8)))
def test_json_check_agrees_with_the_standard_library(body: bytes) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(body, parse_constant=refuse)
        expected = True
    except ValueError:
        expected = False
    assert checked(body) == [expected]


def test_bodies_that_are_json_only_together_are_refused() -> None:
    assert checked(b"[1", b"2]") == [False, False]
    assert checked(b"1,2", b"[3", b"4]") == [False] * 3
    assert checked(b'"a', b'b"', b"1,2") == [False] * 3
    assert checked(b' "a', b'"') == [False] * 2
