"""Builds the views of flows and nodes from their znodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from flumeng.config import FlowSpec, SpecError, parse_flow
from flumeng.control.snapshot import discovered, journal_registry
from flumeng.control.snapshot.assignment_pages import whole
from flumeng.control.snapshot.cluster_copy import Mirror
from flumeng.control.snapshot.partitions import FLOW, ack_path, input_of
from flumeng.control.snapshot.snapshot import FlowView, NodeView
from flumeng.control.snapshot.task_map import Tasks
from flumeng.control.zookeeper import Path, ReadableStore, Unreadable, Version, Versioned
from zkschema import paths
from zkschema.records import (
    Assignment,
    Cluster,
    Flow,
    Journal,
    Maintenance,
    Node,
    Partition,
    Partitions,
    Plan,
)


class Views:
    """Flow texts never change: they are read from ``store`` once."""

    def __init__(self, store: ReadableStore, mirror: Mirror) -> None:
        self._store = store
        self._mirror = mirror
        self._specs: dict[str, dict[tuple[int, int], tuple[FlowSpec | None, str]]] = {}
        self._by_batch: set[str] = set()
        """Flows with a revision that decides batches, or with such a decision."""

    def restart(self, flows: Collection[str]) -> None:
        """``flows``: all existing flows."""
        decided = self._store.children_many([paths.intents(name) for name in flows])
        self._by_batch = {name for name, tasks in zip(flows, decided, strict=True) if tasks}
        self._specs = {name: self._specs[name] for name in flows if name in self._specs}

    def cluster(self) -> Cluster:
        """While the settings are unreadable, nothing may move."""
        found = self._mirror.get(paths.cluster())
        if isinstance(found, Unreadable):
            return Cluster(maintenance=Maintenance(who="flumeng", why=str(found), since=0.0))
        return found.value if found else Cluster()

    def journal(self, name: str) -> Journal | None:
        path = paths.journal(name)
        found = self._mirror.get(path)
        return journal_registry.as_known(path, found) if found else None

    def journal_version(self, name: str) -> Version | None:
        found = self._mirror.found(paths.journal(name))
        return found.version if found is not None and found.value.lineage else None

    def flow(self, name: str) -> FlowView | None:
        path = paths.flow(name)
        known = self._specs.pop(name, {})
        if self._mirror.get(path) is None:
            return None
        record = self._mirror.found(path)
        spec, problem = None, ""
        if record is not None:
            spec, problem = self._spec(name, record.created, record.value.revision, known)
        plan = self._mirror.found(paths.plan(name))
        buckets = self._mirror.rest_of([paths.plan(name)])
        found = self._mirror.found(paths.partitions(name))
        shares = self._mirror.rest_of([paths.partitions(name)])
        known_partitions = self._discovered(found, shares)
        version = self._mirror.version(path)
        assert isinstance(version, Version)
        before: FlowSpec | None = None
        lacks = ""
        if record and plan and spec and spec.rollout and plan.value.revision:
            before, lacks = self._spec(name, record.created, plan.value.revision, known)
        specs = [one for one in (spec, before) if one is not None]
        if any(one.by_batch for one in specs):
            self._by_batch.add(name)
        planned = self._mirror.get(paths.plan(name)) is not None
        view = FlowView(
            name,
            record.value if record else Flow(revision=0),
            version,
            spec.place if spec else None,
            problem,
            spec.rollout if spec else None,
            self._whole(plan.value, buckets) if plan else Plan(),
            self._mirror.version(paths.plan(name)),
            {key: one.weight for key, one in known_partitions.items() if one.weight},
            self._mirror.unreadable_of(
                path, paths.plan(name), *buckets, paths.partitions(name), *shares
            ),
            0
            if planned
            else self._highest_epoch(name, found.value.epoch if found else 0, known_partitions),
            name in self._by_batch,
            known_partitions,
            any(one.pinned for one in specs),
            bool(known_partitions) or any(one.partitioned for one in specs),
            found.value.scaling.tasks if found and found.value.scaling else 0,
            spec.replicas if spec and spec.durability == "replicated" else None,
        )
        if lacks and view.rolling:  # its wanted tasks are unknown
            text = Unreadable(paths.revision(name, str(view.plan.revision)), lacks)
            return replace(view, unreadable=(*view.unreadable, text))
        return view

    def node(self, name: str) -> NodeView | None:
        path, told, said = paths.node(name), paths.assignment(name), paths.status(name)
        if self._mirror.get(path) is None:
            return None
        record, assignment, status = map(self._mirror.found, (path, told, said))
        pages = self._mirror.rest_of([told])
        return NodeView(
            name,
            record.value if record else Node(uuid="", roles=(), desired="unknown"),
            live=self._mirror.get(paths.live_node(name)) is not None,
            assignment=whole(assignment.value, [self._mirror.found(page) for page in pages])
            if assignment
            else Assignment(),
            assignment_version=self._mirror.version(told),
            status=status.value if status else None,
            unreadable=self._mirror.unreadable_of(path, told, *pages, said),
            version=record.version if record else Version(0),
            status_version=self._mirror.version(said),
        )

    def _highest_epoch(self, flow: str, of_discovery: int, known: Iterable[str]) -> int:
        """For a flow without a plan: acks and its discovery record refuse lower epochs."""
        cursors = self._store.children(paths.acks(flow))
        acked = self._store.children_many([paths.cursor(flow, cursor) for cursor in cursors])
        wanted = [
            paths.ack(flow, cursor, partition)
            for cursor, partitions in zip(cursors, acked, strict=True)
            for partition in partitions
        ]
        wanted += [ack_path(flow, name) for name in known if input_of(name) == FLOW]
        found = self._store.read_each(wanted)
        epochs = (ack.value.epoch for ack in found if isinstance(ack, Versioned))
        return max([of_discovery, *epochs])

    def _whole(self, plan: Plan, buckets: Sequence[Path]) -> Plan:
        if not plan.buckets:
            return plan
        found = map(self._mirror.found, buckets)
        return replace(
            plan, tasks=Tasks([bucket.value.tasks if bucket else {} for bucket in found])
        )

    def _discovered(
        self, record: Versioned[Partitions] | None, shares: Sequence[Path]
    ) -> Mapping[str, Partition]:
        if record is None:
            return {}
        found = discovered.whole(record, [self._mirror.found(share) for share in shares])
        assert isinstance(found, Versioned)
        return found.value.partitions

    def _spec(
        self,
        flow: str,
        created: int,
        revision: int,
        known: Mapping[tuple[int, int], tuple[FlowSpec | None, str]],
    ) -> tuple[FlowSpec | None, str]:
        """The parsed revision, or why it is unreadable. Cached by creation too: a recreated flow
        has another revision 1."""
        key = (created, revision)
        kept = self._specs.setdefault(flow, {})
        if key in known:
            kept[key] = known[key]
        elif key not in kept:
            (found,) = self._store.read_each([paths.revision(flow, str(revision))])
            if found is None:
                return None, f"revision {revision} is not there"
            if isinstance(found, Unreadable):
                return None, found.why
            try:
                kept[key] = parse_flow(found.value.effective), ""
            except SpecError as error:
                kept[key] = None, str(error)
        return kept[key]


def lacks_a_text(flow: FlowView) -> bool:
    """Whether a revision could not be read; no watch reports those."""
    return bool(flow.problem) or any(one.path.row is paths.revision for one in flow.unreadable)
