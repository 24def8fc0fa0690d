"""A flow that is late gets one more collect task: everything real, Kafka, ZooKeeper and Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from flumeng.control.queries import overview
from flumeng.control.zookeeper.kazoo_store import connect
from tests.live.one_host import Standalone
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.long

QUICK = Path(__file__).with_name("quick_scaling")
MESSAGES = 400_000
FLOW = """
flow: orders
sources: [{{kafka: {{brokers: ["{broker}"], topics: [orders], discovery_seconds: 1}}}}]
place: {{collect: {{tasks: {{min: 1, max: 2, lag_seconds: 5}}}}}}
batch: {{seconds: 0.2, events: 5}}
filters: [{{where: "seq % 2 = 0"}}]
sinks: [noop]
"""
"""Its small batches limit a task to some hundred events per second: far too few."""


def test_burst_beyond_one_task_gets_a_second_task(
    kafka: RealKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages were made within seconds of each other, and wait for much longer."""
    kafka.create_topic("orders")
    producer = Producer({"bootstrap.servers": kafka.address, "queue.buffering.max.messages": 10**6})
    for number in range(MESSAGES):
        producer.produce("orders", b"%d" % number, partition=number % 3)
    assert producer.flush(60) == 0
    host = Standalone(tmp_path)
    host.flow.write_text(FLOW.format(broker=kafka.address))
    with monkeypatch.context() as patch:
        others = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(QUICK), others))))
        host.start("--flow", str(host.flow))
    store = connect(host.hosts)
    try:

        def running() -> list[str]:
            tasks = overview.flow(store, "orders").tasks
            return [t.task for t in tasks if t.kind == "collect" and t.state == "running"]

        wait_for(lambda: running() == ["collect.0"], "the first task")
        wait_for(lambda: running() == ["collect.0", "collect.1"], "the second task")
        scaling = overview.flow(store, "orders").scaling
        assert scaling is not None
        changes = [(d.kind, d.before, d.tasks) for d in scaling.decisions if d.before != d.tasks]
        assert changes == [("out", 1, 2)]
        shown = host.command("flow", "show", "orders")
        assert "collect tasks, 1 to 2: 2\n" in shown
        (line,) = (line for line in shown.splitlines() if "\tout\t1 -> 2\t" in line)
        assert "waiting events is" in line
        assert "a task takes" in line
        wait_for(lambda: counted(host) == ["collect.0", "collect.1"], "what both count")
    finally:
        store.close()
        host.stop()


def counted(host: Standalone) -> list[str]:
    """The tasks that have counted processed and dropped events within the last minute."""
    found = json.loads(host.command("flow", "show", "orders", "--json"))["counts"]["rows"]
    some = [row["task"] for row in found if _minute(row, "processed") and _minute(row, "dropped")]
    return sorted(some)


def _minute(row: Any, name: str) -> int:
    return int(row["counts"][name]["1m"])
