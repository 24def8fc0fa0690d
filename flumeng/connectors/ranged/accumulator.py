"""How executors tell the driver something beside the rows of a batch. Light: no Spark, no Arrow.

Spark never forgets an accumulator, so the pipelines of a process share the few that
``flumeng.agent.collector.accumulators`` makes, and each entry belongs to a task.
"""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Value = TypeVar("Value")
Entries = dict[tuple[str, str], Value]
"""A task, and what the value is about -> the value."""

_adding = threading.Lock()


class Accumulator(Protocol[Value]):
    """In the driver."""

    @property
    def value(self) -> Entries[Value]:
        """Any thread may get entries of it; none may go through all of them."""

    def add(self, term: Entries[Value]) -> None: ...


@dataclass(frozen=True)
class AccumulatorHandle(Generic[Value]):
    """An accumulator as stages have it. It stays pickled, since several threads of an executor may
    add to it, and an accumulator is for one."""

    pickled: bytes

    @classmethod
    def of(cls, accumulator: Accumulator[Value]) -> AccumulatorHandle[Value]:
        return cls(pickle.dumps(accumulator))

    def add(self, entries: Entries[Value]) -> None:
        with _adding:
            accumulator: Accumulator[Value] = pickle.loads(self.pickled)  # our own driver's
            accumulator.add(entries)
