"""Reads a consistent copy of a site in few round trips, in three levels of znodes; with the last
one those that operators may change are read again, and all is repeated if they differ. Acks and
statuses may be of any moment between. With known paths one trip reads each znode at some moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flumeng.control.snapshot import journal_registry, leases, queues
from flumeng.control.snapshot.cluster_copy import ClusterCopy
from flumeng.control.zookeeper import Path, Store
from flumeng.control.zookeeper.transaction import Scale
from flumeng.platform.errors import ConflictError
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN

ATTEMPTS = 5
TOPS = (paths.schema(), paths.cluster(), paths.push())
FOLDERS = (
    paths.flows(),
    paths.nodes(),
    paths.live_nodes(),
    paths.live_masters(),
    paths.journals(),
    paths.push(),
    paths.audits(),
    paths.leases(),
    paths.queues(),
    paths.sites(),
)


@dataclass(frozen=True)
class Shape:
    znodes: tuple[Path, ...]
    folders: tuple[Path, ...]


class SiteCopy(ClusterCopy):
    def __init__(self, scale: Scale, shape: Shape) -> None:
        super().__init__(scale)
        self.shape = shape


def copy_site(store: Store) -> SiteCopy:
    """Return a copy. Raises ``ConflictError`` when the site changes during each of ATTEMPTS."""
    for _ in range(ATTEMPTS):
        reading = _Reading(store)
        if reading.read_at_once():
            return reading.copy()
    raise ConflictError("the site was changed while it was read, again and again: try again")


def reread(store: Store, shape: Shape) -> SiteCopy:
    """Return a copy with the paths in ``shape``; one round trip while these still hold."""
    reading = _Reading(store)
    reading.read_again(shape)
    return reading.copy()


class _Reading:
    """A read of a site. ``_znodes`` and ``_folders``: paths that are part of the copy."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen = ClusterCopy(store.scale)
        self._znodes: dict[str, Path] = {}
        self._folders: dict[str, Path] = {}

    def read_at_once(self) -> bool:
        """Read the site; return whether operators changed nothing during the read."""
        self._read_missing(TOPS, FOLDERS)
        heads = self._heads()
        self._read_missing(*self._second_level())
        before = self._versions(heads)
        others = self._other_cursors()
        again = [*heads, *TOPS]
        self._read_missing(self._third_level(), [paths.flows(), paths.nodes(), *others], again)
        if others:
            self._read_missing([ack for cursor in others for ack in self._acks(cursor)], [])
        return self._versions(heads) == before

    def read_again(self, shape: Shape) -> None:
        self._read(shape.znodes, shape.folders)
        self._read_missing(TOPS, FOLDERS)
        self._read_missing(*self._second_level())
        others = self._other_cursors()
        self._read_missing(self._third_level(), others)
        self._read_missing([ack for cursor in others for ack in self._acks(cursor)], [])

    def copy(self) -> SiteCopy:
        shape = Shape(tuple(self._znodes.values()), tuple(self._folders.values()))
        copy = SiteCopy(self._store.scale, shape)
        for path in shape.znodes:
            copy.keep(path, self._seen.znodes[str(path)])
        copy.folders = {str(path): self._names(path) for path in shape.folders}
        return copy

    def _read_missing(
        self, znodes: Sequence[Path], folders: Sequence[Path], again: Sequence[Path] = ()
    ) -> None:
        """Read unread znodes and folders; ``again``: znodes to reread, with all ``folders``."""
        self._znodes |= {str(path): path for path in znodes}
        self._folders |= {str(path): path for path in folders}
        missing = [path for path in znodes if str(path) not in self._seen.znodes]
        unlisted = [path for path in folders if again or str(path) not in self._seen.folders]
        if missing or unlisted or again:
            self._read([*missing, *again], unlisted)

    def _read(self, znodes: Sequence[Path], folders: Sequence[Path]) -> None:
        read, listed = self._store.look(znodes, folders)
        for path, znode in zip(znodes, read, strict=True):
            self._seen.keep(path, znode)
        self._seen.folders |= zip(map(str, folders), listed, strict=True)

    def _heads(self) -> list[Path]:
        return [
            *(paths.flow(name) for name in self._names(paths.flows())),
            *(paths.node(name) for name in self._names(paths.nodes())),
        ]

    def _versions(self, heads: Iterable[Path]) -> list[object]:
        znodes = [self._seen.znodes[str(path)] for path in (*heads, *TOPS)]
        listed = [self._names(paths.flows()), self._names(paths.nodes())]
        return [*listed, *((znode.created, znode.version) if znode else None for znode in znodes)]

    def _second_level(self) -> tuple[list[Path], list[Path]]:
        flows, nodes = self._names(paths.flows()), self._names(paths.nodes())
        live = self._names(paths.live_nodes())
        znodes: list[Path] = [paths.moves()]
        znodes += [
            row(flow)
            for flow in flows
            for row in (paths.flow, paths.plan, paths.partitions, paths.link, paths.breaks)
        ]
        znodes += [
            row(node) for node in nodes for row in (paths.node, paths.assignment, paths.status)
        ]
        znodes += [paths.status(node) for node in live if node not in set(nodes)]
        znodes += [paths.live_node(node) for node in sorted({*live, *nodes})]
        znodes += [paths.live_master(name) for name in self._names(paths.live_masters())]
        znodes += [paths.journal(name) for name in self._names(paths.journals())]
        znodes += [paths.site(name) for name in self._names(paths.sites())]
        znodes += [paths.lease(*name) for name in leases.names(self._seen)]
        folders: list[Path] = [
            row(flow)
            for flow in flows
            for row in (paths.revisions, paths.acks, paths.commits, paths.intents)
        ]
        folders += [paths.cursor(flow, CURSOR_MAIN) for flow in flows]
        folders += [paths.queue_failures(flow) for flow in self._names(paths.queues())]
        return znodes, folders

    def _third_level(self) -> list[Path]:
        znodes: list[Path] = []
        for flow in self._names(paths.flows()):
            named = map(self._seen.record, (paths.flow(flow), paths.plan(flow)))
            revisions = {str(record.value.revision) for record in named if record}
            znodes += [paths.revision(flow, number) for number in sorted(revisions - {"0"})]
            znodes += self._seen.rest_of([paths.plan(flow), paths.partitions(flow)])
            znodes += self._acks(paths.cursor(flow, CURSOR_MAIN))
            znodes += [paths.intent(flow, task) for task in self._names(paths.intents(flow))]
        for flow in self._names(paths.queues()):
            failed = self._names(paths.queue_failures(flow))[: queues.FAILURES_READ]
            znodes += [paths.queue_failure(flow, name) for name in failed]
        for name in self._names(paths.journals()):
            path = paths.journal(name)
            journal = self._seen.znodes[str(path)]
            if journal is not None:
                own = journal_registry.record_or_derived(path, journal)
                cursors = self._seen.folders.get(str(paths.acks(own.flow)), [CURSOR_MAIN])
                znodes += [paths.ack(own.flow, cursor, name) for cursor in cursors]
        znodes += self._seen.rest_of(map(paths.assignment, self._names(paths.nodes())))
        return list(dict.fromkeys(znodes))

    def _other_cursors(self) -> list[Path]:
        return [
            paths.cursor(flow, cursor)
            for flow in self._names(paths.flows())
            for cursor in self._names(paths.acks(flow))
            if cursor != CURSOR_MAIN
        ]

    def _acks(self, cursor: Path) -> list[Path]:
        flow = cursor.path.split("/")[2]
        return [paths.ack(flow, cursor.name, partition) for partition in self._names(cursor)]

    def _names(self, folder: Path) -> Sequence[str]:
        return [*self._seen.folders[str(folder)]]
