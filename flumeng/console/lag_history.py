"""The lag of each partition over the last hour, for the flows that somebody looked at.

A thread samples these flows every ``STEP_SECONDS``, from the first look until an hour after the
last one. Memory is bounded: ``MOST_FLOWS`` flows, and of each the ``MOST_PARTITIONS`` partitions
that are furthest behind.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from flumeng.console.history import SAMPLES, STEP_SECONDS, History
from flumeng.control.queries.lag import LagOfFlow, PartitionLag
from flumeng.platform.errors import FlumengError

log = logging.getLogger(__name__)

MOST_FLOWS = 20
MOST_PARTITIONS = 300
KEPT_SECONDS = SAMPLES * STEP_SECONDS
SHARE = 4
"""A sample that takes long is taken less often: this many times its duration apart."""


class LagHistory:
    """Thread-safe. ``ask`` returns the lag of a flow; raises FlumengError. ``monotonic``:
    seconds."""

    def __init__(self, ask: Callable[[str], LagOfFlow], monotonic: Callable[[], float]) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._flows: OrderedDict[str, tuple[History, float]] = OrderedDict()
        self._thread: threading.Thread | None = None

    def look(self, flow: str, lag: LagOfFlow) -> History:
        """Return the flow's series by partition, and keep sampling them."""
        with self._lock:
            history, _ = self._flows.pop(flow, (History(), 0.0))
            self._flows[flow] = history, self._monotonic()
            while len(self._flows) > MOST_FLOWS:
                self._flows.popitem(last=False)
            self._add(history, lag)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lag history", daemon=True)
                self._thread.start()
            return history

    def sample(self) -> bool:
        """Sample all flows that are due; return whether any flow is left to sample."""
        with self._lock:
            until = self._monotonic() - KEPT_SECONDS
            for flow in [name for name, (_, looked) in self._flows.items() if looked < until]:
                del self._flows[flow]
            flows = {flow: history for flow, (history, _) in self._flows.items()}
        for flow, history in flows.items():
            if not history.is_due(self._monotonic()):
                continue
            try:
                lag = self._ask(flow)
            except FlumengError as error:
                log.debug("the lag of flow %s was not sampled: %s", flow, error)
                continue
            with self._lock:
                self._add(history, lag)
        return bool(flows)

    def _add(self, history: History, lag: LagOfFlow) -> None:
        now = self._monotonic()
        if history.is_due(now):
            rows = kept(lag.partitions, history)
            values = {row.partition: None if row.events is None else row.events for row in rows}
            history.add(values, now)

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            began = self._monotonic()
            try:
                more = self.sample()
            except Exception:  # no answer may end the thread
                log.exception("lags were not sampled")
                more = True
            with self._lock:
                if not more and not self._flows:
                    self._thread = None
                    return
            pause.wait(max(STEP_SECONDS / 2, SHARE * (self._monotonic() - began)))


def kept(partitions: Sequence[PartitionLag], history: History) -> list[PartitionLag]:
    """Return the partitions whose series are kept: unknown ones and those with the most events;
    among equal ones those that have a series already."""
    by_lag = sorted(
        partitions,
        key=lambda row: (row.events is not None, -(row.events or 0), row.partition not in history),
    )
    return by_lag[:MOST_PARTITIONS]
