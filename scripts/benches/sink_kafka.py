"""The sink ``kafka`` beside a plain loop of confluent-kafka over the same messages.

Both write bodies of 200 bytes with the host as key into topics of the same real broker, with the
same settings (idempotent, all replicas, lz4), in one process and in turns. The loop takes the
values out of the same record batches, calls ``produce`` for each and ``poll`` once a record batch;
it looks at no failure, while the sink knows for each event whether it is in Kafka.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer

from flumeng.connectors.kafka.producer import producer_config
from flumeng.connectors.kafka.sink import Produce
from flumeng.connectors.kafka.sink_options import Kafka
from tests.testkit.servers.kafka import RealKafka

ROUNDS = 5
MOST_EVENTS = 400_000
"""Of a round: all rounds stay on the disk of the broker until the end."""
ROWS = 16_384
BODY_BYTES = 200


def measure(events: int) -> dict[str, float]:
    """``kafka_ratio`` of the sink's to the loop's rate, and both, as medians of ROUNDS."""
    with tempfile.TemporaryDirectory() as folder:
        server = RealKafka(Path(folder))
        server.start()
        try:
            return _measured(server, list(_batches(min(events, MOST_EVENTS))))
        finally:
            server.stop()


Write = Callable[[Kafka, list[pa.RecordBatch]], None]


class _Loop:
    """Keeps its producer from round to round, as the sink does."""

    _producer: Producer | None = None

    def __call__(self, options: Kafka, batches: list[pa.RecordBatch]) -> None:
        producer = self._producer = self._producer or Producer(producer_config(options, None))
        for batch in batches:
            values, keys = batch.column("body").to_pylist(), batch.column("host").to_pylist()
            for value, key in zip(values, keys, strict=True):
                while True:
                    try:
                        producer.produce(options.topic, value, key)
                        break
                    except BufferError:
                        producer.poll(0.01)
            producer.poll(0)
        assert producer.flush(60) == 0


def _measured(server: RealKafka, batches: list[pa.RecordBatch]) -> dict[str, float]:
    sides: dict[str, Write] = {"kafka_events_per_second": _sink, "kafka_loop_per_second": _Loop()}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for topic in sides:
        server.create_topic(topic)
    for _ in range(ROUNDS):
        for name, write in sides.items():
            options = Kafka(brokers=(server.address,), topic=name, value="body", key="host")
            begun = time.perf_counter()
            write(options, batches)
            seconds = time.perf_counter() - begun
            rates[name].append(sum(batch.num_rows for batch in batches) / seconds)
    found = {name: round(statistics.median(each)) for name, each in rates.items()}
    ratio = found["kafka_events_per_second"] / found["kafka_loop_per_second"]
    return {"kafka_ratio": round(ratio, 2), **found}


def _sink(options: Kafka, batches: list[pa.RecordBatch]) -> None:
    for _ in Produce(options, None)(iter(batches), _refuse):
        pass


def _refuse(_events: pa.RecordBatch, reasons: object) -> None:
    raise AssertionError(reasons)


def _batches(events: int) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pydict(
            {
                "body": [f"{number} ".encode().ljust(BODY_BYTES, b"x") for number in numbers],
                "host": [f"web{number % 50}" for number in numbers],
            }
        )
        for numbers in (range(start, min(start + ROWS, events)) for start in range(0, events, ROWS))
    ]
