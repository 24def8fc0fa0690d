"""Calls a user's function with each batch, like Spark's ``foreachBatch``, in the driver and the
batch's thread. A batch repeated after a crash has the same events and number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from flumeng.connectors.api.sink import Attempt, BatchId, Row, TaskRevision, Written
from flumeng.connectors.python.options import Python
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform import secrets
from flumeng.platform.errors import FlumengError
from flumeng.platform.user_functions import FunctionError, UserFunction, imported, last_line


class BatchNumber(int):
    """A batch's number in its ``series``; each new flow has a new series."""

    series: str

    def __new__(cls, batch: BatchId) -> BatchNumber:
        number = super().__new__(cls, batch.number)
        number.series = batch.series
        return number


class PythonSink:
    roots = ()
    identified = False
    writes_at_once = True

    def __init__(self, options: Python, _task: TaskRevision) -> None:
        self._name = options.function
        self._function = imported(options.function)
        self._given = secrets.filled(options.options)

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        return batch.acted(partial(call, self._name, self._function, self._given, attempt.batch))

    def written(self, _rows: Sequence[Row]) -> Written:
        return Written(0)


def call(
    name: str,
    function: UserFunction,
    given: Mapping[str, str],
    batch: BatchId | None,
    rows: DataFrame,
) -> None:
    """Call the function. Raises FunctionError, and errors of Spark and flumeng inside of it."""
    assert batch is not None, "a batch for a function is decided before it is written"
    try:
        function(rows, BatchNumber(batch), **given)
    except FlumengError:
        raise
    except (PySparkException, Py4JError) as error:
        error.add_note(f"python {name}")
        raise
    except Exception as error:
        raise FunctionError(
            f"python {name} raised {last_line(error, name.partition(':')[0])}"
        ) from error
