"""Bounds the ``flow`` label: ``MOST_FLOWS`` flows by name, all others as one. Pure. A named flow
keeps its name until it goes. The counters of the others together only grow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from flumeng.platform.metrics.histogram import Counts, Histogram
from flumeng.platform.metrics.table import FLOW, Metric, Reading

MOST_FLOWS = 200
OTHER_FLOWS = "_other"
"""No flow can have this name."""

Key = tuple[Metric, tuple[str, ...]]


class Merged(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram


class FlowLabels:
    """One process's. Used by one thread at a time."""

    def __init__(self, most: int = MOST_FLOWS) -> None:
        self._most = most
        self._named: set[str] = set()
        self._seen: dict[Key, float] = {}
        self._others: dict[Key, float] = {}
        self._seen_counts: dict[Key, Counts] = {}
        self._other_histograms: dict[Key, Histogram] = {}

    def merge(self, readings: Iterable[Reading]) -> list[Merged]:
        """A value for each metric and its labels: readings with the same labels are added, or the
        largest counts, as the metric says."""
        values: dict[Key, float | Histogram] = {}
        for metric, value, labels in readings:
            key = (metric, labels)
            values[key] = metric.join(values[key], value) if key in values else value
        self._name({flow for key in values if (flow := _flow(key)) is not None})
        merged: dict[Key, float | Histogram] = {}
        seen: dict[Key, float] = {}
        seen_counts: dict[Key, Counts] = {}
        grown: dict[Key, float] = {}
        for key, value in values.items():
            flow = _flow(key)
            if flow is None or flow in self._named:
                merged[key] = value
                continue
            metric, labels = key
            other = (metric, _renamed(metric, labels))
            if isinstance(value, Histogram):
                seen_counts[key] = value.counts
                together = self._other_histograms.setdefault(other, value.like())
                together.add_counts(seen_counts[key].since(self._seen_counts.get(key)))
                merged[other] = together
            elif metric.kind == "counter":
                seen[key] = value
                before = self._seen.get(key, 0.0)
                more = value - before if value >= before else value
                grown[other] = metric.join(grown.get(other, 0.0), more)
            else:
                merged[other] = metric.join(merged[other], value) if other in merged else value
        for other, more in grown.items():
            merged[other] = self._others[other] = self._others.get(other, 0.0) + more
        self._seen, self._seen_counts = seen, seen_counts
        return [Merged(*key, value) for key, value in merged.items()]

    def _name(self, present: Collection[str]) -> None:
        self._named.intersection_update(present)
        room = self._most - len(self._named)
        self._named.update(sorted(set(present) - self._named)[:room])


def _flow(key: Key) -> str | None:
    metric, labels = key
    return labels[metric.labels.index(FLOW)] if FLOW in metric.labels else None


def _renamed(metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        OTHER_FLOWS if name == FLOW else label
        for name, label in zip(metric.labels, labels, strict=True)
    )
