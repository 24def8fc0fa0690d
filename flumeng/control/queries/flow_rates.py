"""Smoothed rates of flows from sampled totals. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flumeng.control.queries.flow_graph import Rates
from flumeng.control.queries.overview import NodeRow

SMOOTHING_SECONDS = 10.0
"""Time constant of the exponential moving average."""
HISTORY = 60


@dataclass(frozen=True)
class FlowRates:
    """Rates in events per second, None while unknown: ``incoming`` (accepted), ``delivered``
    (acked), ``dropped`` by filters. ``history``: values of ``delivered``, oldest first."""

    incoming: float | None = None
    delivered: float | None = None
    dropped: float | None = None
    dead_letters: float | None = None
    history: tuple[float, ...] = ()


UNKNOWN = FlowRates()


@dataclass
class _Total:
    """A counter with its smoothed rate; a decrease counts as no progress."""

    value: float
    seconds: float
    rate: float | None = None

    def add(self, value: float, now: float) -> None:
        passed = now - self.seconds
        if passed <= 0:
            return
        current = max(0.0, value - self.value) / passed
        weight = 1.0 if self.rate is None else 1.0 - math.exp(-passed / SMOOTHING_SECONDS)
        self.rate = (self.rate or 0.0) + weight * (current - (self.rate or 0.0))
        self.value, self.seconds = value, now


class RateMeter:
    def __init__(self) -> None:
        self._accepted: dict[str, _Total] = {}
        self._acked: dict[str, _Total] = {}
        self._history: dict[str, deque[float]] = {}
        self._minute: Mapping[str, Rates] = {}

    def add(self, status: Mapping[str, Any], minute: Mapping[str, Rates], now: float) -> None:
        """Add a sample: the ``health.status``, rates of the last minute, and a monotonic time."""
        flows = {flow["flow"]: flow for flow in status["flows"]}
        for name, flow in flows.items():
            _add(self._acked, name, flow["acked"], now)
            if flow["lag_unknown"]:
                self._accepted.pop(name, None)
            else:
                _add(self._accepted, name, flow["acked"] + flow["lag"], now)
            delivered = self._acked[name].rate
            if delivered is not None:
                self._history.setdefault(name, deque(maxlen=HISTORY)).append(delivered)
        for table in (self._acked, self._accepted, self._history):
            for gone in table.keys() - flows.keys():
                del table[gone]
        self._minute = minute

    def of(self, flow: str) -> FlowRates:
        minute = self._minute.get(flow, Rates())
        return FlowRates(
            incoming=_rate(self._accepted, flow),
            delivered=_rate(self._acked, flow),
            dropped=minute.dropped,
            dead_letters=minute.dead_letters,
            history=tuple(self._history.get(flow, ())),
        )


def top(
    status: Mapping[str, Any], nodes: Sequence[NodeRow], rates: Mapping[str, FlowRates]
) -> dict[str, Any]:
    """Return the ``health.status`` with ``node_rows`` and, by flow, ``rates``."""
    shown = {flow: asdict(rate) for flow, rate in rates.items()}
    return {**status, "node_rows": list(nodes), "rates": shown}


def _add(totals: dict[str, _Total], flow: str, value: float, now: float) -> None:
    if flow in totals:
        totals[flow].add(value, now)
    else:
        totals[flow] = _Total(value, now)


def _rate(totals: Mapping[str, _Total], flow: str) -> float | None:
    return totals[flow].rate if flow in totals else None
