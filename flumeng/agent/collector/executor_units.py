"""Units: the pieces of a Spark job that an executor runs, each one split of a batch for one run.

A task runs its units one after another. A failed unit reports the error in its result, so Spark
never repeats the other units. In a job of several batches a unit that only waits, and uses no
processor, is interrupted after ``LIMIT_SECONDS``: an alarm signal raises an exception in it.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from flumeng.connectors.ranged import reports
from flumeng.events.lazy_batch import FAILED_SINK, Stage
from flumeng.platform.errors import FlumengError
from flumeng.platform.user_functions import FunctionError

log = logging.getLogger(__name__)

LIMIT_SECONDS = 10.0
"""Waiting time after which a unit counts as hung. The units of a task share it: later ones may have
less, but ``SLOW_SECONDS`` at least."""
SLOW_SECONDS = 1.0
WINDOWS = 4
"""Equal parts of a unit's limit. It hangs when the process was idle in so many in a row."""
_STEPS = {
    "flumeng.connectors.ranged.reading": "reading",
    "flumeng.filters": "filtering",
    "flumeng.agent.collector.batch_times": "writing",
}
"""Step of each module that calls an input, a filter or a sink. Connectors are not listed."""
WORKING = 0.05
"""Part of a window in which a process uses its processor if it is not idle."""
ROWS, ERROR, HUNG, LEFT = "rows", "error", "hung", "left"

RESULTS = pa.schema(
    [
        pa.field("unit", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("content", pa.binary()),
        pa.field("reports", pa.binary()),
    ]
)


class Result(NamedTuple):
    """Number of the unit, kind of result, and content. ROWS: the rows as an Arrow stream, with the
    pickled ``Reports``. ERROR: the error's type and text, and the sink's number if several share
    the unit. HUNG: the step in which it hangs, if known. LEFT: the unit was interrupted before
    its limit, since others of its task had used up their waiting time."""

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


@dataclass(frozen=True)
class RunShares:
    """A stage from the numbers of ``shares``, pickled each, to RESULTS."""

    shares: tuple[bytes, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                share: Share | Imports = pickle.loads(self.shares[number])  # our own driver's
                for result in share.run():
                    yield pa.RecordBatch.from_pylist([result._asdict()], RESULTS)


def run_together(
    units: Sequence[Unit], limit_seconds: float = LIMIT_SECONDS, slow_seconds: float = SLOW_SECONDS
) -> Iterator[Result]:
    """Run ``units`` of several batches in the main thread, and interrupt those that hang."""
    left = limit_seconds
    for unit in units:
        most = max(left, slow_seconds)
        alarm = _Alarm(most / WINDOWS)
        began = time.monotonic()
        try:
            alarm.start()
            result = unit.run()
            alarm.stop()
        except _IdleError as idle:
            alarm.stop()
            whole = most == limit_seconds
            result = Result(unit.number, HUNG if whole else LEFT, idle.step.encode())
        seconds = time.monotonic() - began
        if seconds >= slow_seconds and not alarm.works(seconds):
            left -= seconds
        yield result


class RepeatedTaskError(FlumengError):
    """Spark runs a task again, or a copy of it, in a flow that delivers at most once."""


class _IdleError(BaseException):
    """Raised in a unit that hangs. Code that handles any ``Exception`` lets it pass."""

    def __init__(self, step: str) -> None:
        self.step = step


class _Alarm:
    """Raises _IdleError in the main thread once the process was idle for ``WINDOWS`` windows, and
    again after each further one, should a unit suppress it."""

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._began = self._seen = time.process_time()
        self._idle = 0
        self._stopped = False

    def start(self) -> None:
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, self._window_seconds, self._window_seconds)

    def stop(self) -> None:
        self._stopped = True
        signal.setitimer(signal.ITIMER_REAL, 0)

    def works(self, seconds: float) -> bool:
        """Return whether the process has worked in the last ``seconds`` since the start."""
        return time.process_time() - self._began >= WORKING * seconds

    def _on_alarm(self, _number: int, frame: FrameType | None) -> None:
        before, self._seen = self._seen, time.process_time()
        works = self._seen - before >= WORKING * self._window_seconds
        self._idle = 0 if works else self._idle + 1
        if self._idle >= WINDOWS and not self._stopped:
            raise _IdleError(step_of(frame))


def step_of(frame: FrameType | None) -> str:
    """Return the step of the innermost flumeng call on the stack; empty without one."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        for prefix, step in _STEPS.items():
            if module == prefix or module.startswith(f"{prefix}."):
                return step
        frame = frame.f_back
    return ""


def refuse_copies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A stage that only the first attempt of a Spark task passes. Raises RepeatedTaskError in a
    repeat, and in a copy that Spark runs beside it: either could write events twice."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber():
        raise RepeatedTaskError("Spark runs a task again, and at-most-once allows no second write")
    yield from batches


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
