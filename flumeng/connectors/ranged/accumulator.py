"""Accumulators: values that executors send to the driver in addition to rows. This module loads
neither Spark nor Arrow. Spark never forgets an accumulator, so pipelines share those of
``flumeng.agent.collector.accumulators``."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Value = TypeVar("Value")
Entries = dict[tuple[str, str], Value]
"""Values by task and subject."""

_adding = threading.Lock()


class Accumulator(Protocol[Value]):
    @property
    def value(self) -> Entries[Value]:
        """Any thread may get entries; no thread may iterate over them."""

    def add(self, term: Entries[Value]) -> None: ...


@dataclass(frozen=True)
class AccumulatorHandle(Generic[Value]):
    """An accumulator as stages use it. Each ``add`` unpickles it: several threads of an executor
    add values, but an accumulator is for one thread."""

    pickled: bytes

    @classmethod
    def of(cls, accumulator: Accumulator[Value]) -> AccumulatorHandle[Value]:
        return cls(pickle.dumps(accumulator))

    def add(self, entries: Entries[Value]) -> None:
        with _adding:
            accumulator: Accumulator[Value] = pickle.loads(self.pickled)  # our own driver's
            accumulator.add(entries)
