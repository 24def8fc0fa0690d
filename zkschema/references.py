"""Orphans and dangling references in the tree. Pure.

An *orphan* belongs to something that is gone, and may be removed. A *dangling* reference names
something that should be there: a person must look. Masters repair plans and assignments themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from zkschema import bootstrap, codec, table
from zkschema.records import Record
from zkschema.table import Row
from zkschema.verify import Problem, tree_version

R = TypeVar("R", bound=Record)


def orphans(tree: Mapping[str, bytes]) -> list[Problem]:
    """Znodes of gone flows and journals, and buckets that no plan counts. An ack stays while
    anything names its partition. A folder stands for all below it."""
    gone = [
        Problem(str(row(flow)), f"orphan: flow {flow} is gone")
        for row in (table.acks, table.commits, table.intents, table.queue)
        for flow in _names(tree, row)
        if str(table.flow(flow)) not in tree
    ]
    gone += [
        Problem(str(table.lease(*names)), f"orphan: it has no cursor at flow {names[0]}")
        for path in tree
        if (names := table.lease.matches(path)) and str(table.cursor(*names)) not in tree
    ]
    plans = dict(_records(tree, table.plan))
    extra = [
        Problem(path, "orphan: the plan has no such bucket")
        for path in tree
        if (names := table.plan_bucket.matches(path))
        and (plan := plans.get((names[0],))) is not None
        and not (names[1].isdecimal() and int(names[1]) < plan.buckets)
    ]
    found = [*gone, *extra, *_of_journals(tree)]
    return sorted(found, key=lambda problem: problem.path)


def dangling(tree: Mapping[str, bytes]) -> list[Problem]:
    """Flows without their revision's text or a folder, and journals without their node."""
    version = tree_version(tree)
    found = [
        Problem(str(table.flow(name)), f"its revision {flow.revision} is not there")
        for (name,), flow in _records(tree, table.flow)
        if str(table.revision(name, str(flow.revision))) not in tree
    ]
    found += [
        Problem(str(folder), f"missing: a folder of flow {name}")
        for (name,), _ in _records(tree, table.flow)
        for folder in bootstrap.flow_folders(name, version)
        if str(folder) not in tree
    ]
    found += [
        Problem(str(table.journal(name)), f"its node {journal.primary} is not there")
        for (name,), journal in _records(tree, table.journal)
        if str(table.node(journal.primary)) not in tree
        and str(table.live_node(journal.primary)) not in tree
    ]
    return sorted(found, key=lambda problem: problem.path)


def _of_journals(tree: Mapping[str, bytes]) -> list[Problem]:
    """Journals of gone flows, and acks of partitions that nothing names."""
    journals = dict(_records(tree, table.journal))
    found = [
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
        for names, known in _records(tree, row)
        for partition in known.partitions
    }
    registered = set(_names(tree, table.journal))
    found += [
        Problem(path, f"orphan: {names[2]} is gone")
        for path in tree
        if (names := table.ack.matches(path))
        and str(table.flow(names[0])) in tree
        and names[2] not in registered
        and (names[0], names[2]) not in named
    ]
    return found


def _names(tree: Mapping[str, bytes], row: Row[Record]) -> list[str]:
    return sorted(names[0] for path in tree if (names := row.matches(path)))


def _records(tree: Mapping[str, bytes], row: Row[R]) -> Iterator[tuple[tuple[str, ...], R]]:
    """Names and record of each decodable znode of ``row``."""
    assert row.record is not None
    for path, data in tree.items():
        names = row.matches(path)
        if names is not None:
            try:
                yield names, codec.decode(row.record, data)
            except codec.DecodeError:
                continue
