"""Lines of objects read by a collector's pipeline, beside ``spark.read.text`` of the same objects
in the same session.

Both read all lines and write them nowhere, in turns; each has run once before, and its best run
counts. Listing counts for neither: the pipeline has items of a queue, and ``spark.read.text`` has
listed its files when it is timed.
"""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from benches.senders import make_lines
from flumeng.agent.collector import jvm, spark
from flumeng.agent.collector.batch import Work
from flumeng.agent.collector.engine import SparkEngine
from flumeng.agent.collector.pipeline import SparkPipeline
from flumeng.agent.collector.ranges import Scale
from flumeng.config import parse_flow
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.objects.formats import cuttable
from flumeng.connectors.objects.lanes import LaneContents
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.objects.reader import ObjectsReader
from flumeng.control.snapshot.items import Item

FLOW = "{{flow: bench, sources: [objects: {{paths: ['{}/*']}}], sinks: [noop]}}"
LANES = 8
TURNS = 3
DISTINCT_LINES = 100_000
LIMIT_SECONDS = 600.0


def measure(place: Path, gzipped: tuple[int, int], small: tuple[int, int]) -> dict[str, object]:
    """``gzipped``: how many objects, and how many lines each has; ``small``: and their bytes."""
    with_gzip, lines = _gzipped(place / "gzip", *gzipped)
    of_bytes, more_lines = _small(place / "small", *small)
    session = spark.start(place / "spark")
    try:
        return {
            "gzip_ratio": _compared(session, with_gzip, lines),
            "small_files_ratio": _compared(session, of_bytes, more_lines),
        }
    finally:
        session.stop()
        jvm.end()  # then it is done with its directory


def _gzipped(directory: Path, objects: int, lines: int) -> tuple[Path, int]:
    """A directory with such objects, and how many lines there are."""
    directory.mkdir()
    text = b"".join(make_lines(DISTINCT_LINES))
    share = text * (lines // DISTINCT_LINES) + b"".join(make_lines(lines % DISTINCT_LINES))
    packed = gzip.compress(share, 6)
    for number in range(objects):
        (directory / f"{number:06}.log.gz").write_bytes(packed)
    return directory, objects * lines


def _small(directory: Path, objects: int, size: int) -> tuple[Path, int]:
    directory.mkdir()
    data = b"".join(make_lines(1 + size // 100))[:size]
    data = data[: data.rindex(b"\n") + 1]
    for number in range(objects):
        (directory / f"{number:06}.log").write_bytes(data)
    return directory, objects * data.count(b"\n")


def _compared(session: SparkSession, directory: Path, events: int) -> float:
    rows = session.read.text(str(directory))
    ours = _pipeline(session, directory, events)
    plain: Callable[[], object] = partial(rows.write.format("noop").mode("overwrite").save)
    assert rows.count() == events
    best = {"ours": 0.0, "plain": 0.0}
    for turn in range(TURNS + 1):
        for name, read in (("ours", ours), ("plain", plain)):
            began = time.monotonic()
            read()
            rate = events / (time.monotonic() - began)
            best[name] = max(best[name], rate if turn else 0.0)
    said = ", ".join(f"{name} {rate:,.0f}" for name, rate in best.items())
    print(f"{directory.name}: events a second: {said}", file=sys.stderr)
    return round(best["ours"] / best["plain"], 2)


def _pipeline(session: SparkSession, directory: Path, events: int) -> Callable[[], object]:
    spec = parse_flow(FLOW.format(directory))
    (part,) = spec.partitioned
    assert isinstance(part.options, ObjectsSource)
    lanes = _lanes(directory)
    contents = {lane: LaneContents(of, cuttable(part.options)) for lane, of in lanes.items()}
    ranges = [Range(lane, of[0].start, of[-1].end) for lane, of in lanes.items()]
    addresses = {
        piece.partition: contents[piece.partition].address(piece.start, piece.end)
        for piece in ranges
    }
    reader = ObjectsReader.of(part.options)
    engine = SparkEngine(session)
    pipeline = SparkPipeline(session, spec, TaskRevision("bench", "collect.0", 1), reader)

    def read() -> None:
        work = Work(
            pipeline, ranges, addresses, {}, LIMIT_SECONDS, lambda _: None, scale=Scale(contents)
        )
        (outcome,) = engine.write([work], "bench", "bench")
        if isinstance(outcome, Exception):
            raise outcome
        assert pipeline.filtered().read == events, f"{pipeline.filtered().read} of {events}"

    return read


def _lanes(directory: Path) -> dict[str, list[Item]]:
    """The files as items of lanes."""
    lanes: dict[str, list[Item]] = {f"lane.{lane}.bench@objects": [] for lane in range(LANES)}
    for place, path in enumerate(sorted(directory.iterdir())):
        lane = lanes[f"lane.{place % LANES}.bench@objects"]
        status = path.stat()
        lane.append(Item(len(lane), str(path), status.st_size, status.st_mtime_ns // 1000))
    return {name: lane for name, lane in lanes.items() if lane}
