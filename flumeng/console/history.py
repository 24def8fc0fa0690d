"""Values of the last hour, for sparklines: a sample every ``STEP_SECONDS`` in fixed memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

STEP_SECONDS = 10.0
SAMPLES = 360


class Series:
    """The last ``SAMPLES`` values, oldest first; NaN where a value was unknown."""

    __slots__ = ("_at", "_values")

    def __init__(self) -> None:
        self._values = array("f", [math.nan]) * SAMPLES
        self._at = 0

    def add(self, value: float | None) -> None:
        self._values[self._at] = math.nan if value is None else value
        self._at = (self._at + 1) % SAMPLES

    @property
    def values(self) -> list[float | None]:
        """All samples, oldest first; None for unknown ones and for those before the first."""
        ordered = [*self._values[self._at :], *self._values[: self._at]]
        return [None if math.isnan(value) else value for value in ordered]


class History:
    """Series by name, such as ``cluster in`` or ``flow web lag``."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}
        self._sampled = -math.inf

    def is_due(self, now: float) -> bool:
        """``now``: monotonic seconds."""
        return now - self._sampled >= STEP_SECONDS

    def add(self, values: Mapping[str, float | None], now: float) -> None:
        """Add one sample of every series. Series without a value are forgotten."""
        missed = 0 if self._sampled < 0 else round((now - self._sampled) / STEP_SECONDS) - 1
        self._sampled = now
        for gone in self._series.keys() - values.keys():
            del self._series[gone]
        for name, value in values.items():
            series = self._series.setdefault(name, Series())
            for _ in range(min(missed, SAMPLES)):
                series.add(None)
            series.add(value)

    def __contains__(self, name: str) -> bool:
        return name in self._series

    def of(self, name: str) -> list[float | None]:
        series = self._series.get(name)
        return series.values if series else []
