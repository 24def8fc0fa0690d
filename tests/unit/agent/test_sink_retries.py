"""Batches that are written again since a sink took nothing are counted by that sink."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest

from flumeng.agent.collector.engine import _error
from flumeng.agent.collector.executor_units import Unit
from flumeng.agent.collector.outcome import SinkUnavailableError, written_to
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.events.lazy_batch import Branches, Fused, Stage
from flumeng.platform.errors import ConflictError, UnavailableError
from flumeng.platform.metrics import table
from tests.testkit.collector import ScriptedPipeline
from tests.testkit.waiting import wait_for
from tests.unit.agent.task_world import JOURNAL, World, running, spec

SINKS = {0: "sinks[0].files", 3: "branches[errors].sinks[0].http"}


@pytest.fixture
def world() -> Iterator[World]:
    with running() as world:
        yield world


def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield next(batches)
    raise UnavailableError("POST http://h/: no answer")


@dataclass(frozen=True)
class Unreadable:
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        raise UnreadableError(JOURNAL, 7, "no answer", damaged=False)


def run(stage: Stage, sinks: dict[int, str]) -> Exception:
    """The error of a unit with this stage."""
    return _error(Unit(0, 0, pickle.dumps(stage)).run(), sinks)


def test_failing_sink_of_several_in_a_unit_is_named() -> None:
    for first, second, failed in ((take, refuse, 3), (refuse, take, 0)):
        error = run(Branches(((0, Fused((first,))), (3, Fused((second,))))), SINKS)
        assert isinstance(error, SinkUnavailableError)
        assert (error.place, str(error)) == (SINKS[failed], "POST http://h/: no answer")
    inner = Branches(((3, Fused((refuse,))),))
    nested = run(Branches(((0, Fused((take,))), (None, inner))), SINKS)
    assert isinstance(nested, SinkUnavailableError)
    assert nested.place == SINKS[3]


def test_single_sink_is_named_and_a_source_is_no_sink() -> None:
    error = run(refuse, {0: SINKS[0]})
    assert isinstance(error, SinkUnavailableError)
    assert error.place == SINKS[0]
    assert isinstance(run(Unreadable(), {0: SINKS[0]}), UnreadableError)


def test_failed_commit_counts_for_its_sink_and_a_conflict_for_none() -> None:
    with pytest.raises(SinkUnavailableError, match="no answer"), written_to(SINKS[0]):
        raise UnavailableError("no answer")
    with pytest.raises(ConflictError), written_to(SINKS[0]):
        raise ConflictError("another owner")


@pytest.mark.slow
def test_retries_are_counted_by_flow_and_sink(world: World) -> None:
    back = threading.Event()

    def away(_: Sequence[Range]) -> None:
        if not back.is_set():
            raise SinkUnavailableError(SINKS[3], "POST http://h/: no answer")

    world.safe[JOURNAL] = 10
    world.run(ScriptedPipeline(spec(), away))
    wait_for(lambda: ("web", SINKS[3]) in world.counted(table.SINK_RETRIES))
    back.set()
    wait_for(lambda: world.ack() == 10)
    retries = world.counted(table.SINK_RETRIES)
    failures = world.counted(table.COLLECT_FAILURES)
    assert retries["web", SINKS[3]] == failures["web", "unavailable"]
    assert "retrying" in world.states()
    world.measures.keep([])
    assert world.counted(table.SINK_RETRIES) == {}
