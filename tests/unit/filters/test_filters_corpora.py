"""Lines of the test suites of other syslog readers: ours agrees, or the docs say why not.

A case names the fields that the other reader finds. A case that ``differs`` names a class of
difference and the fields that are ours; it must really differ, so that the table stays true.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from flumeng.filters.formats import syslog

CORPORA = sorted((Path(__file__).parent / "corpora").glob("*.yaml"))
DOCS = (Path(__file__).parents[3] / "docs" / "reference" / "formats.md").read_text()
READING_SYSLOG = DOCS.partition("## `syslog`\n")[2].partition("\n## ")[0]
RECEIVED = datetime(2026, 11, 22, 12, tzinfo=UTC)
NOT_FIELDS = ("line", "timezone", "differs", "ours", "refused")

Case = dict[str, Any]


def cases(corpus: Path) -> list[Case]:
    loaded: list[Case] = yaml.load(corpus.read_text(), yaml.CSafeLoader)["cases"]
    return loaded


def found(case: Case) -> Case:
    """The fields of the line."""
    times = pa.array([RECEIVED], pa.timestamp("us", "UTC"))
    body = pa.array([case["line"].encode()], pa.binary())
    parsed = syslog.parse(body, times, case.get("timezone"))
    named = {"host": parsed.host, "ts": parsed.ts, "reason": parsed.reasons}
    for field, column in zip(syslog.COLUMNS, parsed.columns, strict=True):
        named[field.name] = column
    row: Case = pa.RecordBatch.from_pydict(named).to_pylist()[0]
    return row


def disagreements(case: Case) -> Case:
    """Our value of each field that the other reader reads differently."""
    ours = found(case)
    if case.get("refused"):
        return {} if ours["reason"] else {"refused": False}
    wanted = {name: value for name, value in case.items() if name not in NOT_FIELDS}
    return {name: ours[name] for name, value in wanted.items() if ours[name] != value}


@pytest.mark.slow
@pytest.mark.parametrize("corpus", CORPORA, ids=lambda path: path.stem)
def test_every_line_is_read_as_by_the_other_reader_or_as_documented(corpus: Path) -> None:
    for case in cases(corpus):
        if "differs" not in case:
            assert disagreements(case) == {}, case
            continue
        assert disagreements(case), f"no difference any more: {case}"
        ours = {name: found(case)[name] for name in case["ours"]}
        assert ours == case["ours"], case
        undeclared = set(disagreements(case)) - set(case["ours"]) - {"refused"}
        assert not undeclared, case


def test_the_table_in_the_docs_has_these_numbers() -> None:
    row = re.compile(r"^\| (\w+) \| (\d+) \| (\d+) \| (.*) \|$", re.MULTILINE)
    assert row.findall(READING_SYSLOG) == [_row(corpus) for corpus in CORPORA]


def test_every_class_of_difference_has_a_reason_in_the_docs() -> None:
    used = {case["differs"] for corpus in CORPORA for case in cases(corpus) if "differs" in case}
    explained = re.findall(r"^\| `([a-z0-9-]+)` \| \S", READING_SYSLOG, re.MULTILINE)
    assert sorted(used) == explained


def _row(corpus: Path) -> tuple[str, str, str, str]:
    every = cases(corpus)
    classes = Counter(case["differs"] for case in every if "differs" in case)
    listed = ", ".join(f"{name} {count}" for name, count in sorted(classes.items()))
    return corpus.stem, str(len(every)), str(len(every) - classes.total()), listed
