"""Automatic repairs of a tree: pure functions from a tree to repairs.

An *orphan* belongs to something that was deleted; it is removed. A *dangling* reference names
something that is missing. Damaged records that their writers write again, such as plans and
assignments, or that have a safe value are reset. Damaged identities, journals and acks need a
person.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from zkschema import bootstrap, codec, records, table
from zkschema.migrations import Change, Delete, Document, Set
from zkschema.records import Record
from zkschema.table import Row, ZPath
from zkschema.verify import Problem, tree_version, verify

R = TypeVar("R", bound=Record)

EPOCH_GAP = 1_000_000
"""Added to the highest known epoch, to exceed every epoch given under an unreadable plan."""

Tree = Mapping[str, bytes]


@dataclass(frozen=True)
class Repair:
    """A repair; ``remedy`` describes ``changes``, whose paths may differ from ``path``."""

    path: str
    what: str
    remedy: str
    changes: tuple[Change, ...]


def problems(tree: Tree, without_session: Collection[str] = ()) -> list[Problem]:
    """Return all problems with their remedies. ``without_session`` names znodes that should be
    ephemeral and have no session."""
    remedies = {repair.path: repair.remedy for repair in repairs(tree, without_session)}
    everything = [*verify(tree), *dangling(tree), *orphans(tree), *_stale(without_session)]
    return [
        Problem(problem.path, problem.what, remedies.get(problem.path, ""))
        for problem in sorted(everything, key=lambda problem: problem.path)
    ]


def repairs(tree: Tree, without_session: Collection[str] = ()) -> list[Repair]:
    """Return possible repairs, one a path; none for a tree whose schema version is unreadable or
    unsupported, or for records of a newer flumeng."""
    schema = _readable(tree, table.schema())
    if schema is None or schema.version != tree_version(tree):
        return []
    by_path: dict[str, Repair] = {}
    for problem in [*orphans(tree), *_stale(without_session)]:
        by_path[problem.path] = _removal(problem, tree)
    for problem in dangling(tree):
        repair = _of_dangling(problem, tree)
        if repair is not None:
            by_path.setdefault(problem.path, repair)
    for problem in verify(tree):
        repair = _of_fault(problem, tree)
        if repair is not None:
            by_path.setdefault(problem.path, repair)
    return [by_path[path] for path in sorted(by_path)]


def _stale(without_session: Collection[str]) -> list[Problem]:
    fault = "orphan: the znode is not ephemeral, so a dead process counts as live"
    return [Problem(path, fault) for path in sorted(without_session)]


def _removal(problem: Problem, tree: Tree) -> Repair:
    below = [path for path in tree if path.startswith(f"{problem.path}/")]
    changes = (*(Delete(path) for path in sorted(below, reverse=True)), Delete(problem.path))
    return Repair(problem.path, problem.what, "removed", changes)


def _of_dangling(problem: Problem, tree: Tree) -> Repair | None:
    if problem.path not in tree:
        return Repair(problem.path, problem.what, "created", (Set(problem.path, None),))
    names = table.flow.matches(problem.path)
    if names is not None:
        return _newest_text(problem, names[0], tree)
    names = table.journal.matches(problem.path)
    assert names is not None
    acks = [
        Delete(path) for path in tree if (ack := table.ack.matches(path)) and ack[2] == names[0]
    ]
    remedy = "removed with its acks: events that only the missing node has are given up"
    return Repair(problem.path, problem.what, remedy, (Delete(problem.path), *acks))


def _of_fault(problem: Problem, tree: Tree) -> Repair | None:
    path = problem.path
    if _is_newer(path, tree):
        return None
    initial = {str(p): record for p, record in bootstrap.initial(version=tree_version(tree))}
    if path not in tree:
        document = _document(initial[path])
        return Repair(path, problem.what, "created", (Set(path, document),))
    if path == str(table.cluster()):
        document = _document(initial[path])
        return Repair(path, problem.what, "set to defaults", (Set(path, document),))
    row = table.find(path)
    if row is None:
        return None
    if row.record is None:
        return Repair(path, problem.what, "emptied: folders have no data", (Set(path, None),))
    if row in (table.audit, table.status, table.story):
        remedy = "removed" if row is table.audit else "removed: the node writes this znode again"
        return Repair(path, problem.what, remedy, (Delete(path),))
    if row in (table.link, table.breaks):
        remedy = "removed: discovery writes this znode again"
        if row is table.breaks:
            remedy = "removed: earlier gaps are no longer reported here"
        return Repair(path, problem.what, remedy, (Delete(path),))
    if row in (table.assignment, table.assignment_page):
        remedy = "emptied: masters write the assignment again"
        return Repair(path, problem.what, remedy, (Set(path, _document(records.Assignment())),))
    if row in (table.plan, table.plan_bucket):
        return _new_plan(problem, tree)
    names = table.revision.matches(path)
    if names is not None:
        return _without_revision(problem, names[0], tree)
    names = table.flow.matches(path)
    return _newest_text(problem, names[0], tree) if names is not None else None


def _new_plan(problem: Problem, tree: Tree) -> Repair:
    """Return a repair with an empty plan, whose epoch is no lower than any that the plan has given.
    If only a bucket is damaged, the plan's own record gives the revision, and a bound of epochs."""
    row = table.find(problem.path)
    assert row is not None
    names = row.matches(problem.path)
    assert names is not None
    flow = names[0]
    plan = str(table.plan(flow))
    buckets = [Delete(path) for path in tree if path.startswith(f"{plan}/")]
    head = _readable(tree, table.plan(flow)) if row is table.plan_bucket else None
    seen = _highest_epoch(flow, tree)
    if head is None:
        higher, empty = "a much higher epoch", records.Plan(epoch=seen + EPOCH_GAP)
    else:
        epoch = max(head.epoch, seen)
        higher, empty = "a higher epoch", records.Plan(epoch=epoch, revision=head.revision)
    return Repair(
        problem.path,
        problem.what,
        f"the flow is planned again: each task of the flow restarts under {higher}",
        (*buckets, Set(plan, _document(empty))),
    )


def _highest_epoch(flow: str, tree: Tree) -> int:
    epochs = [0]
    for path, data in tree.items():
        try:
            if (names := table.ack.matches(path)) and names[0] == flow:
                epochs.append(codec.decode(records.Ack, data).epoch)
            elif table.assignment.matches(path) or table.assignment_page.matches(path):
                tasks = codec.decode(records.Assignment, data).tasks
                epochs += [task.epoch for task in tasks if task.flow == flow]
        except codec.DecodeError:
            continue
    return max(epochs)


def _without_revision(problem: Problem, flow: str, tree: Tree) -> Repair | None:
    current = _readable(tree, table.flow(flow))
    number = problem.path.rpartition("/")[2]
    if current is not None and number != str(current.revision):
        return Repair(problem.path, problem.what, "removed", (Delete(problem.path),))
    newest = _newest_text(problem, flow, tree)
    if newest is None:
        return None
    return Repair(
        problem.path, problem.what, newest.remedy, (*newest.changes, Delete(problem.path))
    )


def _newest_text(problem: Problem, flow: str, tree: Tree) -> Repair | None:
    """Return a repair that applies the newest readable text as a new revision, and suspends a flow
    whose own record is unreadable. None when no text is readable."""
    readable = {
        int(names[1]): revision
        for path in tree
        if (names := table.revision.matches(path))
        and names[0] == flow
        and (revision := _readable(tree, table.revision(*names)))
    }
    if not readable:
        return None
    newest = max(readable)
    current = _readable(tree, table.flow(flow))
    record = current or records.Flow(revision=newest, state="suspended")
    taken = [int(n[1]) for path in tree if (n := table.revision.matches(path)) and n[0] == flow]
    number = max(*taken, record.revision) + 1
    why = f"repair: revision {newest} again, because revision {record.revision} cannot be read"
    text = readable[newest]
    revision = replace(text, reason=why)
    flow_document = _document(replace(record, revision=number))
    state = "" if current else ", and the flow is suspended: resume it if that revision is right"
    return Repair(
        problem.path,
        problem.what,
        f"revision {newest} is applied again, as revision {number}{state}",
        (
            Set(str(table.revision(flow, str(number))), _document(revision)),
            Set(str(table.flow(flow)), flow_document),
        ),
    )


def _readable(tree: Tree, path: ZPath[R]) -> R | None:
    assert path.row.record is not None
    try:
        return codec.decode(path.row.record, tree.get(str(path), b""))
    except codec.DecodeError:
        return None


def _is_newer(path: str, tree: Tree) -> bool:
    row = table.find(path)
    if row is None or row.record is None or path not in tree:
        return False
    try:
        codec.decode(row.record, tree[path])
    except codec.NewerVersionError:
        return True
    except codec.DecodeError:
        return False
    return False


def _document(record: Record | None) -> Document | None:
    if record is None:
        return None
    document: Document = json.loads(codec.text_of(record))
    return document


def orphans(tree: Tree) -> list[Problem]:
    """Return znodes of deleted flows, leases without their cursor, buckets that a plan does not
    count, and acks of partitions that are neither registered nor planned."""
    gone = [
        Problem(str(row(flow)), f"orphan: flow {flow} is gone")
        for row in (table.acks, table.commits, table.intents, table.queue)
        for flow in _names(tree, row)
        if str(table.flow(flow)) not in tree
    ]
    gone += [
        Problem(str(table.lease(*names)), f"orphan: flow {names[0]} has no cursor {names[1]}")
        for path in tree
        if (names := table.lease.matches(path)) and str(table.cursor(*names)) not in tree
    ]
    plans = dict(_records(tree, table.plan))
    extra = [
        Problem(path, f"orphan: the plan of flow {names[0]} has no bucket {names[1]}")
        for path in tree
        if (names := table.plan_bucket.matches(path))
        and (plan := plans.get((names[0],))) is not None
        and not (names[1].isdecimal() and int(names[1]) < plan.buckets)
    ]
    all_orphans = [*gone, *extra, *_of_journals(tree)]
    return sorted(all_orphans, key=lambda problem: problem.path)


def dangling(tree: Tree) -> list[Problem]:
    """Return flows without their revision's text, missing folders of flows, and journals whose
    primary's node is neither registered nor live."""
    version = tree_version(tree)
    missing = [
        Problem(str(table.flow(name)), f"revision {flow.revision} of flow {name} is missing")
        for (name,), flow in _records(tree, table.flow)
        if str(table.revision(name, str(flow.revision))) not in tree
    ]
    missing += [
        Problem(str(folder), f"missing: a folder of flow {name}")
        for (name,), _ in _records(tree, table.flow)
        for folder in bootstrap.flow_folders(name, version)
        if str(folder) not in tree
    ]
    missing += [
        Problem(str(table.journal(name)), f"node {journal.primary}, its primary, is missing")
        for (name,), journal in _records(tree, table.journal)
        if str(table.node(journal.primary)) not in tree
        and str(table.live_node(journal.primary)) not in tree
    ]
    return sorted(missing, key=lambda problem: problem.path)


def _of_journals(tree: Tree) -> list[Problem]:
    """Return journals of deleted flows, and acks of partitions that nothing names."""
    journals = dict(_records(tree, table.journal))
    orphaned = [
        Problem(str(table.journal(name)), f"orphan: flow {journal.flow} is gone")
        for (name,), journal in journals.items()
        if str(table.flow(journal.flow)) not in tree
    ]
    named = {
        (names[0], partition)
        for row in (table.plan, table.plan_bucket)
        for names, plan in _records(tree, row)
        for task in plan.tasks.values()
        for partition in task.partitions
    } | {
        (names[0], partition)
        for row in (table.partitions, table.partitions_bucket)
        for names, bucket in _records(tree, row)
        for partition in bucket.partitions
    }
    registered = set(_names(tree, table.journal))
    orphaned += [
        Problem(path, f"orphan: partition {names[2]} is gone")
        for path in tree
        if (names := table.ack.matches(path))
        and str(table.flow(names[0])) in tree
        and names[2] not in registered
        and (names[0], names[2]) not in named
    ]
    return orphaned


def _names(tree: Tree, row: Row[Record]) -> list[str]:
    return sorted(names[0] for path in tree if (names := row.matches(path)))


def _records(tree: Tree, row: Row[R]) -> Iterator[tuple[tuple[str, ...], R]]:
    assert row.record is not None
    for path, data in tree.items():
        names = row.matches(path)
        if names is not None:
            try:
                yield names, codec.decode(row.record, data)
            except codec.DecodeError:
                continue
