"""Branches with a real Spark: in Arrow, in Spark SQL, and both at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flumeng.agent.collector.batch import Filtered, Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import check_flow
from flumeng.connectors.api.ranged import Range
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.journal.log.journal import Journal
from flumeng.journal.serving.server import JournalServer
from flumeng.platform import file_store
from tests.testkit.collector import TASK
from tests.testkit.counting_reader import CountingReader

JOURNAL = "web.n1.0.00000000"
BODIES = [b"level=%d" % (n % 8) if n % 5 else b"junk" for n in range(60)]
LEVELS = {n: n % 8 if n % 5 else None for n in range(60)}
HEAD = """
flow: web
sources: [syslog: {listen: '127.0.0.1:0'}]
delivery: exactly-once
filters:
  - parse: {format: regex, pattern: 'level=(?P<level>[0-9])'}
"""


@dataclass
class Outcome:
    """``found``: the numbers of the events in each directory. ``read``: how often each range was
    read in the batch."""

    found: dict[str, list[int]]
    read: list[str]
    filtered: Filtered
    shareable: bool


Run = Callable[[str], Outcome]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    """Runs two batches of all events: the first is thrown away, as by a crash before its commit."""
    journal = Journal.create(tmp_path / "journal", JOURNAL)
    count = len(BODIES)
    columns = [
        pa.array(BODIES, pa.binary()),
        pa.array([datetime(2026, 3, 1, tzinfo=UTC)] * count, pa.timestamp("us", "UTC")),
        pa.array(["192.0.2.1"] * count),
        pa.array([[("source", "tail")]] * count, pa.map_(pa.string(), pa.string())),
    ]
    journal.append(pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))
    journal.sync()
    server = JournalServer("127.0.0.1", journals=lambda: {JOURNAL: journal})
    notes, lake = tmp_path / "notes", tmp_path / "lake"

    def run(text: str) -> Outcome:
        spec = check_flow(HEAD + text.replace("LAKE", str(lake)))
        pipeline = SparkPipeline(spark, spec, TASK, CountingReader(str(notes)))
        for attempt in ("first", "second"):
            notes.write_text("")
            staging = {root: f"{root}/_flumeng/{attempt}" for root in pipeline.roots}
            for directory in staging.values():
                Path(directory).mkdir(parents=True)
            ranges, where = [Range(JOURNAL, 0, count)], {JOURNAL: server.address}
            work = Work(pipeline, ranges, where, staging, 60.0, lambda _: None, None, 3)
            (outcome,) = SparkEngine(spark).write([work], "job", "slot")
            assert isinstance(outcome, list), outcome
            made, written = pipeline.filtered(), outcome
        moves = [move for part in written for move in part.files]
        assert file_store.LOCAL.rename(moves) == []
        found = {
            str(place.relative_to(lake)): sorted(
                json.loads(line)["seq"]
                for file in place.glob("part-*")
                for line in file.read_text().splitlines()
            )
            for place in sorted(lake.iterdir())
        }
        return Outcome(found, notes.read_text().splitlines(), made, pipeline.shareable)

    yield run
    server.stop()
    journal.close()


def files(name: str) -> str:
    return f"sinks: [files: {{path: LAKE/{name}, format: json, compression: none}}]"


def levels(*wanted: int | None) -> list[int]:
    return [n for n, level in LEVELS.items() if level in wanted]


@pytest.mark.parametrize(
    ("bad", "middle", "in_arrow"),
    [
        ("level in ('0', '1')", "select: [seq, level]", True),
        pytest.param(
            "level in ('0', '1')",
            "sql: 'SELECT seq, level FROM events WHERE level <> 3'",
            False,
            marks=pytest.mark.long,
        ),
        ("cast(level as double) < 2", "select: [seq, level]", False),
        ("cast(level as double) < 2", "where: 'cast(level as double) <> 3'", False),
    ],
    ids=["arrow", "sql in a branch", "sql in a condition", "sql in both"],
)
def test_branches_share_the_filters_before_them(
    run: Run, bad: str, middle: str, in_arrow: bool
) -> None:
    outcome = run(f"""
{files("all")}
branches:
  - {{name: bad, when: "{bad}", {files("bad")}}}
  - name: middle
    when: "level in ('1', '2', '3')"
    filters: [{middle}]
    {files("middle")}
  - {{name: rest, otherwise: true, {files("rest")}}}
""")
    dropped = 0 if "select" in middle else len(levels(3))
    assert outcome.found == {
        "all": list(range(60)),
        "bad": levels(0, 1),
        "middle": levels(1, 2) if dropped else levels(1, 2, 3),
        "rest": levels(4, 5, 6, 7, None),
    }
    assert len(outcome.read) == len(set(outcome.read)) == 3
    taken = {"bad": len(levels(0, 1)), "middle": len(levels(1, 2, 3)), "rest": 0}
    taken["rest"] = 60 - len(levels(0, 1, 2, 3))
    assert outcome.filtered == Filtered(dropped, len(levels(None)), taken)
    assert outcome.shareable == in_arrow


def test_branches_split_again_behind_spark_sql(run: Run) -> None:
    outcome = run(f"""
branches:
  - name: known
    when: "level is not null"
    filters: [sql: 'SELECT seq, cast(level as int) AS level FROM events']
    branches:
      - {{name: low, when: "level < 4", {files("low")}}}
      - {{name: even, when: "level % 2 = 0", {files("even")}}}
  - {{name: first, when: "seq < 9", {files("first")}}}
""")
    assert outcome.found == {
        "even": levels(0, 2, 4, 6),
        "first": list(range(9)),
        "low": levels(0, 1, 2, 3),
    }
    assert len(outcome.read) == len(set(outcome.read)) == 3
    lost = [n for n in levels(None) if n >= 9] + levels(5, 7)
    assert outcome.filtered.dropped == len(lost)


@pytest.mark.parametrize("in_arrow", [True, False])
def test_unparsable_events_become_dead_letters_in_the_same_batch(run: Run, in_arrow: bool) -> None:
    behind = "select: [seq, level]" if in_arrow else "sql: 'SELECT seq, level FROM events'"
    dead = files("dead").removeprefix("sinks: [").removesuffix("]")
    outcome = run(f"""
    on_error: dead-letter
  - {behind}
{files("all")}
branches: [{{name: low, when: "level < '4'", {files("low")}}}]
dead_letters: {{{dead}}}
""")
    everything = levels(0, 1, 2, 3, 4, 5, 6, 7)
    assert outcome.found == {"all": everything, "dead": levels(None), "low": levels(0, 1, 2, 3)}
    assert len(outcome.read) == len(set(outcome.read)) == 3
    assert outcome.filtered == Filtered(0, len(levels(None)), {"low": len(levels(0, 1, 2, 3))})
    assert outcome.shareable == in_arrow
