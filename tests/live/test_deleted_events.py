"""Deleted events that were not read become dead letters, in a real Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.gaps import Gap
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import DELETED, Range
from flumeng.connectors.api.sink import Written
from flumeng.connectors.journals.reader import JournalReader
from tests.testkit.collector import TASK

RANGES = (Range("orders.0.MkTRfQ2n@kafka", 100, 250), Range("orders.1.MkTRfQ2n@kafka", 0, 1))
GAPS = tuple(Gap(gone, DELETED) for gone in RANGES)


def write_gaps(spark: SparkSession, text: str, gaps: tuple[Gap, ...] = GAPS) -> list[Written]:
    pipeline = SparkPipeline(spark, parse_flow(text), TASK, JournalReader())
    staging = {root: f"{root}/staged" for root in pipeline.roots}
    for directory in staging.values():
        Path(directory).mkdir(parents=True)
    ranges = tuple(gap.piece for gap in gaps)
    work = Work(pipeline, ranges, {}, staging, 60.0, lambda _: None, gaps=gaps)
    (outcome,) = SparkEngine(spark).write([work], "job", "slot")
    assert isinstance(outcome, list), outcome
    return outcome


FLOW = """\
flow: web
sources: [syslog: {{listen: "127.0.0.1:0"}}]
filters: [{filters}]
sinks: [{{files: {{path: {folder}/lake, format: json, compression: none}}}}, noop]
"""
DEAD = "dead_letters: {{files: {{path: {folder}/dead, format: json, compression: none}}}}\n"


@pytest.mark.parametrize(
    "filters",
    [
        "",
        "{where: 'length(body) > 1000000'}",
        "{sql: 'SELECT seq, journal, upper(host) AS host FROM events WHERE false'}",
        "{sql: 'SELECT count(*) AS seq, host FROM events GROUP BY host'}",
    ],
)
def test_gap_is_a_dead_letter_with_any_filters(
    spark: SparkSession, tmp_path: Path, filters: str
) -> None:
    text = (FLOW + DEAD).format(folder=tmp_path, filters=filters)
    lake, noop, dead = write_gaps(spark, text)
    assert (lake.events, lake.files, noop.events) == (0, (), 0)
    assert dead.dead_letters == 2
    ((staged, _),) = dead.files
    letters = [json.loads(line) for line in Path(staged).read_text().splitlines()]
    assert [letter["dead_place"] for letter in letters] == ["sources"] * 2
    assert [letter["dead_reason"] for letter in letters] == [
        "gap: the events of orders.0.MkTRfQ2n@kafka from 100 to 249: they were deleted before "
        "they were read",
        "gap: the events of orders.1.MkTRfQ2n@kafka from 0 to 0: they were deleted before "
        "they were read",
    ]
    if "sql" not in filters:
        assert [(letter["journal"], letter["seq"]) for letter in letters] == [
            ("orders.0.MkTRfQ2n@kafka", 100),
            ("orders.1.MkTRfQ2n@kafka", 0),
        ]


def test_unread_offsets_of_a_log_cut_below_an_ack_are_a_dead_letter(
    spark: SparkSession, tmp_path: Path
) -> None:
    name = RANGES[0].partition
    cut = Gap(Range(name, 60, 60), "the log was cut", cut=Range(name, 40, 60))
    *_, dead = write_gaps(spark, (FLOW + DEAD).format(folder=tmp_path, filters=""), (cut,))
    assert dead.dead_letters == 1
    ((staged, _),) = dead.files
    (letter,) = [json.loads(line) for line in Path(staged).read_text().splitlines()]
    assert letter["dead_reason"] == f"gap: the events of {name} from 40 to 59: the log was cut"
    assert (letter["journal"], letter["seq"]) == (name, 40)


def test_gap_of_a_flow_without_dead_letters_writes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    written = write_gaps(spark, FLOW.format(folder=tmp_path, filters=""))
    assert [(part.events, part.files) for part in written] == [(0, ()), (0, ())]
