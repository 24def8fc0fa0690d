"""Every command of the quick start in docs/kafka.md, as it is written, on a real Kafka."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Producer

from tests.live.one_host import FLUMENG
from tests.testkit.files import files_below
from tests.testkit.servers.kafka import RealKafka
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"
MESSAGES = 1_000
ROWS = {"flow handoff": MESSAGES, "flow resume orders": 2 * MESSAGES, "flow delete": 3 * MESSAGES}
"""The number of rows in the lake after a command with this beginning: first run, then from nine
o'clock on, then the backfill."""


def test_quick_start_of_the_docs_runs(kafka: RealKafka, tmp_path: Path) -> None:
    kafka.create_topic("orders")
    producer = Producer({"bootstrap.servers": kafka.address})
    for number in range(MESSAGES):
        producer.produce("orders", b"order %d" % number, key=b"%d" % number)
    assert producer.flush(60) == 0
    text, commands = quick_start(kafka, tmp_path)
    (tmp_path / "orders.yaml").write_text(text)
    standalone, *others = commands
    with subprocess.Popen(
        words(standalone), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = re.match(r"ready zk=(\S+) ", process.stdout.readline())
            assert ready
            for command in others:
                done = subprocess.run(
                    words(command),
                    cwd=tmp_path,
                    env=os.environ | {"FLUMENG_ZK": ready[1]},
                    input="y\n",
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
                for beginning, rows in ROWS.items():
                    if command.startswith(f"flumeng {beginning}"):
                        expect_rows(tmp_path / "lake", rows, command)
        finally:
            process.send_signal(signal.SIGTERM)


def quick_start(kafka: RealKafka, folder: Path) -> tuple[str, list[str]]:
    """The flow and the commands, with the broker, directories and the hour of this test."""
    section = PAGE.read_text().partition("## Quick start")[2].partition("\n## ")[0]
    nine = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    section = section.replace("127.0.0.1:9092", kafka.address)
    section = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", nine, section)
    section = section.replace("/tmp/lake", f"{folder}/lake").replace("/tmp/flumeng", f"{folder}/f")
    flow = section.partition("```yaml\n")[2].partition("```")[0]
    return flow, re.findall(r"^    (flumeng .*?) *(?:#.*)?$", section, re.M)


def words(command: str) -> list[str]:
    return [str(FLUMENG), *shlex.split(command)[1:]]


def expect_rows(lake: Path, rows: int, command: str) -> None:
    def count() -> int:
        files = [str(f) for f in files_below(lake, "*.parquet") if f.parent.name.startswith("dt=")]
        return int(ds.dataset(files).count_rows()) if files else 0

    wait_for(lambda: count() >= rows, f"behind `{command}` the lake has not {rows} rows")
    assert count() == rows
