"""What it costs to take events that several nodes have on disk before a sender is answered.

Three real ingest workers on one disk, whatever the number of replicas: one takes events by a real
source over loopback, and replicas of its journal are with the others, as ``replica_workers`` says.
So all that lies between a socket and an answer is in: framing, group commit, the frames' way to
other processes, their syncs, and the checkpoint. One replica is ``durability: disk``.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

from benches.replica_workers import FLOW, ReplicaWorkers
from benches.senders import Sender

NAMES = ("n1", "n2", "n3")
ACK_SECONDS = 0.25
LOOK_SECONDS = 0.01
ACK_CONNECTIONS = 20


def events_per_second(events: int, replicas: int) -> float:
    """Over one syslog connection, from the first byte sent until the last event may be read, which
    is when all replicas have it. Read ones are acked meanwhile."""
    with workers(replicas, "syslog") as group:
        sender = Sender("stream", group.first.task(FLOW)["listen"][0], events)
        sender.go()
        ended = _until_safe(group, events, sender)
        assert replicas in (1, group.in_sync), "a replica was lost on the way"
        return events / (ended - float(sender.result()["began"]))


def ack_ms_p99(events: int, replicas: int, rate: int) -> float:
    """Of POSTs of a hundred events, at that rate of events a second, from when one was due until
    its 200 was there."""
    with workers(replicas, "http") as group:
        sender = Sender(
            "paced_posts", group.first.task(FLOW)["listen"][0], events, ACK_CONNECTIONS, rate
        )
        sender.go()
        _until_safe(group, events, sender)
        return p99_ms(sender.result()["delays"])


def p99_ms(seconds: list[float]) -> float:
    return round(quantiles(seconds, n=100)[98] * 1000, 2)


def _until_safe(group: ReplicaWorkers, events: int, sender: Sender) -> float:
    """When all of them may be read from the flow's only journal; what may be is acked now and then,
    as if a collector followed."""
    acked_at = 0.0

    def holds() -> bool:
        nonlocal acked_at
        sender.check()
        ((name, position),) = group.first.client.positions().items()
        if (now := time.monotonic()) - acked_at > ACK_SECONDS:
            acked_at = now
            group.first.send(type="acks", acks={name: position.safe})
        assert position.safe <= events, f"{position.safe} events, {events} were sent"
        return position.safe == events

    return group.until(holds, "all events", look_seconds=LOOK_SECONDS)


@contextmanager
def workers(replicas: int, source: str) -> Iterator[ReplicaWorkers]:
    with place() as folder:
        group = ReplicaWorkers(folder, NAMES, NAMES[:replicas])
        durability = "replicated" if replicas > 1 else "disk"
        listen = f'{source}: {{listen: "127.0.0.1:0"}}'
        group.run(listen, durability=durability, min_in_sync=replicas)
        yield group
        group.stop()


@contextmanager
def place() -> Iterator[Path]:
    """Below /var/tmp, which is a disk also where /tmp is memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        yield Path(folder)
        os.sync()  # what is left to write must not slow down what is measured next
