"""Branches and dead letters of filters are in one commit, with a crash at any step of any owner.

The flow's own plan is run, split by split, in this process: nothing in it needs Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flumeng.agent.collector.batch import Batch, Work
from flumeng.agent.collector.claim import ClaimedTask
from flumeng.agent.collector.gaps import Gap
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.config import check_flow
from flumeng.connectors.api.ranged import DELETED, Range
from flumeng.connectors.api.sink import Row, Written
from flumeng.events.schema import READ_SCHEMA
from tests.testkit.collector import TASK
from tests.testkit.owner_steps import CrashError, Steps, crash
from tests.unit.agent.test_collector_crashes import JOURNALS, World

FLOW = """
flow: web
sources: [syslog: {listen: '127.0.0.1:0'}]
delivery: exactly-once
filters:
  - parse: {format: regex, pattern: 'n=(?P<n>[0-9])'}
    on_error: dead-letter
branches:
  - {name: few, when: "n = '0'", sinks: [files: {path: ROOT/few, format: json, compression: none}]}
  - name: rest
    otherwise: true
    sinks: [files: {path: ROOT/rest, format: json, compression: none}]
dead_letters: {files: {path: ROOT/dead, format: json, compression: none}}
"""
EVERYTHING = [(name, seq) for name, end in JOURNALS.items() for seq in range(end)]
EXPECTED = {
    "few": {event for event in EVERYTHING if event[1] % 3 == 0},
    "rest": {event for event in EVERYTHING if event[1] % 3 == 1},
    "dead": {event for event in EVERYTHING if event[1] % 3 == 2},
}
BODIES = (b"n=0", b"n=1", b"junk")


class Sum:
    value: Any = {}

    def add(self, term: Any) -> None:
        """Ignore the counts."""


class NoSession:
    """The attributes of a Spark session that an all-Arrow pipeline reads."""

    defaultParallelism = 2  # noqa: N815  # pyspark's
    master = "local[2]"

    @property
    def sparkContext(self) -> NoSession:  # noqa: N802  # pyspark's
        return self

    def accumulator(self, _zero: Any, _kind: Any = None) -> Sum:
        return Sum()


class Reader:
    schema = READ_SCHEMA
    modules: frozenset[str] = frozenset()

    def read(self, piece: Range, _address: str) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "body": BODIES[seq % 3],
                    "ts": datetime(2026, 3, 1, tzinfo=UTC),
                    "host": "h",
                    "attrs": [],
                    "journal": piece.partition,
                    "seq": seq,
                    "replayed": False,
                }
                for seq in range(piece.start, piece.end)
            ],
            READ_SCHEMA,
        )


class InProcess(SparkPipeline):
    def write_into(self, task: ClaimedTask, batch: Batch) -> None:
        addresses = dict.fromkeys(JOURNALS, "")
        work = Work(self, batch.ranges, addresses, batch.staging, 60.0, lambda _: None, splits=2)
        task.settle(batch, self.write(work))

    def write(self, work: Work) -> list[Written]:
        plan = self.plan(work)
        rows: list[list[Row]] = [[] for _ in self.spec.all_sinks]
        for run in plan.runs:
            stage = run.batch.all_arrow
            assert stage is not None
            for split in range(len(plan.splits)):
                asked = pa.RecordBatch.from_pydict({"id": [split]})
                found = [row for out in stage(iter([asked])) for row in out.to_pylist()]
                for sink, of in run.rows(found):
                    rows[sink] += of
        return self.written(rows)


class Branching(World):
    def pipeline(self) -> Any:
        spec = check_flow(FLOW.replace("ROOT", str(self.root)))
        session: Any = NoSession()
        return InProcess(session, spec, TASK, Reader())

    def found(self) -> dict[str, Counter[tuple[str, int]]]:
        """The events in each directory."""
        found: dict[str, Counter[tuple[str, int]]] = {name: Counter() for name in EXPECTED}
        for name, events in found.items():
            for file in (self.root / name).glob("part-*"):
                rows = map(json.loads, file.read_text().splitlines())
                events.update((row["journal"], row["seq"]) for row in rows)
        return found

    def check_visible(self) -> None:
        for name, events in self.found().items():
            assert max(events.values(), default=0) <= 1, f"{name} has an event twice"

    def check_done(self) -> None:
        assert self.found() == {name: Counter(events) for name, events in EXPECTED.items()}
        assert self.acks() == JOURNALS
        assert self.records() == []
        assert list(self.root.glob("*/_flumeng/*")) == []


def test_undisturbed_collector_delivers_each_event_once(tmp_path: Path) -> None:
    world = Branching(tmp_path)
    world.collect(1)
    world.check_done()
    (file, *_) = sorted((tmp_path / "dead").glob("part-*"))
    letter = json.loads(file.read_text().splitlines()[0])
    assert letter["dead_reason"] == "regex: no match"
    assert letter["dead_place"] == "filters[0].parse"
    assert letter["dead_revision"] == TASK.revision


@pytest.mark.long
def test_collector_may_die_at_every_third_step(tmp_path: Path) -> None:
    """Each single one is tried in ``test_collector_crashes``, with files that cost less."""
    for at in range(0, Branching(tmp_path / "counted").collect(1).count, 3):
        world = Branching(tmp_path / f"lake-{at}")
        with pytest.raises(CrashError):
            world.collect(1, Steps(at, crash))
        world.check_visible()
        world.collect(2)
        world.check_done()


def test_letter_of_a_gap_has_the_columns_behind_all_filters(tmp_path: Path) -> None:
    select = FLOW.replace("branches:", "  - select: [seq, n]\nbranches:")
    session: Any = NoSession()
    spec = check_flow(select.replace("ROOT", str(tmp_path)))
    pipeline = InProcess(session, spec, TASK, Reader())
    staging = {root: f"{root}/staged" for root in pipeline.roots}
    for directory in staging.values():
        Path(directory).mkdir(parents=True)
    ranges = [Range("web.n1.0.aaaaaaaa", 0, 7)]
    gaps = tuple(Gap(piece, DELETED) for piece in ranges)
    work = Work(pipeline, ranges, {}, staging, 60.0, lambda _: None, gaps=gaps)
    written = pipeline.write(work)
    ((source, _),) = written[-1].files
    letter = json.loads(Path(source).read_text())
    assert letter.keys() == {"seq", "dead_reason", "dead_place", "dead_revision", "dead_time"}
    assert (letter["dead_place"], [part.events for part in written]) == ("sources", [0, 0, 1])
