"""Lists and gives up batches and commits that are decided but unfinished. Collectors finish them,
but cannot repeat a batch (``/intents``) without its partition, revision or target, nor finish a
commit without its staged files: the task stops until these are restored or given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from flumeng.control.commands.lookup import found_by_name, require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot import partitions
from flumeng.control.zookeeper import (
    Put,
    ReadableStore,
    Remove,
    Store,
    Unreadable,
    Version,
    Versioned,
)
from flumeng.platform.errors import ConflictError, UnknownNameError
from flumeng.platform.options.problems import nearest
from zkschema import paths, records

UNKNOWN = records.Intent(epoch=0, series="", number=0, revision=0, splits=1, ranges={})
"""Replaces an unreadable intent; the series starts again."""


@dataclass(frozen=True)
class DecidedBatch:
    """A decided, unacked batch. ``ranges``: first and end offset by partition. ``problem``: why the
    batch cannot be repeated."""

    flow: str
    task: str
    number: int = 0
    revision: int = 0
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    problem: str = ""
    newer: bool = False

    @property
    def events(self) -> int:
        return sum(end - start for start, end in self.ranges.values())


def decided_batches(store: ReadableStore, flow: str | None = None) -> list[DecidedBatch]:
    """Return the decided, unfinished and the unreadable batches of a flow (None: of all flows)."""
    if flow is not None:
        require_flow(store, flow)
    flows = store.children(paths.all_intents()) if flow is None else [flow]
    batches = [
        _batch(name, task, intent)
        for name in flows
        for task, intent in intents_of(store, name).items()
        if isinstance(intent, Unreadable) or intent.value.ranges
    ]
    return _with_problems(store, batches) if batches else []


def refuse_decided(store: ReadableStore, partitions: Iterable[tuple[str, str]]) -> None:
    """Raises ``ConflictError`` for a (flow, partition) in a decided batch, which needs its ack."""
    pairs = set(partitions)
    for flow in sorted({flow for flow, _ in pairs}):
        for batch in decided_batches(store, flow):
            for partition in batch.ranges:
                if (flow, partition) in pairs:
                    raise ConflictError(f"partition {partition} is in {unfinished(batch)}")


def unfinished(batch: DecidedBatch) -> str:
    return (
        f"batch {batch.number}, which task {batch.flow}/{batch.task} has decided to write: if it "
        f"cannot be finished, give it up first with `flumeng ack drop {batch.flow} {batch.task}`"
    )


def require_decided(store: ReadableStore, flow: str, task: str) -> tuple[DecidedBatch, Version]:
    """Return the decided batch and its intent's version. Raises ``UserError`` without a batch,
    ``ConflictError`` for one of a newer flumeng."""
    batches = {batch.task: batch for batch in decided_batches(store, flow)}
    (intent,) = store.read_each([paths.intent(flow, task)]) if task in batches else (None,)
    if intent is None:
        hint = nearest(task, batches) if batches else "it has no decided batches"
        raise UnknownNameError(f'flow {flow} has no decided batch of task "{task}"; {hint}')
    if batches[task].newer:
        raise ConflictError(
            f"{batches[task].problem}: collectors of that version can finish the batch, or use its "
            "`ack drop`"
        )
    return batches[task], intent.version


def drop_batch(operator: Operator, flow: str, task: str) -> DecidedBatch:
    """Give up the batch; its events are delivered again. Raises as ``require_decided``."""
    store = operator.store
    batch, version = require_decided(store, flow, task)
    path = paths.intent(flow, task)
    (current,) = store.read_each([path])
    record = current.value if isinstance(current, Versioned) else UNKNOWN
    read = ", ".join(f"{name} {start}-{end}" for name, (start, end) in batch.ranges.items())
    command = f"ack drop {flow} {task}: gave up batch {batch.number} ({read or 'unreadable'})"
    operator.commit([Put(path, replace(record, ranges={}), version)], command)
    return batch


def intents_of(
    store: ReadableStore, flow: str
) -> dict[str, Versioned[records.Intent] | Unreadable]:
    """Return each task's last intent."""
    tasks = store.children(paths.intents(flow))
    intents = found_by_name(store, lambda task: paths.intent(flow, task), tasks)
    return {task: intent for task, intent in intents.items() if intent is not None}


def _batch(flow: str, task: str, current: Versioned[records.Intent] | Unreadable) -> DecidedBatch:
    if isinstance(current, Unreadable):
        return DecidedBatch(flow, task, problem=str(current), newer=current.newer)
    intent = current.value
    return DecidedBatch(flow, task, intent.number, intent.revision, dict(intent.ranges))


def _with_problems(store: ReadableStore, batches: list[DecidedBatch]) -> list[DecidedBatch]:
    registered = partitions.of_flows(store, sorted({batch.flow for batch in batches}))
    revisions = {
        flow: set(store.children(paths.revisions(flow))) for flow in {b.flow for b in batches}
    }
    checked = []
    for batch in batches:
        gone = sorted(name for name in batch.ranges if name not in registered[batch.flow])
        problem = batch.problem
        if gone:
            problem = f"{gone[0]} is gone" + (f", and {len(gone) - 1} more" if gone[1:] else "")
        elif not problem and str(batch.revision) not in revisions[batch.flow]:
            problem = f"revision {batch.revision} is gone"
        checked.append(replace(batch, problem=problem))
    return checked


@dataclass(frozen=True)
class UnfinishedCommit:
    """A commit of staged files: ``files`` are pairs (staged, final), ``problem`` is a read error,
    ``staging`` are directories."""

    flow: str
    name: str
    files: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    newer: bool = False
    staging: tuple[str, ...] = ()

    @property
    def task(self) -> str:
        return self.name.partition("@")[0]


@dataclass(frozen=True)
class Whereabouts:
    staged: tuple[str, ...]
    missing: tuple[str, ...]


def unfinished_commits(store: ReadableStore, flow: str | None = None) -> list[UnfinishedCommit]:
    """Return the unfinished commits of a flow (None: of all flows)."""
    if flow is not None:
        require_flow(store, flow)
    flows = store.children(paths.all_commits()) if flow is None else [flow]
    keys = [(name, commit) for name in flows for commit in store.children(paths.commits(name))]
    read = store.read_each([paths.commit(*key) for key in keys])
    return [_unfinished(*key, record) for key, record in zip(keys, read, strict=True) if record]


def whereabouts(commit: UnfinishedCommit, exists: Callable[[str], bool]) -> Whereabouts:
    """Return the files not in place: staged paths, and final paths of those that are missing.
    ``exists``: whether this host sees a file."""
    away = [(source, target) for source, target in commit.files if not exists(target)]
    staged = {source for source, _ in away if exists(source)}
    return Whereabouts(
        tuple(sorted(staged)), tuple(target for source, target in away if source not in staged)
    )


def require_lost(
    store: Store, flow: str, name: str, exists: Callable[[str], bool]
) -> tuple[Whereabouts, Version]:
    """Return the files that no collector can commit, and the version. Raises ``UserError`` for an
    unknown commit, ``ConflictError`` if a collector can finish it or storage is invisible."""
    commits = {commit.name: commit for commit in unfinished_commits(store, flow)}
    (record,) = store.read_each([paths.commit(flow, name)]) if name in commits else (None,)
    if record is None:
        hint = nearest(name, commits) if commits else "it has no unfinished commit"
        raise UnknownNameError(f'flow {flow} has no commit "{name}"; {hint}')
    commit = _unfinished(flow, name, record)
    if commit.newer:
        raise ConflictError(
            f"{commit.problem}: collectors of that version can finish it, or use its `ack drop`"
        )
    for root in sorted({_root(staging) for staging in commit.staging}):
        if not exists(root):
            raise ConflictError(
                f"this host does not see {root}: run this where the sink's storage is, or create "
                "that directory there if it was removed"
            )
    files = whereabouts(commit, exists)
    if files.staged:
        raise ConflictError(
            f"{files.staged[0]} is still staged: a collector moves it into place; try again"
        )
    if not files.missing and not commit.problem:
        raise ConflictError(
            f"this host sees all files of commit {name} in place: a collector finishes it "
            "automatically"
        )
    return files, record.version


def drop_commit(
    operator: Operator, flow: str, name: str, exists: Callable[[str], bool]
) -> Whereabouts:
    """Give up the commit's missing files, and return them. Raises as ``require_lost``."""
    files, version = require_lost(operator.store, flow, name, exists)
    command = f"ack drop {flow} {name}: gave up {len(files.missing)} files"
    operator.commit([Remove(paths.commit(flow, name), version)], command)
    return files


def _root(staging: str) -> str:
    """Return the directory in which all batches of the sink are staged."""
    path, mark, query = staging.partition("?")
    return f"{path.rpartition('/')[0]}{mark}{query}"


def _unfinished(
    flow: str, name: str, current: Versioned[records.Commit] | Unreadable
) -> UnfinishedCommit:
    if isinstance(current, Unreadable):
        return UnfinishedCommit(flow, name, problem=str(current), newer=current.newer)
    return UnfinishedCommit(flow, name, current.value.files, staging=current.value.staging)
