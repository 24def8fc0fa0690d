"""Batches that are decided and not acked, and the end of one that nobody can finish.

Collectors finish such a batch by themselves, also when its owner died, unless they cannot repeat it
exactly: a partition of it is gone, its revision is, or its target is gone for good. Then its task
stands still until a person gives the batch up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from flumeng.control.commands.flow_records import require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.snapshot import partitions
from flumeng.control.zookeeper import Put, ReadableStore, Unreadable, Version, Versioned
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths, records

UNKNOWN = records.Intent(epoch=0, series="", number=0, revision=0, splits=1, ranges={})
"""Nothing is decided, and the series begins anew."""


@dataclass(frozen=True)
class DecidedBatch:
    """``ranges``: partition -> first and end offset. ``problem``: why nobody can repeat it, as far
    as ZooKeeper tells; ``newer``: its record is by a newer flumeng, and nothing is known of it."""

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
    """Those of one flow, or of all. Also what a collector is just about to finish is among them."""
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
    """Raises ``ConflictError`` when one of these (flow, partition) is in a batch that is decided:
    that batch could not be acked any more. One that begins meanwhile its task tells of."""
    wanted = set(partitions)
    for flow in sorted({flow for flow, _ in wanted}):
        for batch in decided_batches(store, flow):
            for partition in batch.ranges:
                if (flow, partition) in wanted:
                    raise ConflictError(f"{partition} is in {unfinished(batch)}")


def unfinished(batch: DecidedBatch) -> str:
    """What stands in the way, and what to do about it."""
    return (
        f"batch {batch.number}, which {batch.flow}/{batch.task} has decided to write: when it "
        f"cannot be finished, give it up first with `flumeng ack drop {batch.flow} {batch.task}`"
    )


def require_decided(store: ReadableStore, flow: str, task: str) -> tuple[DecidedBatch, Version]:
    """The batch that the task has decided, and the version of its intent.

    Raises ``UserError`` when there is none, ``ConflictError`` for one of a newer flumeng.
    """
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
    """Give the batch up: its acks stay, and its events are delivered again in other batches.

    Raises as ``require_decided``, ``ConflictError`` when it is finished meanwhile, and
    ``UnavailableError``.
    """
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
    """What the tasks of the flow have decided last."""
    tasks = store.children(paths.intents(flow))
    found = store.read_each([paths.intent(flow, task) for task in tasks])
    return {task: intent for task, intent in zip(tasks, found, strict=True) if intent is not None}


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
