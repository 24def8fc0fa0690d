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
    """Builds views. Texts of revisions never change: those in use are kept parsed."""

    def __init__(self, store: ReadableStore, mirror: Mirror) -> None:
        self._store = store
        self._mirror = mirror
        self._specs: dict[str, dict[tuple[int, int], tuple[FlowSpec | None, str]]] = {}
        self._by_batch: set[str] = set()
        """Flows with a revision whose tasks decide batches, or with a decided batch."""

    def restart(self, flows: Collection[str]) -> None:
        """Start again with ``flows``, which are all existing flows."""
        decided = self._store.children_many([paths.intents(name) for name in flows])
        self._by_batch = {name for name, tasks in zip(flows, decided, strict=True) if tasks}
        self._specs = {name: self._specs[name] for name in flows if name in self._specs}

    def cluster(self) -> Cluster:
        """Return the settings; while they are unreadable, maintenance mode stops all moves."""
        record = self._mirror.get(paths.cluster())
        if isinstance(record, Unreadable):
            return Cluster(maintenance=Maintenance(who="flumeng", why=str(record), since=0.0))
        return record.value if record else Cluster()

    def journal(self, name: str) -> Journal | None:
        path = paths.journal(name)
        record = self._mirror.get(path)
        return journal_registry.record_or_derived(path, record) if record else None

    def journal_version(self, name: str) -> Version | None:
        record = self._mirror.record(paths.journal(name))
        return record.version if record is not None and record.value.lineage else None

    def flow(self, name: str) -> FlowView | None:
        path = paths.flow(name)
        parsed = self._specs.pop(name, {})
        if self._mirror.get(path) is None:
            return None
        record = self._mirror.record(path)
        spec, problem = None, ""
        if record is not None:
            spec, problem = self._spec(name, record.created, record.value.revision, parsed)
        plan = self._mirror.record(paths.plan(name))
        buckets = self._mirror.rest_of([paths.plan(name)])
        discovery = self._mirror.record(paths.partitions(name))
        shares = self._mirror.rest_of([paths.partitions(name)])
        partitions = self._discovered(discovery, shares)
        version = self._mirror.version(path)
        assert isinstance(version, Version)
        before: FlowSpec | None = None
        lacks = ""
        if record and plan and spec and spec.rollout and plan.value.revision:
            before, lacks = self._spec(name, record.created, plan.value.revision, parsed)
        specs = [text for text in (spec, before) if text is not None]
        if any(text.by_batch for text in specs):
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
            {key: part.weight for key, part in partitions.items() if part.weight},
            self._mirror.unreadable_of(
                path, paths.plan(name), *buckets, paths.partitions(name), *shares
            ),
            0
            if planned
            else self._highest_epoch(name, discovery.value.epoch if discovery else 0, partitions),
            name in self._by_batch,
            partitions,
            any(text.pinned for text in specs),
            bool(partitions) or any(text.partitioned for text in specs),
            discovery.value.scaling.tasks if discovery and discovery.value.scaling else 0,
            spec.replicas if spec and spec.durability == "replicated" else None,
        )
        if lacks and view.rolling:  # the tasks of the earlier revision are unknown
            text = Unreadable(paths.revision(name, str(view.plan.revision)), lacks)
            return replace(view, unreadable=(*view.unreadable, text))
        return view

    def node(self, name: str) -> NodeView | None:
        path, assigned, reported = paths.node(name), paths.assignment(name), paths.status(name)
        if self._mirror.get(path) is None:
            return None
        record, assignment, status = map(self._mirror.record, (path, assigned, reported))
        pages = self._mirror.rest_of([assigned])
        return NodeView(
            name,
            record.value if record else Node(uuid="", roles=(), desired="unknown"),
            live=self._mirror.get(paths.live_node(name)) is not None,
            assignment=whole(assignment.value, [self._mirror.record(page) for page in pages])
            if assignment
            else Assignment(),
            assignment_version=self._mirror.version(assigned),
            status=status.value if status else None,
            unreadable=self._mirror.unreadable_of(path, assigned, *pages, reported),
            version=record.version if record else Version(0),
            status_version=self._mirror.version(reported),
        )

    def _highest_epoch(self, flow: str, of_discovery: int, names: Iterable[str]) -> int:
        """Return the highest epoch of acks and discovery, for a flow without a plan."""
        cursors = self._store.children(paths.acks(flow))
        acked = self._store.children_many([paths.cursor(flow, cursor) for cursor in cursors])
        acks = [
            paths.ack(flow, cursor, partition)
            for cursor, partitions in zip(cursors, acked, strict=True)
            for partition in partitions
        ]
        acks += [ack_path(flow, name) for name in names if input_of(name) == FLOW]
        records = self._store.read_each(acks)
        epochs = (ack.value.epoch for ack in records if isinstance(ack, Versioned))
        return max([of_discovery, *epochs])

    def _whole(self, plan: Plan, buckets: Sequence[Path]) -> Plan:
        if not plan.buckets:
            return plan
        records = map(self._mirror.record, buckets)
        return replace(
            plan, tasks=Tasks([bucket.value.tasks if bucket else {} for bucket in records])
        )

    def _discovered(
        self, record: Versioned[Partitions] | None, shares: Sequence[Path]
    ) -> Mapping[str, Partition]:
        if record is None:
            return {}
        combined = discovered.whole(record, [self._mirror.record(share) for share in shares])
        assert isinstance(combined, Versioned)
        return combined.value.partitions

    def _spec(
        self,
        flow: str,
        created: int,
        revision: int,
        parsed: Mapping[tuple[int, int], tuple[FlowSpec | None, str]],
    ) -> tuple[FlowSpec | None, str]:
        """Return the parsed revision, or why it is unreadable. The cache key includes the flow's
        creation, since a recreated flow has another revision 1."""
        key = (created, revision)
        kept = self._specs.setdefault(flow, {})
        if key in parsed:
            kept[key] = parsed[key]
        elif key not in kept:
            (text,) = self._store.read_each([paths.revision(flow, str(revision))])
            if text is None:
                return None, f"revision {revision} does not exist"
            if isinstance(text, Unreadable):
                return None, text.why
            try:
                kept[key] = parse_flow(text.value.effective), ""
            except SpecError as error:
                kept[key] = None, str(error)
        return kept[key]


def lacks_a_text(flow: FlowView) -> bool:
    """Return whether a revision is unreadable or invalid; no watch reports its repair."""
    return bool(flow.problem) or any(error.path.row is paths.revision for error in flow.unreadable)
