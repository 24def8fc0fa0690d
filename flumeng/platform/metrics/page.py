"""Prometheus' text format: the one adapter to ``prometheus_client``. Pages of several processes are
merged block by block, one block for each metric."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from flumeng import __version__
from flumeng.platform.metrics import table
from flumeng.platform.metrics.histogram import Counts, Histogram
from flumeng.platform.metrics.table import FLOW, Metric, Reading

log = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PROCESS = "process"
"""The label of every sample: the reporting process of the host."""

Readings = Callable[[], Iterable[Reading]]
_BLOCK = re.compile(rb"^(?=# HELP )", re.MULTILINE)


class Page(Collector):
    """All metrics of one process; ``text`` may be called from any thread."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._readings: list[Readings] = [_own]
        self._processes = [ProcessCollector(registry=None)]
        self._flows = FlowLabels()
        self._failed: set[Readings] = set()
        self._lock = threading.Lock()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def add(self, readings: Readings) -> None:
        """Call ``readings`` at each scrape, in the thread that serves it."""
        self._readings.append(readings)

    def add_process(self, namespace: str, pid: int) -> None:
        """Also report memory, descriptors and CPU time of another process."""
        other = ProcessCollector(namespace=namespace, pid=lambda: pid, registry=None)
        self._processes.append(other)

    def text(self) -> bytes:
        with self._lock:
            return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """Yield all metrics; called by ``prometheus_client``, see ``text``."""
        families: dict[str, Family] = {}
        parts = [self._read(part) for part in self._readings]
        readings = (reading for part in parts for reading in part or ())
        complete = None not in parts
        for metric, labels, value in self._flows.merge(readings, complete=complete):
            family = families.get(metric.name)
            if family is None:
                family = families[metric.name] = _family(metric)
            _add(family, [self._process, *labels], value)
        for process in self._processes:
            families |= {family.name: family for family in map(self._with_label, process.collect())}
        yield from families.values()

    def describe(self) -> Iterator[Family]:
        yield from ()

    def _read(self, readings: Readings) -> list[Reading] | None:
        """Return readings; None for a function that fails, which is logged once."""
        try:
            return list(readings())
        except Exception:
            if readings not in self._failed:
                self._failed.add(readings)
                log.exception(
                    "metrics of %s are missing; repetitions are not logged", self._process
                )
            return None

    def _with_label(self, family: Family) -> Family:
        family.samples = [
            sample._replace(labels={PROCESS: self._process, **sample.labels})
            for sample in family.samples
        ]
        return family


def merged(pages: Iterable[bytes]) -> bytes:
    blocks: dict[bytes, list[bytes]] = {}
    for page in pages:
        for block in filter(None, _BLOCK.split(page)):
            text, kind, *samples = block.splitlines(keepends=True)
            blocks.setdefault(text + kind, []).extend(samples)
    return b"".join(head + b"".join(samples) for head, samples in blocks.items())


def _own() -> Iterator[Reading]:
    yield table.BUILD_INFO.of(1, __version__)
    yield table.PROCESS_THREADS.of(len(os.listdir("/proc/self/task")))  # noqa: PTH208  # a name each


def _family(metric: Metric) -> Family:
    labels = [PROCESS, *metric.labels]
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.doc, labels=labels)
    if metric.kind == "gauge":
        return GaugeMetricFamily(metric.name, metric.doc, labels=labels)
    return HistogramMetricFamily(metric.name, metric.doc, labels=labels)


def _add(family: Family, labels: list[str], value: float | Histogram) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        buckets, total = value.read()
        family.add_metric(labels, buckets, total)
    else:
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        assert not isinstance(value, Histogram)
        family.add_metric(labels, value)


MOST_FLOWS = 200
OTHER_FLOWS = "_other"
"""The label of all flows beyond the limit; no flow can have this name."""

Key = tuple[Metric, tuple[str, ...]]


class FlowLabels:
    """Limits flow labels to ``most``; other flows are joined as OTHER_FLOWS. Not thread-safe."""

    def __init__(self, most: int = MOST_FLOWS) -> None:
        self._most = most
        self._named: set[str] = set()
        self._seen: dict[Key, float] = {}
        self._others: dict[Key, float] = {}
        self._seen_counts: dict[Key, Counts] = {}
        self._other_histograms: dict[Key, Histogram] = {}

    def merge(
        self, readings: Iterable[Reading], *, complete: bool = True
    ) -> Iterator[tuple[Metric, tuple[str, ...], float | Histogram]]:
        """Return one value per metric and labels, joined by sum or maximum. Unless the readings are
        ``complete``, flows that they lack are not gone."""
        values: dict[Key, float | Histogram] = {}
        for metric, value, labels in readings:
            key = (metric, labels)
            values[key] = metric.join(values[key], value) if key in values else value
        present = {flow for key in values if (flow := _flow(key)) is not None}
        self._name(present if complete else present | self._named)
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
        if not complete:
            seen, seen_counts = self._seen | seen, self._seen_counts | seen_counts
        self._seen, self._seen_counts = seen, seen_counts
        return ((*key, value) for key, value in merged.items())

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
