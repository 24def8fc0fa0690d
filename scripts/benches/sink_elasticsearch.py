"""The sink ``elasticsearch`` beside ``elasticsearch.helpers.parallel_bulk`` of the same events.

Against a server in another process that counts events and does nothing else with them, the stage
of the sink alone shows what requests cost: on two cores, with events of 200-byte bodies, the median
of ROUNDS. Against a real node both sides index the same record batches under the same ids into an
index of each round's own, with the same mapping, in turns, after one round of each that is not
counted. ``parallel_bulk`` has its own four threads and chunks of 500; what it is given are the
dicts that a client has to make of events.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from elasticsearch import Elasticsearch as Client
from elasticsearch.helpers import parallel_bulk

from flumeng.connectors.api.sink import TaskRevision
from flumeng.connectors.elasticsearch import template
from flumeng.connectors.elasticsearch.bulk import IndexEvents
from flumeng.connectors.elasticsearch.options import Elasticsearch
from flumeng.connectors.elasticsearch.sink import ElasticsearchSink
from flumeng.events import identity
from tests.testkit.servers.bulk_server import BulkServer
from tests.testkit.servers.elasticsearch import RealElasticsearch

ROUNDS = 5
ROWS = 10_000
BODY_BYTES = 200
MOST_COUNTED = 1_000_000
MOST_INDEXED = 60_000
JOURNAL = "bench.n1.0.00000000"
FIRST_TIME = 1_795_000_000_000_000

Write = Callable[[str, str, list[pa.RecordBatch]], None]


def measure(events: int) -> dict[str, float]:
    """``es_bulk_events_per_second`` and ``es_cpu_seconds_per_million`` of the client alone, then
    ``es_real_ratio`` of the rates and ``es_client_cpu_ratio`` of the client's CPU seconds, ours to
    theirs."""
    return _counted(min(events, MOST_COUNTED)) | _indexed(min(events, MOST_INDEXED))


def _counted(events: int) -> dict[str, float]:
    batches = list(_batches(events))
    server = BulkServer()
    try:
        runs = [_timed(_sink, server.address, "logs", batches) for _ in range(ROUNDS + 1)][1:]
        assert server.taken()["events"] == (ROUNDS + 1) * events
    finally:
        server.stop()
    rate = statistics.median(events / seconds for seconds, _ in runs)
    cpu = statistics.median(cpu / events * 1e6 for _, cpu in runs)
    return {"es_bulk_events_per_second": round(rate), "es_cpu_seconds_per_million": round(cpu, 2)}


def _indexed(events: int) -> dict[str, float]:
    batches = list(_batches(events))
    sides: dict[str, Write] = {"sink": _sink, "helpers": _parallel_bulk}
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        server = RealElasticsearch(Path(folder))
        server.start()
        try:
            with server.client() as client:
                for number in range(ROUNDS + 1):
                    for name, write in sides.items():
                        index = f"{name}-{number}"
                        client.indices.create(
                            index=index, mappings={"properties": template.PROPERTIES}
                        )
                        runs[name].append(_timed(write, server.address, index, batches))
                        client.indices.refresh(index=index)
                        assert client.count(index=index)["count"] == events
                        client.indices.delete(index=index)
        finally:
            server.stop()
    rates = {name: statistics.median(events / s for s, _ in of[1:]) for name, of in runs.items()}
    cpu = {name: statistics.median(used for _, used in of[1:]) for name, of in runs.items()}
    return {
        "es_real_events_per_second": round(rates["sink"]),
        "es_helpers_events_per_second": round(rates["helpers"]),
        "es_real_ratio": round(rates["sink"] / rates["helpers"], 2),
        "es_client_cpu_ratio": round(cpu["sink"] / cpu["helpers"], 3),
    }


def _timed(
    write: Write, address: str, index: str, batches: list[pa.RecordBatch]
) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process."""
    used, begun = _cpu_seconds(), time.perf_counter()
    write(address, index, batches)
    return time.perf_counter() - begun, _cpu_seconds() - used


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _sink(address: str, index: str, batches: list[pa.RecordBatch]) -> None:
    sink: Any = ElasticsearchSink(Elasticsearch((address,), index), TaskRevision("bench", "t", 1))
    for _ in IndexEvents(sink._connection, sink._bodies)(iter(batches), _refuse):
        pass


def _refuse(_events: pa.RecordBatch, reasons: Sequence[str]) -> None:
    raise AssertionError(reasons)


def _parallel_bulk(address: str, index: str, batches: list[pa.RecordBatch]) -> None:
    with Client(address, request_timeout=60) as client:
        deque(parallel_bulk(client, _actions(index, batches), raise_on_error=True), maxlen=0)


def _actions(index: str, batches: list[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for row in identity.strip(batch).to_pylist():
            row["body"] = row["body"].decode("utf-8", "replace")
            row["ts"] = row["ts"].isoformat()
            row["attrs"] = dict(row["attrs"])
            name = f"{row['journal']}-{row['seq']}"
            yield {"_op_type": "index", "_index": index, "_id": name, "_source": row}


def _batches(events: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, events, ROWS):
        numbers = range(first, min(first + ROWS, events))
        count = len(numbers)
        times = pa.array([FIRST_TIME + 997 * n for n in numbers], pa.timestamp("us", "UTC"))
        attrs = [[("source", "syslog"), ("peer", f"192.0.2.{n % 8}")] for n in numbers]
        columns = {
            "body": pa.array([_body(n) for n in numbers], pa.binary()),
            "ts": times,
            "host": pa.array([f"192.0.2.{n % 8}" for n in numbers]),
            "attrs": pa.array(attrs, pa.map_(pa.string(), pa.string())),
            "journal": pa.array([JOURNAL] * count),
            "seq": pa.array(numbers, pa.int64()),
            "replayed": pa.array([False] * count),
        }
        yield identity.identify(pa.RecordBatch.from_pydict(columns), 0)


def _body(number: int) -> bytes:
    line = f'<13>1 2026-11-18T11:06:40Z web{number % 50} app {number} - - "GET /{number % 977}" 200'
    return line.encode().ljust(BODY_BYTES, b".")
