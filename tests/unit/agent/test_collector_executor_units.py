"""Executors process many batches at once: each unit's outcome is its own."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from flumeng.agent.collector.batch_times import TimeWrite
from flumeng.agent.collector.executor_units import (
    ERROR,
    HUNG,
    LEFT,
    ROWS,
    Result,
    Share,
    Unit,
    read_rows,
    run_together,
)
from flumeng.agent.collector.ranges import spread
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.ranged.reading import ReadSplits
from flumeng.events.lazy_batch import Stage
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.user_functions import FunctionError

SCHEMA = pa.schema([pa.field("split", pa.int64())])
never = threading.Event()


@dataclass(frozen=True)
class Echo:
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([batch.column(0)], schema=SCHEMA)


@dataclass(frozen=True)
class Fail:
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                raise OSError("disk on fire\nand more")
            yield batch


@dataclass(frozen=True)
class Hang:
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        never.wait(60)
        yield from batches


@dataclass(frozen=True)
class HangTwice:
    """Suppresses the first interruption."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            never.wait(60)
        except BaseException:
            never.wait(60)
        yield from batches


@dataclass(frozen=True)
class Work:
    """Takes so many seconds of processor time."""

    seconds: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began = time.thread_time()
        while time.thread_time() - began < self.seconds:
            pass
        yield from batches


@dataclass(frozen=True)
class Wait:
    seconds: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(self.seconds)
        yield from batches


def unit(number: int, stage: Stage) -> Unit:
    return Unit(number, split=number * 10, stage=pickle.dumps(stage))


def test_failing_unit_reports_its_error_and_the_others_give_their_rows() -> None:
    units = (unit(0, Echo()), unit(1, Fail()), unit(2, Echo()))
    for together in (False, True):
        found = {result.unit: result for result in Share(units, together).run()}
        assert found[1] == (1, ERROR, b"OSError\ndisk on fire\n", b"")
        assert [read_rows(found[n].content) for n in (0, 2)] == [[{"split": 0}], [{"split": 20}]]


@dataclass
class Raises:
    error: Exception
    cause: Exception | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        del batches
        raise self.error from self.cause


def test_traceback_of_a_code_error_is_logged_and_of_an_absent_server_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    users = Raises(FunctionError("python f raised"), ValueError("in the user's function"))
    for number, stage in enumerate((users, Raises(KeyError("ours")))):
        assert unit(number, stage).run()[1] == ERROR
    assert "ValueError: in the user's function" in caplog.text
    assert "KeyError: 'ours'" in caplog.text
    caplog.clear()
    for error in (UnavailableError("refused"), OSError("away"), UserError("wrong")):
        unit(0, Raises(error)).run()
    assert caplog.text == ""


def test_unit_that_cannot_be_unpickled_fails_alone() -> None:
    results = run_together([Unit(0, 0, b"nonsense"), unit(1, Echo())])
    assert {result.unit: result.kind for result in results} == {0: ERROR, 1: ROWS}


@pytest.mark.slow
@pytest.mark.parametrize("stage", [Hang(), HangTwice()])
def test_hanging_unit_is_interrupted_and_the_later_ones_run(stage: Stage) -> None:
    units = (unit(0, Echo()), unit(1, stage), unit(2, Echo()))
    began = time.monotonic()
    results = run_together(units, limit_seconds=0.4, slow_seconds=0.05)
    assert [(of.unit, of.kind) for of in results] == [(0, ROWS), (1, HUNG), (2, ROWS)]
    assert time.monotonic() - began < 30, "it has waited for its end"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.slow
def test_units_of_a_task_share_their_time_to_wait() -> None:
    """So a job of many that hang ends soon. Those that had less time are no hung ones."""
    units = (*(unit(number, Hang()) for number in range(5)), unit(5, Echo()))
    results = list(run_together(units, limit_seconds=0.8, slow_seconds=0.1))
    assert [of.kind for of in results] == [HUNG, LEFT, LEFT, LEFT, LEFT, ROWS]


class HangsIn:
    """A stage that hangs in a call of ``module``."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        exec("never.wait(30)", {"__name__": self.module, "never": never})
        yield from batches


class HangingReader:
    """A reader of an input whose server does not answer, as any connector may have one."""

    schema = SCHEMA
    modules = frozenset[str]()

    def read(self, _range: Range, _address: str) -> Iterator[pa.RecordBatch]:
        never.wait(30)
        yield from ()


@pytest.mark.parametrize(
    ("stage", "step"),
    [
        (ReadSplits(HangingReader(), ((Range("p", 0, 1),),), {"p": "host:1"}), b"reading"),
        (HangsIn("flumeng.filters.lookup"), b"filtering"),
        (TimeWrite((Hang(),), "0"), b"writing"),
        (HangsIn("urllib3.connection"), b""),
    ],
    ids=["reader", "filter", "sink", "another"],
)
@pytest.mark.slow
def test_hanging_unit_is_found_in_its_step(stage: Stage, step: bytes) -> None:
    assert list(run_together([unit(0, stage)], 0.3, 0.05)) == [Result(0, HUNG, step)]


@pytest.mark.long
def test_units_that_use_the_processor_do_not_hang_however_long_they_take() -> None:
    units = [unit(number, Work(2.5)) for number in range(2)]
    assert [of.kind for of in run_together(units, 2.0, 0.1)] == [ROWS] * 2


@pytest.mark.slow
def test_units_that_wait_for_less_than_the_limit_do_not_hang() -> None:
    units = [unit(number, Wait(0.2)) for number in range(2)]
    assert [of.kind for of in run_together(units, 0.8, 0.05)] == [ROWS] * 2


def test_shares_of_executors_are_about_equal() -> None:
    weights = [6, 2, 2, 2, 2, 2, 1, 1]
    shares = spread(weights, 2)
    assert sorted(number for share in shares for number in share) == list(range(len(weights)))
    loads = [sum(weights[n] for n in share) for share in shares]
    assert max(loads) - min(loads) <= 2
    assert spread([3], 4) == [[0]]
    assert spread([], 4) == []
