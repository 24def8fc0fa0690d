"""Decided, unfinished batches and commits, and how to give them up. Collectors finish both, but
cannot repeat a batch (``/intents``) without its partition, revision or target, nor finish a commit
without its staged files. Its task stops until these are restored or an operator drops it."""

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
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths, records

UNKNOWN = records.Intent(epoch=0, series="", number=0, revision=0, splits=1, ranges={})
"""Stands for an unreadable intent; the series begins again."""


@dataclass(frozen=True)
class DecidedBatch:
    """``ranges``: partition -> first and end offset. ``problem``: why it cannot be repeated."""

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
    """Includes batches that a collector is about to finish. ``flow`` None: all flows."""
    if flow is not None:
        require_flow(store, flow)
    flows = store.children(paths.all_intents()) if flow is None else [flow]
    batches = [
        _batch(name, task, found)
        for name in flows
        for task, found in intents_of(store, name).items()
        if isinstance(found, Unreadable) or found.value.ranges
    ]
    return _with_problems(store, batches) if batches else []


def refuse_decided(store: ReadableStore, partitions: Iterable[tuple[str, str]]) -> None:
    """Raises ``ConflictError`` for a (flow, partition) in a decided batch, which needs its acks."""
    wanted = set(partitions)
    for flow in sorted({flow for flow, _ in wanted}):
        for batch in decided_batches(store, flow):
            for partition in batch.ranges:
                if (flow, partition) in wanted:
                    raise ConflictError(f"{partition} is in {unfinished(batch)}")


def unfinished(batch: DecidedBatch) -> str:
    return (
        f"batch {batch.number}, which {batch.flow}/{batch.task} has decided to write: when it "
        f"cannot be finished, give it up first with `flumeng ack drop {batch.flow} {batch.task}`"
    )


def require_decided(store: ReadableStore, flow: str, task: str) -> tuple[DecidedBatch, Version]:
    """The decided batch and its intent's version. Raises ``UserError`` without one,
    ``ConflictError`` for one of a newer flumeng."""
    known = {batch.task: batch for batch in decided_batches(store, flow)}
    (found,) = store.read_each([paths.intent(flow, task)]) if task in known else (None,)
    if found is None:
        hint = nearest(task, known) if known else "no task of it has"
        raise UserError(f'flow {flow} has no task "{task}" that has decided a batch; {hint}')
    if known[task].newer:
        raise ConflictError(
            f"{known[task].problem}: collectors of that flumeng can finish the batch, or run its "
            "`ack drop`"
        )
    return known[task], found.version


def drop_batch(operator: Operator, flow: str, task: str) -> DecidedBatch:
    """Give up the batch; its events are delivered again. Raises as ``require_decided``."""
    store = operator.store
    batch, version = require_decided(store, flow, task)
    path = paths.intent(flow, task)
    (found,) = store.read_each([path])
    record = found.value if isinstance(found, Versioned) else UNKNOWN
    read = ", ".join(f"{name} {start}-{end}" for name, (start, end) in batch.ranges.items())
    command = f"ack drop {flow} {task}: gave up batch {batch.number} ({read or 'unreadable'})"
    operator.commit([Put(path, replace(record, ranges={}), version)], command)
    return batch


def intents_of(
    store: ReadableStore, flow: str
) -> dict[str, Versioned[records.Intent] | Unreadable]:
    """Task -> its last intent."""
    tasks = store.children(paths.intents(flow))
    found = found_by_name(store, lambda task: paths.intent(flow, task), tasks)
    return {task: intent for task, intent in found.items() if intent is not None}


def _batch(flow: str, task: str, found: Versioned[records.Intent] | Unreadable) -> DecidedBatch:
    if isinstance(found, Unreadable):
        return DecidedBatch(flow, task, problem=str(found), newer=found.newer)
    intent = found.value
    return DecidedBatch(flow, task, intent.number, intent.revision, dict(intent.ranges))


def _with_problems(store: ReadableStore, batches: list[DecidedBatch]) -> list[DecidedBatch]:
    registered = partitions.of_flows(store, sorted({batch.flow for batch in batches}))
    revisions = {
        flow: set(store.children(paths.revisions(flow))) for flow in {b.flow for b in batches}
    }
    found = []
    for batch in batches:
        gone = sorted(name for name in batch.ranges if name not in registered[batch.flow])
        problem = batch.problem
        if gone:
            problem = f"{gone[0]} is gone" + (f", and {len(gone) - 1} more" if gone[1:] else "")
        elif not problem and str(batch.revision) not in revisions[batch.flow]:
            problem = f"revision {batch.revision} is gone"
        found.append(replace(batch, problem=problem))
    return found


@dataclass(frozen=True)
class UnfinishedCommit:
    """``files``: (staged, final) pairs; ``staging``: directories. ``problem``: a read error."""

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


def unfinished_commits(store: Store, flow: str | None = None) -> list[UnfinishedCommit]:
    """Includes commits that a collector is about to finish. ``flow`` None: all flows."""
    if flow is not None:
        require_flow(store, flow)
    flows = store.children(paths.all_commits()) if flow is None else [flow]
    wanted = [(name, commit) for name in flows for commit in store.children(paths.commits(name))]
    found = store.read_each([paths.commit(*one) for one in wanted])
    return [_unfinished(*one, record) for one, record in zip(wanted, found, strict=True) if record]


def whereabouts(commit: UnfinishedCommit, exists: Callable[[str], bool]) -> Whereabouts:
    """``exists``: whether this host sees a file."""
    away = [(source, target) for source, target in commit.files if not exists(target)]
    staged = {source for source, _ in away if exists(source)}
    return Whereabouts(
        tuple(sorted(staged)), tuple(target for source, target in away if source not in staged)
    )


def require_lost(
    store: Store, flow: str, name: str, exists: Callable[[str], bool]
) -> tuple[Whereabouts, Version]:
    """Files that no collector can commit, and the version. Raises ``UserError`` for an unknown
    commit, ``ConflictError`` when none is missing, one is staged, or the storage is not visible
    here."""
    known = {commit.name: commit for commit in unfinished_commits(store, flow)}
    (record,) = store.read_each([paths.commit(flow, name)]) if name in known else (None,)
    if record is None:
        hint = nearest(name, known) if known else "it has none that is unfinished"
        raise UserError(f'flow {flow} has no commit "{name}"; {hint}')
    commit = _unfinished(flow, name, record)
    if commit.newer:
        raise ConflictError(
            f"{commit.problem}: collectors of that flumeng can finish it, or run its `ack drop`"
        )
    for root in sorted({_root(staging) for staging in commit.staging}):
        if not exists(root):
            raise ConflictError(
                f"this host does not see {root}: run it where the sink's storage is, or make that "
                "directory there if it was removed"
            )
    found = whereabouts(commit, exists)
    if found.staged:
        raise ConflictError(
            f"{found.staged[0]} is still staged: a collector brings it to its place; look again"
        )
    if not found.missing and not commit.problem:
        raise ConflictError(
            f"all files of commit {name} are at their place, as this host sees: a collector "
            "finishes it by itself"
        )
    return found, record.version


def drop_commit(
    operator: Operator, flow: str, name: str, exists: Callable[[str], bool]
) -> Whereabouts:
    """Give up the commit's missing files. Raises as ``require_lost``."""
    found, version = require_lost(operator.store, flow, name, exists)
    command = f"ack drop {flow} {name}: gave up {len(found.missing)} files"
    operator.commit([Remove(paths.commit(flow, name), version)], command)
    return found


def _root(staging: str) -> str:
    """The directory in which all batches of the sink are staged."""
    place, mark, query = staging.partition("?")
    return f"{place.rpartition('/')[0]}{mark}{query}"


def _unfinished(
    flow: str, name: str, found: Versioned[records.Commit] | Unreadable
) -> UnfinishedCommit:
    if isinstance(found, Unreadable):
        return UnfinishedCommit(flow, name, problem=str(found), newer=found.newer)
    return UnfinishedCommit(flow, name, found.value.files, staging=found.value.staging)
