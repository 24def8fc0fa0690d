"""A log that is rotated while its flow takes nothing, or while the worker is down."""

from __future__ import annotations

import base64
import gzip
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.testkit.ingest_worker import WorkerProcess, flow_text

FULL_BYTES = 20 << 20
LINE_BYTES = 1024


def rotate(log: Path, generations: int) -> None:
    """app.log becomes app.log.1, and so on."""
    for number in range(generations, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.rename(log.with_name(f"{log.name}.{number + 1}"))
    log.rename(log.with_name(f"{log.name}.1"))


def lines_that_fill(chance: random.Random) -> list[str]:
    """More than the journal may hold; they do not compress."""
    return [
        base64.b64encode(chance.randbytes(LINE_BYTES * 3 // 4)).decode()
        for _ in range(FULL_BYTES // LINE_BYTES)
    ]


@pytest.mark.parametrize("end", [WorkerProcess.kill, WorkerProcess.stop])
def test_generations_of_a_held_flow_are_read_by_the_next_worker(
    worker: WorkerProcess, tmp_path: Path, end: Callable[[WorkerProcess], None]
) -> None:
    """Nothing can be appended meanwhile, and two of them have no name that the globs mean."""
    log = tmp_path / "app.log"
    flow = flow_text("f", f'tail: {{paths: ["{tmp_path}/*.log"], poll_seconds: 0.05}}')
    flow += "journal: {max_bytes: 16 MiB}\n"
    expected = lines_that_fill(random.Random(1))
    log.write_text("".join(f"{line}\n" for line in expected))
    worker.run(flow)
    noted = tmp_path / "node" / "sources" / "0" / "noted" / "f.json"

    def is_noted(log: Path) -> bool:
        return str(log.stat().st_ino) in noted.read_text()

    worker.eventually(lambda: worker.counters("f")["held_by"].startswith("journal full"))
    for generation in range(1, 4):
        rotate(log, generation)
        lines = [f"generation {generation} line {number}" for number in range(100)]
        log.write_text("".join(f"{line}\n" for line in lines))
        expected += lines
        worker.eventually(partial(is_noted, log))
    end(worker)
    worker.start()
    worker.run(flow)
    taken: list[str] = []
    read: dict[str, int] = {}

    def is_all_read() -> bool:
        for journal, position in worker.journals("f").items():
            begin = read.get(journal, 0)
            for batch in worker.client.read(journal, begin, position.safe):
                taken.extend(body.decode() for body in batch["body"].to_pylist())
            read[journal] = position.safe
            worker.send(type="acks", acks={journal: position.safe})
        return len(taken) >= len(expected)

    worker.eventually(is_all_read)
    assert sorted(taken) == sorted(expected)
    assert worker.counters("f")["missed"] == 0


def test_lost_generation_is_counted(worker: WorkerProcess, tmp_path: Path) -> None:
    """A generation that was compressed while the worker was down, before it ever saw it."""
    log = tmp_path / "app.log"
    flow = flow_text("f", f'tail: {{paths: ["{tmp_path}/*.log"], poll_seconds: 0.05}}')
    log.write_text("0\n")
    worker.run(flow)
    worker.wait_for_events("f", 1)
    worker.stop()
    rotate(log, 1)
    time.sleep(0.02)
    log.with_name("app.log.0.gz").write_bytes(gzip.compress(b"1\n"))
    log.write_text("2\n")
    worker.start()
    worker.run(flow)
    worker.wait_for_events("f", 2)
    worker.eventually(lambda: worker.counters("f")["missed"] == 1)
    assert worker.counters("f")["lost_files"] == 1
    assert sorted(worker.bodies("f")) == ["0", "2"]


def test_generations_created_while_the_worker_was_down_are_read(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    log = tmp_path / "app.log"
    flow = flow_text("f", f'tail: {{paths: ["{tmp_path}/*.log"], poll_seconds: 0.05}}')
    log.write_text("0\n")
    worker.run(flow)
    worker.wait_for_events("f", 1)
    worker.stop()
    for generation in range(1, 4):
        rotate(log, generation)
        time.sleep(0.02)  # more than a file system's clock needs for the next time
        log.write_text(f"{generation}\n")
    worker.start()
    worker.run(flow)
    worker.wait_for_events("f", 4)
    assert sorted(worker.bodies("f")) == ["0", "1", "2", "3"]
