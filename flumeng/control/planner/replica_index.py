"""Index of the replicated journals that may need a change, and of their nodes; only a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flumeng.config.replicas import Replicas
from flumeng.control.planner.snapshot_changes import changed_names
from flumeng.control.snapshot.snapshot import FlowView, NodeView, Snapshot
from flumeng.control.zookeeper import Version
from flumeng.journal.replication.membership import node_of
from zkschema.records import REPLICA, Journal

Standing = tuple[bool, bool, bool, bool, str, str]


@dataclass
class ReplicaIndex:
    """``open``: journals to check. ``held``: replicas per node. ``journals_of``: by node, the
    journals with record versions. ``_on``: by node, the journals that its standing affects."""

    open: set[str] = field(default_factory=set)
    held: Counter[str] = field(default_factory=Counter)
    journals_of: dict[str, dict[str, int]] = field(default_factory=dict)
    _on: dict[str, set[str]] = field(default_factory=dict)
    _of_flow: dict[str, set[str]] = field(default_factory=dict)
    _journals: Mapping[str, Journal] = field(default_factory=dict)
    _versions: Mapping[str, Version] = field(default_factory=dict)
    _nodes: Mapping[str, NodeView] = field(default_factory=dict)
    _standings: dict[str, Standing] = field(default_factory=dict)
    _flows: Mapping[str, FlowView] = field(default_factory=dict)
    _replicas: dict[str, Replicas | None] = field(default_factory=dict)
    _mine: frozenset[str] = frozenset()

    def follow(self, snapshot: Snapshot) -> set[str]:
        """Update the index; return the nodes whose assignments may change."""
        touched = self._follow_journals(snapshot)
        self._follow_nodes(snapshot.nodes)
        self._follow_flows(snapshot)
        return touched

    def _follow_journals(self, snapshot: Snapshot) -> set[str]:
        """Follow replicated journals, those in ``journal_versions``; return the nodes affected."""
        journals, versions = snapshot.journals, snapshot.journal_versions
        changed = {
            *changed_names(self._journals, journals),
            *changed_names(self._versions, versions),
        }
        touched: set[str] = set()
        for name in changed:
            if name in self._versions:
                touched.update(self._remove(name, self._journals[name]))
            if name in versions:
                touched.update(self._enter(name, journals[name], versions[name]))
        gone = {name for name in changed if name not in versions}
        if gone:
            touched.update(
                node
                for node, view in snapshot.nodes.items()
                if not gone.isdisjoint(view.assignment.journals)
            )
        self._journals, self._versions = journals, versions
        return touched

    def _enter(self, name: str, journal: Journal, version: Version) -> set[str]:
        nodes = {journal.node, journal.primary, *journal.replicas}
        for node in nodes:
            self.journals_of.setdefault(node, {})[name] = version.number
        for node in _holders(journal):
            self._on.setdefault(node, set()).add(name)
        self.held.update(journal.replicas)
        self._of_flow.setdefault(journal.flow, set()).add(name)
        self.open.add(name)
        return nodes

    def _remove(self, name: str, journal: Journal) -> set[str]:
        nodes = {journal.node, journal.primary, *journal.replicas}
        for node in nodes:
            self.journals_of[node].pop(name)
        for node in _holders(journal):
            self._on[node].discard(name)
        self.held.subtract(journal.replicas)
        self._of_flow[journal.flow].discard(name)
        self.open.discard(name)
        return nodes

    def _follow_nodes(self, nodes: Mapping[str, NodeView]) -> None:
        """Mark the journals of nodes whose standing changed; most new statuses do not change it."""
        if nodes is self._nodes:
            return
        for name in {*self._nodes, *nodes}:
            view = nodes.get(name)
            if view is self._nodes.get(name):
                continue
            standing = _standing(view) if view else None
            if standing != self._standings.get(name):
                self.open.update(self._on.get(name, ()))
            if standing is None:
                self._standings.pop(name, None)
            else:
                self._standings[name] = standing
        self._nodes = nodes

    def _follow_flows(self, snapshot: Snapshot) -> None:
        self._open_all_of(self._mine ^ snapshot.mine)
        self._mine = snapshot.mine
        if snapshot.flows is self._flows:
            return
        replicas = {name: flow.replicas for name, flow in snapshot.flows.items()}
        if replicas != self._replicas:
            names = {*self._replicas, *replicas}
            absent = object()
            self._open_all_of(
                name
                for name in names
                if self._replicas.get(name, absent) != replicas.get(name, absent)
            )
            self._replicas = replicas
        self._flows = snapshot.flows

    def _open_all_of(self, flows: Iterable[str]) -> None:
        for flow in flows:
            self.open.update(self._of_flow.get(flow, ()))


def _holders(journal: Journal) -> set[str]:
    return {journal.primary, *journal.replicas, *map(node_of, journal.in_sync)}


def _standing(view: NodeView) -> Standing:
    """Return the properties of a node that affect the choice of replicas and primaries."""
    return (
        view.live,
        view.down,
        view.eligible(REPLICA, {}),
        view.set_aside,
        view.record.desired,
        view.record.zone,
    )
