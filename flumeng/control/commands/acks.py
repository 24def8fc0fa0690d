"""Advances, resets and deletes acks. A reset raises the epoch of the flow's plan in its first
transaction, so that an owner with an older epoch is fenced at its next write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flumeng.control.commands import lease_breaks
from flumeng.control.commands.lookup import found_by_name, refuse_deleted, require_flow
from flumeng.control.commands.operator import Operator, room_bytes
from flumeng.control.commands.unfinished_writes import (
    decided_batches,
    intents_of,
    refuse_decided,
    unfinished,
)
from flumeng.control.snapshot import partitions
from flumeng.control.snapshot.assignment_pages import read_assignment
from flumeng.control.snapshot.task_map import Tasks, next_version, plan_writes, read_plan
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Check,
    Put,
    Remove,
    Store,
    Unreadable,
    Versioned,
    Write,
)
from flumeng.control.zookeeper.transaction import portions, singly
from flumeng.platform.errors import ConflictError, UnknownNameError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths, records
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import COLLECT, Lease

RESTING = ("suspended", "stopped")
NAMED_WRITES = 400
"""The most writes in one transaction, since its audit entry names the partition of each."""


@dataclass(frozen=True)
class Advanced:
    """An ack that advances: the events from ``acked`` up to ``floor`` are skipped."""

    journal: str
    flow: str
    cursor: str
    acked: int
    floor: int

    @property
    def events(self) -> int:
        return self.floor - self.acked


@dataclass(frozen=True)
class Advances:
    """Acks that advance. ``unreadable``: unreadable journals and acks, which stay unchanged."""

    advanced: tuple[Advanced, ...]
    unreadable: tuple[Unreadable, ...] = ()


def behind(store: Store, floors: Mapping[str, int]) -> Advances:
    """Return the acks below the ``floors`` (oldest retained offset by journal)."""
    advances, unreadable = _advances(store, floors)
    return Advances(tuple(advanced for advanced, _ in advances), unreadable)


def advance_acks(operator: Operator, floors: Mapping[str, int]) -> Advances:
    """Raise acks to the oldest retained offset of their journal; return the changed ones.
    Idempotent. Raises ``ConflictError`` for an ack in a decided batch."""
    store = operator.store
    advances, unreadable = _advances(store, floors)
    refuse_decided(store, ((advanced.flow, advanced.journal) for advanced, _ in advances))
    operator.commit_each((put for _, put in advances), lambda names: f"ack advance {names}")
    return Advances(tuple(advanced for advanced, _ in advances), unreadable)


def _advances(
    store: Store, floors: Mapping[str, int]
) -> tuple[list[tuple[Advanced, Put]], tuple[Unreadable, ...]]:
    journals = found_by_name(store, paths.journal, sorted(floors))
    flows = {name: j.value.flow for name, j in journals.items() if isinstance(j, Versioned)}
    cursors = {flow: store.children(paths.acks(flow)) for flow in set(flows.values())}
    places = [(name, flow, cursor) for name, flow in flows.items() for cursor in cursors[flow]]
    acks = store.read_each([paths.ack(flow, cursor, name) for name, flow, cursor in places])
    advances = []
    for (name, flow, cursor), ack in zip(places, acks, strict=True):
        if isinstance(ack, Unreadable):
            continue
        before = ack.value if ack else records.Ack(epoch=0, offset=0)
        if before.offset < floors[name]:
            moved = replace(
                before, offset=max(floors[name], before.emitted), joined=None, leader_epoch=None
            )
            put = Put(paths.ack(flow, cursor, name), moved, ack.version if ack else ABSENT)
            advances.append((Advanced(name, flow, cursor, before.offset, floors[name]), put))
    return advances, tuple(r for r in (*journals.values(), *acks) if isinstance(r, Unreadable))


@dataclass(frozen=True)
class Reset:
    """A changed position of a flow in a partition."""

    partition: str
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.partition} {self.before} to {self.after}"

    @property
    def skipped(self) -> int:
        return max(0, self.after - self.before)

    @property
    def repeated(self) -> int:
        return max(0, self.before - self.after)


@dataclass(frozen=True)
class _Move:
    """A change of one ack. ``registered`` refuses a first ack of a deregistered partition."""

    flow: str
    reset: Reset
    ack: Versioned[records.Ack] | None
    registered: Check

    def put(self, epoch: int) -> Put:
        before = self.ack.value if self.ack else records.Ack(epoch=0, offset=0)
        path = partitions.ack_path(self.flow, self.reset.partition)
        after = replace(
            before, epoch=epoch, offset=self.reset.after, joined=None, leader_epoch=None
        )
        return Put(path, after, self.ack.version if self.ack else ABSENT)


def require_resting(store: Store, flow: str) -> Versioned[records.Flow]:
    """Return the flow's record. Raises UserError, ``ConflictError`` unless suspended or stopped."""
    current = require_flow(store, flow)
    refuse_deleted(flow, current.value, "its acks are removed with it")
    if current.value.state not in RESTING:
        raise ConflictError(
            f"flow {flow} is {current.value.state}: `flumeng flow pause {flow}` first"
        )
    return current


def still_collected(store: Store, flow: str) -> list[str]:
    """Return the tasks and nodes that may still collect the flow, as one line of text each."""
    plan = read_plan(store, flow)
    planned = plan.value.tasks if plan else {}
    decided = {batch.task: batch for batch in decided_batches(store, flow)} if planned else {}
    lines = [
        f"task {flow}/{name} is still planned on node {task.node or '-'}"
        + (f": {unfinished(decided[name])}" if name in decided else "")
        for name, task in planned.items()
        if task.kind == COLLECT
    ]
    return lines or list(_on_nodes(store, flow))


def resets(store: Store, flow: str, offsets: Mapping[str, int]) -> tuple[Reset, ...]:
    """Return the changes that ``reset_acks`` would make, also while the flow is still collected.
    Raises its other errors."""
    refuse_decided(store, ((flow, name) for name in offsets))
    return tuple(move.reset for move in _moves(store, flow, offsets))


def reset_acks(operator: Operator, flow: str, offsets: Mapping[str, int]) -> tuple[Reset, ...]:
    """Set the flow's offsets by partition; return the changes. Idempotent. Raises ``UserError`` for
    an unknown partition, ``ConflictError`` in a decided batch or while the flow is collected."""
    store = operator.store
    current = require_resting(store, flow)
    plan = read_plan(store, flow)
    if still := still_collected(store, flow):
        raise ConflictError(f"{still[0]}; wait until no node has a task of the flow")
    undecided = [  # fail when a task of the flow decides a batch meanwhile
        Check(paths.intent(flow, task), intent.version)
        for task, intent in intents_of(store, flow).items()
    ]
    refuse_decided(store, ((flow, name) for name in offsets))
    moves = _moves(store, flow, offsets)
    epoch = 1 + max(
        plan.value.epoch if plan else 0,
        max((move.ack.value.epoch for move in moves if move.ack), default=0),
    )
    unchanged: list[Write] = [Check(paths.flow(flow), current.version), *undecided]
    guards = _raise_epoch(flow, plan, epoch)
    for part in portions(
        store.scale,
        moves,
        lambda move: [move.registered, move.put(epoch)],
        each=[*guards, *unchanged],
        room_bytes=room_bytes(store.scale),
        most=NAMED_WRITES,
    ):
        fresh = {move.registered: None for move in part if move.ack is None}
        changes = ", ".join(str(move.reset) for move in part)
        command = f"flow reset {flow}: {changes}"
        puts = [move.put(epoch) for move in part]
        operator.commit([*guards, *unchanged, *fresh, *puts], command)
        guards = [Check(paths.plan(flow), next_version(plan.version if plan else ABSENT))]
    return tuple(move.reset for move in moves)


def reset_document(
    flow: str, offsets: Mapping[str, int], changes: Sequence[Reset], accepted: Mapping[str, str]
) -> dict[str, Any]:
    """Return the JSON of `flow reset`."""
    rows = [{**asdict(r), "skipped": r.skipped, "repeated": r.repeated} for r in changes]
    return {"flow": flow, "partitions": len(offsets), "resets": rows, "accepted": {**accepted}}


def total(changes: Sequence[Reset]) -> str:
    """Return how many events are skipped and repeated, as text."""
    skipped, repeated = sum(r.skipped for r in changes), sum(r.repeated for r in changes)
    return (
        f"{skipped} event{'' if skipped == 1 else 's'} skipped and {repeated} repeated in "
        f"{len(changes)} partition{'' if len(changes) == 1 else 's'}"
    )


def accept(operator: Operator, flow: str, to: Mapping[str, str]) -> None:
    """Let the discovery task read held-back partitions; ``to``: the start of each."""
    record = operator.store.read(paths.partitions(flow))
    if record is None:
        raise ConflictError(f"flow {flow} has no partitions any more: try again")
    accepted = {**record.value.accepted, **to}
    starts = ", ".join(f"{partition} from {start}" for partition, start in to.items())
    command = f"flow reset {flow}: accepted {starts}"
    after = replace(record.value, accepted=accepted)
    operator.commit([Put(paths.partitions(flow), after, record.version)], command)


def _on_nodes(store: Store, flow: str) -> Iterator[str]:
    nodes = store.children(paths.live_nodes())
    assignments = store.read_each([paths.assignment(node) for node in nodes])
    statuses = store.read_each([paths.status(node) for node in nodes])
    for node, assignment, status in zip(nodes, assignments, statuses, strict=True):
        for record in (assignment, status):
            if isinstance(record, Unreadable):
                yield f"the tasks of node {node} are unknown: {record}"
        assigned = assignment.value.tasks if isinstance(assignment, Versioned) else ()
        if isinstance(assignment, Versioned) and assignment.value.pages:
            whole = read_assignment(store, node)
            assigned = whole.value.tasks if whole else ()
        keys = {f"{task.flow}/{task.task}" for task in assigned if task.kind == COLLECT}
        if isinstance(status, Versioned):
            keys.update(key for key, task in status.value.tasks.items() if task.state != "stopped")
        for key in sorted(keys):
            if key.startswith(f"{flow}/{COLLECT}."):
                yield f"node {node} still has task {key}"


def _moves(store: Store, flow: str, offsets: Mapping[str, int]) -> list[_Move]:
    """Return the needed changes of acks; one at its offset changes only if it has ``joined`` lines
    or a ``leader_epoch`` to clear."""
    names = sorted(offsets)
    registered = partitions.registered(store, flow, names)
    for name in names:
        if name not in registered:
            existing = partitions.of_flows(store, [flow])[flow]
            hint = nearest(name, existing) if existing else "it has no partitions"
            raise UnknownNameError(f'flow {flow} has no partition "{name}"; {hint}')
    moves = []
    acks = found_by_name(store, lambda name: partitions.ack_path(flow, name), names)
    for name, ack in acks.items():
        if isinstance(ack, Unreadable):
            raise ack.error
        before = ack.value.emitted if ack else registered[name].start
        bound = ack and (ack.value.joined or ack.value.leader_epoch is not None)
        if before != offsets[name] or bound:
            reset = Reset(name, before, offsets[name])
            moves.append(_Move(flow, reset, ack, registered[name].check))
    return moves


def _raise_epoch(flow: str, plan: Versioned[records.Plan] | None, epoch: int) -> list[Write]:
    if plan is None:
        return [Put(paths.plan(flow), records.Plan(epoch=epoch), ABSENT)]
    tasks = Tasks.of(plan.value.tasks)
    return plan_writes(flow, replace(plan.value, epoch=epoch, tasks=tasks), tasks, plan.version)


def delete_cursor(operator: Operator, flow: str, cursor: str) -> None:
    """Delete an external reader's cursor. A reader at another site gets the operator's name and
    reason. Raises ``UserError`` for any other, ``ConflictError`` if it is changed meanwhile."""
    store = operator.store
    require_flow(store, flow)
    cursors = [name for name in store.children(paths.acks(flow)) if name != CURSOR_MAIN]
    if cursor == CURSOR_MAIN:
        raise UserError(f"{CURSOR_MAIN} is the flow's own cursor: it is deleted with the flow")
    if cursor not in cursors:
        hint = nearest(cursor, cursors) if cursors else "it has no other readers"
        raise UnknownNameError(f'flow {flow} has no cursor "{cursor}"; {hint}')
    lease = store.read(paths.lease(flow, cursor))
    if lease is None and store.exists(paths.flow(cursor)):
        raise UserError(f"the cursor belongs to flow {cursor}: `flumeng flow delete {cursor}`")
    command = f"cursor end {flow} {cursor}"
    folder = paths.cursor(flow, cursor)
    acks = [paths.ack(flow, cursor, name) for name in store.children(folder)]
    each = [Check(paths.lease(flow, cursor), lease.version)] if lease else []
    last: list[Write] = [Remove(folder, ANY)] if store.exists(folder) else []
    if lease:  # last, so that the command can be repeated
        last.append(Remove(paths.lease(flow, cursor), lease.version))
    try:
        if lease and (broke := _ended_by(operator, flow, cursor, lease)):
            store.commit([*each, broke])
        for part in singly(store.scale, (Remove(path, ANY) for path in acks), each=each):
            store.commit([*each, *part])
        operator.commit(last, command)
    except ConflictError as error:
        raise ConflictError(
            f"cursor {cursor} was changed meanwhile: stop its reader first, then try again"
        ) from error


def _ended_by(operator: Operator, flow: str, cursor: str, lease: Versioned[Lease]) -> Put | None:
    reason = f": {operator.reason}" if operator.reason else ""
    why = f"{operator.author} ended the lease{reason}"
    return lease_breaks.ended(operator.store, (flow, cursor), lease, why, operator.now)
