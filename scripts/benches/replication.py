"""Journals that several nodes keep: how fast events come in and are answered, how fast a replica
catches up, and how long a journal is without a primary; beside it Kafka with three brokers.

``replication_rates``, ``replication_catch_up``, ``replication_takeover`` and ``replication_kafka``
say what is measured.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from benches import replication_catch_up, replication_kafka, replication_rates, replication_takeover
from benches.senders import LINE_BYTES

REPLICAS = (1, 2, 3)


def run(
    *,
    events: int = 2_000_000,
    rounds: int = 3,
    ack_seconds: int = 15,
    ack_rate: int = 20_000,
    takeovers: int = 7,
    catch_up_mb: int = 1000,
    kafka_seconds: int = 15,
) -> dict[str, object]:
    """Rates are events a second, sizes decimal megabytes; medians of ``rounds``, in which one, two
    and three replicas take turns. Kafka comes last, so that its brokers do not run beside the rest;
    with 0 ``kafka_seconds`` it is left out. In half a minute: --events 200000 --rounds 1
    --ack-seconds 1 --takeovers 1 --catch-up-mb 30 --kafka-seconds 0.
    """
    acks = ack_seconds * ack_rate
    ack_ms = {
        replicas: replication_rates.ack_ms_p99(acks, replicas, ack_rate)
        for replicas in REPLICAS[:2]
    }
    rates: defaultdict[int, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for replicas in REPLICAS:
            rates[replicas].append(replication_rates.events_per_second(events, replicas))
    rate = {replicas: median(each) for replicas, each in rates.items()}
    found: dict[str, object] = {
        "events": events,
        "line_bytes": LINE_BYTES,
        "rounds": rounds,
        **{f"events_per_second_{replicas}": round(each) for replicas, each in rate.items()},
        "replication_ratio_2": _ratio(rates, 2),
        "replication_ratio_3": _ratio(rates, 3),
        "ack_events_per_second": ack_rate,
        **{f"ack_ms_p99_{replicas}": ms for replicas, ms in ack_ms.items()},
        **replication_catch_up.mb_per_second(catch_up_mb, rounds),
        "ack_ms_p99_2_beside_catch_up": replication_catch_up.ack_ms_p99(ack_seconds, ack_rate),
        **replication_takeover.measure(takeovers),
    }
    if not kafka_seconds:
        return found
    kafka = replication_kafka.measure(events, rounds, kafka_seconds, acks=acks, rate=ack_rate)
    ratio = rate[2] / (kafka["kafka_events_per_second_2"] or 1)
    return {**found, **kafka, "kafka_ratio_2": round(ratio, 2)}


def _ratio(rates: dict[int, list[float]], replicas: int) -> float:
    """To one replica, each time in the same round."""
    return round(median(n / one for n, one in zip(rates[replicas], rates[1], strict=True)), 3)
