"""What ``replication_rates`` measures, of a real Kafka with three brokers (``kafka_cluster``).

The same lines, produced in this process by librdkafka with the settings of the sink ``kafka``:
idempotent, ``acks=all``, lz4. It puts messages together as it sees fit, up to a megabyte a request.
The brokers have been warm for a while before anything counts.
"""

from __future__ import annotations

import time
from itertools import cycle, islice
from statistics import median
from typing import Any

from confluent_kafka import Producer

from benches.kafka_cluster import TOPIC, running
from benches.replication_rates import p99_ms, place
from benches.senders import LINES_AT_ONCE, PACED_LINES, make_blocks
from flumeng.connectors.kafka.producer import producer_config
from flumeng.connectors.kafka.sink_options import Kafka

WARM_SECONDS = 3.0
FLUSH_SECONDS = 60.0


def measure(
    events: int, rounds: int, seconds: float, *, acks: int, rate: int
) -> dict[str, float | None]:
    """A round ends after ``seconds``, however many events it has got rid of by then. ``acks``
    events are sent at ``rate``; the delay is null when the brokers cannot take that."""
    with place() as folder, running(folder) as brokers:
        options = Kafka(brokers=tuple(brokers.split(",")), topic=TOPIC)
        producer = Producer(
            producer_config(options, None) | {"delivery.report.only.error": False, "acks": "all"}
        )
        _flat_out(producer, events, min(WARM_SECONDS, seconds))
        paced = _paced(producer, acks, rate)
        rates = [_flat_out(producer, events, seconds) for _ in range(rounds)]
    return {"kafka_events_per_second_2": round(median(rates)), "kafka_ack_ms_p99_2": paced}


def _flat_out(producer: Any, events: int, seconds: float) -> float:
    """Events a second, from the first one handed over until all are answered."""
    blocks = [block.splitlines() for block in make_blocks()]
    began = time.monotonic()
    sent = 0
    for block in islice(cycle(blocks), events // LINES_AT_ONCE):
        if time.monotonic() - began > seconds:
            break
        for line in block:
            _produce(producer, line, None)
        producer.poll(0)
        sent += len(block)
    assert producer.flush(FLUSH_SECONDS) == 0, "Kafka does not answer"
    return sent / (time.monotonic() - began)


def _paced(producer: Any, events: int, rate: int) -> float | None:
    """Milliseconds from when a block was due until its last event was answered, 99 %."""
    blocks = [block.splitlines() for block in make_blocks(PACED_LINES)]
    delays: list[float] = []
    number = events // PACED_LINES
    began = time.monotonic()
    for index, block in enumerate(islice(cycle(blocks), number)):
        due = began + index * PACED_LINES / rate
        while (left := due - time.monotonic()) > 0:
            producer.poll(left)

        def answered(error: object, _: object, due: float = due) -> None:
            assert error is None, error
            delays.append(time.monotonic() - due)

        for line in block[:-1]:
            _produce(producer, line, None)
        _produce(producer, block[-1], answered)
    took = time.monotonic() - began
    assert producer.flush(FLUSH_SECONDS) == 0, "Kafka does not answer"
    assert len(delays) == number, f"{len(delays)} of {number} answers"
    return p99_ms(delays) if took < 1.1 * events / rate else None


def _produce(producer: Any, line: bytes, answered: Any) -> None:
    while True:
        try:
            producer.produce(TOPIC, line, on_delivery=answered)
            return
        except BufferError:
            producer.poll(0.01)
