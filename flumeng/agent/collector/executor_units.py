"""Units: the pieces of a Spark job that an executor runs, each one split of a batch for one run.

A failed unit reports the error in its result, so Spark never repeats the other units. In a job of
several batches the running units are abandoned as hung when none has begun or ended for
``LIMIT_SECONDS``. While the process uses its processor, they count as slow, not hung.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

import pyarrow as pa

from flumeng.connectors.ranged import reports
from flumeng.events.lazy_batch import FAILED_SINK, Stage
from flumeng.platform.errors import FlumengError
from flumeng.platform.garbage_collection import current_frames
from flumeng.platform.user_functions import FunctionError

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Units that a Spark task runs at once. They mostly wait for a server and a disk."""
SLOW_SECONDS = 1.0
"""In an idle process, units that take longer (MOST_SLOW at most) do not count against AT_ONCE."""
LIMIT_SECONDS = 10.0
"""Units count as hung after this time in which none began or ended and the process was idle."""
MOST_SLOW = 16
_STEPS = {
    "flumeng.connectors.ranged.reading": "reading",
    "flumeng.filters": "filtering",
    "flumeng.agent.collector.batch_times": "writing",
}
"""Step of each module that calls an input, a filter or a sink. Connectors are not listed."""
WORKING = 0.05
ROWS, ERROR, HUNG, LEFT = "rows", "error", "hung", "left"

RESULTS = pa.schema(
    [
        pa.field("unit", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("content", pa.binary()),
        pa.field("reports", pa.binary()),
    ]
)
SHARES = pa.schema([pa.field("share", pa.binary())])


class Result(NamedTuple):
    """Number of the unit, kind of result, and content. ROWS: the rows as an Arrow stream, with the
    pickled ``Reports``. ERROR: the error's type and text, and the sink's number if several share
    the unit. HUNG: the step in which it hangs, if known. LEFT: the unit was not begun, since too
    many others hang."""

    unit: int
    kind: str
    content: bytes
    reports: bytes = b""


@dataclass(frozen=True)
class Unit:
    """One split and the ``stage`` to run on it, pickled so that only its task unpickles it."""

    number: int
    split: int
    stage: bytes

    def run(self) -> Result:
        try:
            stage: Stage = pickle.loads(self.stage)  # it comes from our own driver
            with reports.collecting() as made:
                rows = list(stage(iter([_number(self.split)])))
            return Result(self.number, ROWS, _stream(rows), pickle.dumps(made))
        except Exception as error:
            _log_trace(error)
            lines = str(error).strip().splitlines() or [""]
            sink = getattr(error, FAILED_SINK, "")
            report = f"{type(error).__name__}\n{lines[0]}\n{sink}"
            return Result(self.number, ERROR, report.encode())


@dataclass(frozen=True)
class Share:
    """The units of one Spark task. ``together``: they are of several batches."""

    units: tuple[Unit, ...]
    together: bool

    def run(self) -> Iterable[Result]:
        return run_together(self.units) if self.together else (unit.run() for unit in self.units)


def run_shares(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A stage from SHARES, pickled each, to RESULTS."""
    for batch in batches:
        for pickled in batch["share"].to_pylist():
            share: Share | Imports = pickle.loads(pickled)  # it comes from our own driver
            for result in share.run():
                yield pa.RecordBatch.from_pylist([result._asdict()], RESULTS)


def run_together(
    units: tuple[Unit, ...],
    slow_seconds: float = SLOW_SECONDS,
    limit_seconds: float = LIMIT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    cpu_clock: Callable[[], float] = time.process_time,
) -> list[Result]:
    """Run ``units`` in threads; return their results once all have ended or the rest hang."""
    running = _Running(units, clock)
    effort = _Effort(min(slow_seconds, limit_seconds) / 4, clock, cpu_clock)
    with running.news:
        while True:
            working = effort.is_working()
            now = clock()
            slow = sum(now - began >= slow_seconds for began in running.began.values())
            at_once = AT_ONCE if working else AT_ONCE + min(slow, MOST_SLOW)
            while running.waiting and len(running.began) < at_once:
                running.begin()
            if not running.began:
                return running.results
            still_since = max(running.ended_at, effort.seen_at, *running.began.values())
            if now - still_since >= limit_seconds:
                return [*running.results, *running.given_up()]
            running.news.wait(effort.window_seconds)


class _Running:
    """The units of one call. ``began``: start times of running units. ``news`` guards all state."""

    def __init__(self, units: tuple[Unit, ...], clock: Callable[[], float]) -> None:
        self.news = threading.Condition()
        self.waiting = deque(units)
        self.began: dict[int, float] = {}
        self.threads: dict[int, int] = {}
        self.ended_at = clock()
        self.results: list[Result] = []
        self._clock = clock

    def begin(self) -> None:
        unit = self.waiting.popleft()
        self.began[unit.number] = self._clock()
        thread = threading.Thread(target=self._run, args=(unit,), daemon=True)
        thread.start()
        self.threads[unit.number] = thread.ident or 0

    def given_up(self) -> list[Result]:
        frames = current_frames()
        hung = [
            Result(number, HUNG, step_of(frames.get(self.threads[number])).encode())
            for number in self.began
        ]
        return [*hung, *(Result(unit.number, LEFT, b"") for unit in self.waiting)]

    def _run(self, unit: Unit) -> None:
        result = unit.run()
        with self.news:
            del self.began[unit.number], self.threads[unit.number]
            self.ended_at = self._clock()
            self.results.append(result)
            self.news.notify()


class _Effort:
    """Whether this process works or waits, measured in windows. ``seen_at``: when it worked."""

    def __init__(
        self, window_seconds: float, clock: Callable[[], float], cpu_clock: Callable[[], float]
    ) -> None:
        self.window_seconds = window_seconds
        self.seen_at = self._looked_at = clock()
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._cpu_seconds = cpu_clock()
        self._working = True

    def is_working(self) -> bool:
        now = self._clock()
        if (seconds := now - self._looked_at) >= self.window_seconds:
            cpu_seconds = self._cpu_clock()
            self._working = cpu_seconds - self._cpu_seconds >= WORKING * seconds
            self._looked_at, self._cpu_seconds = now, cpu_seconds
            if self._working:
                self.seen_at = now
        return self._working


def step_of(frame: FrameType | None) -> str:
    """Return the step of the innermost flumeng call on the stack; empty without one."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        for prefix, step in _STEPS.items():
            if module == prefix or module.startswith(f"{prefix}."):
                return step
        frame = frame.f_back
    return ""


def read_rows(stream: bytes) -> list[dict[str, object]]:
    if not stream:
        return []
    with pa.ipc.open_stream(stream) as reader:
        rows: list[dict[str, object]] = reader.read_all().to_pylist()
        return rows


def _log_trace(error: Exception) -> None:
    """Log the traceback of a code fault, but not of an unavailable server or an unfit event."""
    cause = error.__cause__ if isinstance(error, FunctionError) else error
    if cause is not None and not isinstance(cause, FlumengError | OSError):
        log.error("%s", error, exc_info=cause)


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


@dataclass(frozen=True)
class Imports:
    """A share without units: imports ``modules``, so that its Python worker has them loaded."""

    modules: tuple[str, ...]

    def run(self) -> Iterable[Result]:
        for module in self.modules:
            with suppress(ImportError):  # a flow's own code may be no module
                importlib.import_module(module)
        return ()
