"""Two-phase commit of files and acks: staging, commit records and recovery.

A batch is staged below ``ROOT/_flumeng/PARTITION.EPOCH.UUID``. One transaction moves its acks and
creates its commit record, which lists every rename. From then on any process may finish the commit,
any number of times: a rename takes effect once, and a record's name is used once.

A staging directory without a record belongs to an undecided batch, and the next owner removes it.
This is safe even when an old owner wakes up late, because of the order: *list, claim, finish
records, remove the listed directories*. The claim has fenced the acks under which they were staged.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from flumeng.agent.collector.ack import Acks
from flumeng.connectors.api.ranged import Progress, Range
from flumeng.connectors.api.sink import BatchTooWideError
from flumeng.control.zookeeper import ABSENT, ANY, Path, Put, Store, Write
from flumeng.platform.errors import ConflictError, CorruptError, UnavailableError, UserError
from flumeng.platform.file_store import FileStore, below, open_store
from zkschema import codec, paths
from zkschema.records import Commit

log = logging.getLogger(__name__)

OpenStore = Callable[[str], tuple[FileStore, str]]
STAGING = "_flumeng"
UNREACHED = (UnavailableError, OSError)


class Commits:
    """Commits of one task. ``open_store`` resolves a URI to its file store and path."""

    def __init__(
        self, store: Store, flow: str, task: str, open_store: OpenStore = open_store
    ) -> None:
        self._store = store
        self._flow = flow
        self._task = task
        self._open_store = open_store

    def leftovers(
        self, roots: Iterable[str], partitions: Iterable[str], spare: Collection[str] = ()
    ) -> list[str]:
        """List the staging directories of ``partitions``; call this before claiming them.
        Unreachable roots in ``spare`` are skipped, for a later owner."""
        mine = frozenset(partitions)
        staged = []
        for root in sorted(set(roots)):
            store, path = self._open_store(below(root, STAGING))
            try:
                names = store.directories(path)
            except UNREACHED as error:
                if root not in spare:
                    raise
                log.warning(
                    "task %s/%s goes on without directory %s, as its group has other sinks; files "
                    "that earlier owners staged there are removed when it is reachable: %s",
                    *(self._flow, self._task, root, error),
                )
                continue
            own = (name for name in names if name.rsplit(".", 2)[0] in mine)
            staged += [below(root, STAGING, name) for name in own]
        return staged

    def recover(self, leftovers: Sequence[str]) -> None:
        """Finish every decided batch of the flow, also of other tasks, then remove the directories
        ``leftovers``. Call this after claiming and before staging. A record that cannot be finished
        raises in its own task only; its staging directories stay."""
        removable = set(leftovers)
        for name in self._store.children(paths.commits(self._flow)):
            path = paths.commit(self._flow, name)
            own = name.partition("@")[0] == self._task
            staged: Iterable[str] = leftovers
            try:
                record = self._store.read(path)
                if record is None:
                    continue
                staged = record.value.staging
                log.info("task %s/%s is about to finish commit %s", self._flow, self._task, name)
                self._finish(path, record.value)
            except (CorruptError, UnavailableError, UserError, OSError) as error:
                if own:
                    raise
                log.error(
                    "task %s/%s cannot finish the commit %s, which is left to a later owner: %s",
                    *(self._flow, self._task, name, error),
                )
                removable -= set(staged)
        self._remove(*sorted(removable))

    def name(self, root: str, partition: str, epoch: int) -> str:
        """Return the URI of a new staging directory of ``partition``; it is not created yet."""
        staging = below(root, STAGING, f"{partition}.{epoch}.{uuid.uuid4().hex}")
        self._open_store(staging)
        return staging

    def stage(self, root: str, partition: str, epoch: int) -> str:
        staging = self.name(root, partition, epoch)
        store, path = self._open_store(staging)
        store.make_directory(path)
        return staging

    def record(
        self, epoch: int, staging: Sequence[str], files: Sequence[tuple[str, str]]
    ) -> Commit:
        """Return a commit record. Raises BatchTooWideError when it does not fit into a znode."""
        record = Commit(epoch=epoch, staging=tuple(staging), files=tuple(files))
        if len(codec.encode(record)) > paths.commit.size_bytes:
            raise BatchTooWideError(f"a batch has {len(files)} files, too many for a record")
        return record

    def commit(
        self,
        acks: Acks,
        ranges: Sequence[Range],
        record: Commit,
        also: Sequence[Write] = (),
        joined: Mapping[str, Progress] | None = None,
    ) -> None:
        """Move the acks and write the commit record (none without files) in one transaction with
        the writes ``also``, then rename the files; see ``Acks.advance``. After ConflictError
        nothing is decided; after any other error the batch may be decided: claim and recover."""
        if not record.files:
            acks.advance(ranges, also, joined)
            self._remove(*record.staging)
            return
        path = paths.commit(self._flow, f"{self._task}@{uuid.uuid4().hex}")
        acks.advance(ranges, [*also, Put(path, record, ABSENT)], joined)
        self._finish(path, record)

    def publish(self, staging: Sequence[str], files: Sequence[tuple[str, str]]) -> None:
        """Rename staged files to targets without a record: a crash may lose or repeat them. Raises
        UnavailableError for a file that is neither staged nor published."""
        missing = self._rename(files)
        if missing:
            raise UnavailableError(f"staged {missing[0][0]} was removed, perhaps by a later owner")
        self._remove(*staging)

    def discard(self, staging: Iterable[str]) -> None:
        """Remove staging directories; unreachable ones are left to a later owner."""
        for directory in staging:
            try:
                self._remove(directory)
            except UNREACHED as error:
                log.warning(
                    "task %s/%s cannot delete the staging directory %s, a later owner will: %s",
                    *(self._flow, self._task, directory, error),
                )

    def _finish(self, path: Path, record: Commit) -> None:
        missing = self._rename(record.files)
        staged = map(self._open_store, record.staging)
        if missing and self._store.exists(path) and not all(s.exists(at) for s, at in staged):
            raise CorruptError(
                f"{missing[0][0]} and {len(missing) - 1} more files of the decided commit {path} "
                f"are neither staged nor published: restore them, or give them up with "
                f"`flumeng ack drop {self._flow} {path.name}`"
            )
        if missing:
            log.warning("commit %s: %d files were published, and removed since", path, len(missing))
        try:
            self._store.remove(path, ANY)
        except ConflictError:
            log.info("commit %s was finished by another owner as well, which is harmless", path)
        self._remove(*record.staging)

    def _rename(self, files: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Rename files; return the moves with neither source nor target."""
        by_store: defaultdict[FileStore, list[tuple[str, str]]] = defaultdict(list)
        for source, target in files:
            store, source_path = self._open_store(source)
            by_store[store].append((source_path, self._open_store(target)[1]))
        return [missing for store, moves in by_store.items() for missing in store.rename(moves)]

    def _remove(self, *staging: str) -> None:
        for store, path in map(self._open_store, staging):
            store.remove_tree(path)
