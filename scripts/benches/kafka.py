"""How fast events come out of Kafka, beside plain clients of it in the same run.

All sides read the same topic of the same real broker, on this machine, when it has been read once:
the broker's files are in the page cache. Nobody's start counts: plain clients have read before, and
of the collector the second half of the events is timed. The sides take turns, and medians count.
Ours is a real collector (``kafka_collecting``), into ``noop`` and, exactly once, into Parquet
files, whose rows are counted.

``noop_ratio`` and ``parquet_ratio`` compare events per CPU second, user and system time: ours of
the driver, Spark's JVM and its Python workers, and the loop's of its one process, librdkafka's
threads included. ``reader_ratio`` compares so what the reader's compiled loops are for: flumeng's
reader alone, over a loop of confluent-kafka that makes the same columns of objects. What the broker
itself uses counts on no side.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import pyarrow.dataset as ds

from benches import kafka_connect, kafka_many, kafka_performance
from benches.kafka_collecting import collect
from benches.kafka_side import Reading, Side
from benches.kafka_topic import BODY_BYTES, COMPRESSION, PARTITIONS, TOPIC, fill
from tests.testkit.servers.kafka import RealKafka

PLAIN = [f"{at_once} {settings}" for at_once in (500, 10_000) for settings in ("own", "reader")]
"""Python looks for garbage once there are 700 new objects, so that 500 messages cost least."""
HALVES = (range(0, PARTITIONS // 2), range(PARTITIONS // 2, PARTITIONS))


def run(messages: int = 8_000_000, rounds: int = 3) -> dict[str, object]:
    """Events a second and per CPU second, ours, of plain clients and of Kafka Connect."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        server = RealKafka(Path(folder) / "kafka")
        server.start()
        try:
            fill(server, messages)
            return {
                "messages": messages,
                "body_bytes": BODY_BYTES,
                "compression": COMPRESSION,
                "partitions": PARTITIONS,
                **_compared(server, Path(folder), messages, rounds),
                "kafka_connect_events_per_second": kafka_connect.measure(
                    server.address, Path(folder) / "connect", messages
                ),
                "partitions_1000": kafka_many.measure(server, Path(folder) / "zookeeper"),
            }
        finally:
            server.stop()


def _compared(server: RealKafka, folder: Path, messages: int, rounds: int) -> dict[str, object]:
    one = Side("kafka_plain", server.address, TOPIC, *map(str, range(PARTITIONS)))
    reader = Side("kafka_reader", server.address, TOPIC, *map(str, range(PARTITIONS)))
    halves = [Side("kafka_plain", server.address, TOPIC, *map(str, half)) for half in HALVES]
    performance = kafka_performance.build()
    readings: defaultdict[str, list[Reading]] = defaultdict(list)
    try:
        best = max(PLAIN, key=lambda words: _rate(one.read(words)))
        _together(halves, best)  # their consumers are made
        reader.read()
        for number in range(rounds):
            readings["plain"].append(one.read(best))
            readings["objects"].append(one.read(f"{best} columns"))
            readings["reader"].append(reader.read())
            readings["plain_2"].append(_together(halves, best))
            noop = collect(server, folder / f"noop{number}", "at-least-once", "noop", messages)
            readings["noop"].append(noop)
            readings["parquet"].append(_parquet(server, folder / f"parquet{number}", messages))
            if performance is not None:
                found = kafka_performance.read(performance, server.address)
                readings["rdkafka"].append(found)
    finally:
        for side in (one, reader, *halves):
            side.close()
    rates = {name: _median(some, "seconds") for name, some in readings.items()}
    efficiencies = {name: _median(some, "cpu_seconds") for name, some in readings.items()}
    plain = efficiencies["plain"]
    return {
        "rounds": rounds,
        "events_per_second_noop": round(rates["noop"]),
        "events_per_second_parquet": round(rates["parquet"]),
        "plain_consumer_events_per_second": round(rates["plain"]),
        "plain_consumer_events_per_second_2": round(rates["plain_2"]),
        "plain_consumer_settings": best,
        "rdkafka_performance_events_per_second": (
            round(rates["rdkafka"]) if "rdkafka" in rates else None
        ),
        "events_per_cpu_second": {name: round(rate) for name, rate in efficiencies.items()},
        "noop_ratio": round(efficiencies["noop"] / plain, 2),
        "reader_ratio": round(efficiencies["reader"] / efficiencies["objects"], 2),
        "parquet_ratio": round(efficiencies["parquet"] / plain, 2),
    }


def _parquet(server: RealKafka, folder: Path, messages: int) -> Reading:
    lake = folder.with_suffix(".lake")
    sink = f"files: {{path: {lake}, format: parquet}}"
    found = collect(server, folder, "exactly-once", sink, messages)
    rows = ds.dataset(lake, format="parquet").count_rows()
    assert rows == messages, f"{rows} rows of {messages} messages"
    shutil.rmtree(lake)
    return found


def _together(sides: list[Side], words: str) -> Reading:
    """Of processes that read at the same time."""
    for side in sides:
        side.tell(words)
    found = [side.reading() for side in sides]
    return Reading(
        sum(each.events for each in found),
        max(each.seconds for each in found),
        sum(each.cpu_seconds for each in found),
    )


def _rate(reading: Reading) -> float:
    return reading.events / reading.seconds


def _median(readings: list[Reading], per: str) -> float:
    rates: list[float] = [each.events / getattr(each, per) for each in readings]
    return statistics.median(rates)
