"""Executors process many batches at once: each unit's outcome is its own."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from flumeng.agent.collector.batch_times import TimeWrite
from flumeng.agent.collector.executor_units import (
    AT_ONCE,
    ERROR,
    HUNG,
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
may_end = threading.Event()


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
        may_end.wait(60)
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
    results = run_together((Unit(0, 0, b"nonsense"), unit(1, Echo())))
    assert {result.unit: result.kind for result in results} == {0: ERROR, 1: ROWS}


@pytest.mark.slow
def test_hanging_units_delay_no_others_and_are_left_behind() -> None:
    many = 2 * AT_ONCE
    units = [unit(number, Hang()) for number in range(many)]
    units += [unit(number, Echo()) for number in range(many, 2 * many)]
    results = run_together(
        tuple(units), slow_seconds=0.05, limit_seconds=0.5, cpu_clock=lambda: 0.0
    )
    may_end.set()
    kinds = {result.unit: result.kind for result in results}
    assert kinds == dict.fromkeys(range(many), HUNG) | dict.fromkeys(range(many, 2 * many), ROWS)


class HangsIn:
    """A stage that hangs in a call of ``module``."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        exec("may_end.wait(30)", {"__name__": self.module, "may_end": may_end})
        yield from batches


class HangingReader:
    """A reader of an input whose server does not answer, as any connector may have one."""

    schema = SCHEMA
    modules = frozenset[str]()

    def read(self, _range: Range, _address: str) -> Iterator[pa.RecordBatch]:
        may_end.wait(30)
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
    may_end.clear()
    results = run_together(
        (unit(0, stage),), slow_seconds=0.05, limit_seconds=0.3, cpu_clock=lambda: 0.0
    )
    may_end.set()
    assert results == [Result(0, HUNG, step)]


@pytest.mark.long
def test_units_that_wait_for_a_processor_do_not_hang() -> None:
    """However many of them wait for the same one; no more of them begin than are good for."""
    units = tuple(unit(number, Work(0.15)) for number in range(20))
    results = run_together(units, slow_seconds=0.1, limit_seconds=0.5)
    assert [result.kind for result in results] == [ROWS] * 20


@pytest.mark.slow
def test_waiting_unit_is_not_hung_while_others_end() -> None:
    units = tuple(unit(number, Wait(0.4 * (1 + number))) for number in range(AT_ONCE))
    results = run_together(units, slow_seconds=0.1, limit_seconds=0.6, cpu_clock=lambda: 0.0)
    assert [result.kind for result in results] == [ROWS] * AT_ONCE


def test_shares_of_executors_are_about_equal() -> None:
    weights = [6, 2, 2, 2, 2, 2, 1, 1]
    shares = spread(weights, 2)
    assert sorted(number for share in shares for number in share) == list(range(len(weights)))
    loads = [sum(weights[n] for n in share) for share in shares]
    assert max(loads) - min(loads) <= 2
    assert spread([3], 4) == [[0]]
    assert spread([], 4) == []
