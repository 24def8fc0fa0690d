"""Keeps Spark's Python workers there, with the modules in memory that a flow's batches need.

The first job of a session takes two seconds, the modules another one; and workers without work end
after a minute. So whoever waits to take tasks over runs an empty job now and then: one for all of
them, whatever their number.
"""

from __future__ import annotations

import importlib
import io
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext

AGAIN_SECONDS = 30.0


class _Modules(pickle.Pickler):
    """``found``: the modules of all that it pickles."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.found: set[str] = set()

    def reducer_override(self, part: object) -> Any:
        self.found.add(getattr(part, "__module__", None) or type(part).__module__)
        return NotImplemented


def modules_of(stage: object) -> frozenset[str]:
    """What is imported to unpickle ``stage``."""
    pickler = _Modules()
    pickler.dump(stage)
    return frozenset(pickler.found)


@dataclass(frozen=True)
class Imports:
    """What a Spark task of the job does."""

    modules: tuple[str, ...]

    def __call__(self, numbers: Iterable[int]) -> Iterator[int]:
        for module in self.modules:
            with suppress(ImportError):  # code that a flow brings may be no module of its own
                importlib.import_module(module)
        return iter(numbers)


class Warming:
    """Used from any thread; whoever comes while a job runs waits for it."""

    def __init__(self, context: SparkContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._clock = clock
        self._modules: set[str] = set()
        self._warm_until = 0.0
        self._running = threading.Lock()

    def warm_up(self, modules: Iterable[str]) -> None:
        """Return when workers are there that have all of ``modules``, and those asked for before.
        Does nothing when that is so, as far as is known. Raises what Spark raises."""
        with self._running:
            fresh = set(modules) - self._modules
            if not fresh and self._clock() < self._warm_until:
                return
            every = tuple(sorted(self._modules | fresh))
            tasks = self._context.defaultParallelism
            self._context.setJobGroup("warm-up", "keeps Python workers ready")
            self._context.parallelize(range(tasks), tasks).mapPartitions(Imports(every)).collect()
            self._modules |= fresh
            self._warm_until = self._clock() + AGAIN_SECONDS
