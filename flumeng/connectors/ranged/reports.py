"""Reports: what the stages of a batch tell the driver beside their rows, such as counts of events.

A stage calls ``count`` or ``note`` in the thread that runs it. ``collecting`` gathers the reports
of this thread and adds the run time; outside of it, reports are dropped. A failed run has none.
This module loads neither Spark nor Arrow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

_running = threading.local()
RUN_MICROS, CPU_MICROS = "run micros", "cpu micros"
"""Counts of the time that stages ran, and of their thread's processor time."""


@dataclass
class Reports:
    """``counts``: sums, by what they count. ``notes``: the newest value of each subject."""

    counts: dict[Hashable, int] = field(default_factory=dict)
    notes: dict[Hashable, object] = field(default_factory=dict)

    def add(self, other: Reports) -> None:
        for what, number in other.counts.items():
            self.counts[what] = self.counts.get(what, 0) + number
        self.notes.update(other.notes)


@contextmanager
def collecting() -> Iterator[Reports]:
    """Collect the reports of the stages that this thread runs within the context."""
    before = getattr(_running, "reports", None)
    made = _running.reports = Reports()
    began, cpu_began = time.perf_counter(), time.thread_time()
    try:
        yield made
    finally:
        _running.reports = before
    run, cpu = time.perf_counter() - began, time.thread_time() - cpu_began
    made.add(Reports({RUN_MICROS: round(run * 1e6), CPU_MICROS: round(cpu * 1e6)}))


def count(counts: Mapping[Hashable, int]) -> None:
    if (reports := getattr(_running, "reports", None)) is not None:
        reports.add(Reports(dict(counts)))


def note(subject: Hashable, value: object) -> None:
    if (reports := getattr(_running, "reports", None)) is not None:
        reports.notes[subject] = value
