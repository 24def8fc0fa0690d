"""What executors do for a job: many units, each a split of a batch on its way into a sink.

A unit that fails says so in its result and fails nothing else, so Spark never repeats what others
have done. In a job of several batches a unit that hangs is left behind when the others are done and
it is over its limit; until then others take its place.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from flumeng.filters.lazy_batch import Stage

AT_ONCE = 4
"""Units of one Spark task. Most of their time goes into waiting for a server and a disk."""
SLOW_SECONDS = 1.0
"""A unit that takes longer does not keep the others from beginning."""
LIMIT_SECONDS = 10.0
MOST_SLOW = 64
ROWS, ERROR, HUNG, LEFT = "rows", "error", "hung", "left"

Result = tuple[int, str, bytes]
"""Number of the unit, how it ended, and: its rows as an Arrow stream; or kind and text of the
error. LEFT: it was not begun, since too many others hang."""


@dataclass(frozen=True)
class Unit:
    """``stage`` is pickled on its own, so that each task reads only the units that it runs."""

    number: int
    split: int
    stage: bytes

    def run(self) -> Result:
        try:
            stage: Stage = pickle.loads(self.stage)  # it comes from our own driver
            rows = list(stage(iter([_number(self.split)])))
            return self.number, ROWS, _stream(rows)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            return self.number, ERROR, f"{type(error).__name__}\n{lines[0]}".encode()


@dataclass(frozen=True)
class Units:
    """``shares``: the units of each Spark task. ``together``: they are of several batches."""

    shares: tuple[tuple[Unit, ...], ...]
    together: bool

    def __call__(self, numbers: Iterable[int]) -> Iterator[Result]:
        for number in numbers:
            units = self.shares[number]
            yield from run_together(units) if self.together else (unit.run() for unit in units)


def run_together(
    units: tuple[Unit, ...],
    slow_seconds: float = SLOW_SECONDS,
    limit_seconds: float = LIMIT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> list[Result]:
    """The results of all ``units``, as soon as each has ended or is over its limit."""
    room = _Room(units, clock)
    with room.news:
        while True:
            now = clock()
            ages = [now - began for began in room.running.values()]
            slow = sum(age >= slow_seconds for age in ages)
            while room.waiting and len(room.running) - slow < AT_ONCE and slow < MOST_SLOW:
                room.begin()
            hung = all(age >= limit_seconds for age in ages)
            if not room.waiting and not room.running:
                return room.results
            if hung and len(ages) == len(room.running) and ages:
                return [*room.results, *room.given_up()]
            room.news.wait(min(slow_seconds, limit_seconds) / 4)


class _Room:
    """The units of one call. All but ``news`` is used with ``news`` held."""

    def __init__(self, units: tuple[Unit, ...], clock: Callable[[], float]) -> None:
        self.news = threading.Condition()
        self.waiting = deque(units)
        self.running: dict[int, float] = {}
        self.results: list[Result] = []
        self._clock = clock

    def begin(self) -> None:
        unit = self.waiting.popleft()
        self.running[unit.number] = self._clock()
        threading.Thread(target=self._run, args=(unit,), daemon=True).start()

    def given_up(self) -> list[Result]:
        hung = [(number, HUNG, b"") for number in self.running]
        return [*hung, *((unit.number, LEFT, b"") for unit in self.waiting)]

    def _run(self, unit: Unit) -> None:
        result = unit.run()
        with self.news:
            del self.running[unit.number]
            self.results.append(result)
            self.news.notify()


def read_rows(stream: bytes) -> list[dict[str, object]]:
    """The rows in a result."""
    if not stream:
        return []
    with pa.ipc.open_stream(stream) as reader:
        rows: list[dict[str, object]] = reader.read_all().to_pylist()
        return rows


def _number(split: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([split], pa.int64())], ["id"])


def _stream(batches: list[pa.RecordBatch]) -> bytes:
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
