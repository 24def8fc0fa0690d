"""Filters of ``tests/live/test_spark_tasks.py``, which run in Spark's executors.

Each call leaves a line in a file: the process, and the first event that it got. Slow ones use the
processor, so that they do not count as hung.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa

LONG_SECONDS = 45.0


def be_slow_in_one_process(events: pa.RecordBatch, folder: str) -> pa.RecordBatch:
    """Take ``LONG_SECONDS`` in the first process that calls this."""
    _note(Path(folder), events)
    try:
        (Path(folder) / "slow").touch(exist_ok=False)
    except FileExistsError:
        return events
    until = time.monotonic() + LONG_SECONDS
    while time.monotonic() < until:
        _work_a_little()
    return events


def wait_for_release(events: pa.RecordBatch, folder: str) -> pa.RecordBatch:
    """Wait until the file ``release`` exists, and leave a sign of life all the time."""
    _note(Path(folder), events)
    while not (Path(folder) / "release").exists():
        with (Path(folder) / "alive").open("a") as file:
            file.write(".")
        _work_a_little()
    return events


def hang_at_the_first_event(events: pa.RecordBatch, folder: str) -> pa.RecordBatch:
    """Sleep in the batch of the first event of all, without using the processor."""
    _note(Path(folder), events)
    if events.column("body")[0].as_py().startswith(b"0."):
        time.sleep(600)
    return events


def _work_a_little() -> None:
    began = time.thread_time()
    while time.thread_time() - began < 0.01:
        pass
    time.sleep(0.05)


def _note(folder: Path, events: pa.RecordBatch) -> None:
    with (folder / "calls").open("a") as file:
        file.write(f"{os.getpid()} {events.column('body')[0].as_py().decode()}\n")
