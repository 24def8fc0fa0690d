"""Values that executors send to the driver beside rows. Light: no Spark, no Arrow. Spark never
forgets an accumulator, so pipelines share those of ``flumeng.agent.collector.accumulators``.
"""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Value = TypeVar("Value")
Entries = dict[tuple[str, str], Value]
"""Task and subject -> value."""

_adding = threading.Lock()


class Accumulator(Protocol[Value]):
    @property
    def value(self) -> Entries[Value]:
        """Any thread may get entries; none may iterate over them."""

    def add(self, term: Entries[Value]) -> None: ...


@dataclass(frozen=True)
class AccumulatorHandle(Generic[Value]):
    """An accumulator in stages. It stays pickled: several threads of an executor add to it, and an
    accumulator is for one."""

    pickled: bytes

    @classmethod
    def of(cls, accumulator: Accumulator[Value]) -> AccumulatorHandle[Value]:
        return cls(pickle.dumps(accumulator))

    def add(self, entries: Entries[Value]) -> None:
        with _adding:
            accumulator: Accumulator[Value] = pickle.loads(self.pickled)  # our own driver's
            accumulator.add(entries)
