"""Reads records that change with each batch, only while needed: acks of closed partitions, commits
of stopped and deleted flows, and intents of flows whose tasks wait for a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flumeng.control.snapshot import partitions
from flumeng.control.snapshot.partitions import PartitionBounds, ack_path
from flumeng.control.snapshot.snapshot import FlowView, IntentView
from flumeng.control.snapshot.timers import Timers
from flumeng.control.zookeeper import ReadableStore, Versioned
from zkschema import paths
from zkschema.records import COLLECT, Journal

POLL_SECONDS = 2.0


class PolledZnodes:
    """Reads the polled records; requests a snapshot every ``POLL_SECONDS`` while any is awaited."""

    def __init__(self, store: ReadableStore, timers: Timers) -> None:
        self._store = store
        self._timers = timers
        self._drained: frozenset[str] = frozenset()
        self._without_commits: dict[str, FlowView] = {}

    def drained(
        self, flows: Mapping[str, FlowView], journals: Mapping[str, Journal]
    ) -> frozenset[str]:
        """Return the closed, fully acked partitions; as acks never decrease, they stay so."""
        ending = _ending(flows, journals)
        left = [key for key in ending if key not in self._drained]
        acks = [ack_path(flow, name) for flow, name, _ in (ending[key] for key in left)]
        reached = {
            key
            for key, ack in zip(left, self._store.read_each(acks), strict=True)
            if partitions.is_drained(ending[key][2], ack)
        }
        if len(reached) < len(left):
            self._timers.wake_in(POLL_SECONDS)
        if reached or not self._drained <= ending.keys():
            self._drained = frozenset((self._drained & ending.keys()) | reached)
        return self._drained

    def committing(self, flows: Mapping[str, FlowView]) -> frozenset[str]:
        """Return stopped and deleted flows with unfinished commits. Called after ``drained``: a
        commit that moved an ack is then listed or already finished."""
        ending = {
            name: flow
            for name, flow in flows.items()
            if flow.record.state in ("stopped", "deleted")
            and self._without_commits.get(name) is not flow
        }
        commits = self._store.children_many([paths.commits(name) for name in ending])
        committing = {name for name, some in zip(ending, commits, strict=True) if some}
        self._without_commits = {
            name: flow
            for name, flow in flows.items()
            if (flow is self._without_commits.get(name))
            or (name in ending and name not in committing and not _is_collected(flow))
        }
        if committing:
            self._timers.wake_in(POLL_SECONDS)
        return frozenset(committing)

    def intents(self, flows: Iterable[str]) -> dict[str, dict[str, IntentView]]:
        flows = sorted(flows)
        tasks = self._store.children_many([paths.intents(flow) for flow in flows])
        names = [(flow, task) for flow, some in zip(flows, tasks, strict=True) for task in some]
        records = self._store.read_each([paths.intent(*name) for name in names])
        intents: dict[str, dict[str, IntentView]] = {flow: {} for flow in flows}
        for (flow, task), intent in zip(names, records, strict=True):
            if intent is not None:
                record = intent.value if isinstance(intent, Versioned) else None
                intents[flow][task] = IntentView(record, intent.version)
        if any(intent.open for of_flow in intents.values() for intent in of_flow.values()):
            self._timers.wake_in(POLL_SECONDS)
        return intents


def _ending(
    flows: Mapping[str, FlowView], journals: Mapping[str, Journal]
) -> dict[str, tuple[str, str, PartitionBounds]]:
    """Return flow, name and bounds of closed partitions, by their name in ``Snapshot.drained``."""
    ending = {
        name: (journal.flow, name, partitions.of_journal(journal))
        for name, journal in journals.items()
        if journal.closed
    }
    for flow, view in flows.items():
        for name in view.ending:
            bounds = partitions.of_discovered(view.partitions[name])
            ending[f"{flow}/{name}"] = (flow, name, bounds)
    return ending


def _is_collected(flow: FlowView) -> bool:
    return any(task.kind == COLLECT for task in flow.tasks.values())
