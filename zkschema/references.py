"""What points at what in the tree, and what points at nothing. Pure: writes nothing.

An *orphan* belongs to something that is gone: nobody will ever read it again, and it may be
removed. A *dangling* reference names something that ought to be there: a person must look. Plans
and assignments are not looked at: masters bring those up to date by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from zkschema import codec, table
from zkschema.records import Record
from zkschema.table import Row
from zkschema.verify import Problem

R = TypeVar("R", bound=Record)


def orphans(tree: Mapping[str, bytes]) -> list[Problem]:
    """Journals of flows that are gone, and acks of journals that are gone, in path order.

    An ack is kept while anything still names its partition.
    """
    journals = dict(_records(tree, table.journal))
    named = {
        (flow, partition)
        for (flow,), plan in _records(tree, table.plan)
        for task in plan.tasks.values()
        for partition in task.partitions
    } | {
        (flow, partition)
        for (flow,), known in _records(tree, table.partitions)
        for partition in known.partitions
    }
    found = [
        Problem(str(table.journal(name)), f"orphan: flow {journal.flow} is gone")
        for (name,), journal in journals.items()
        if str(table.flow(journal.flow)) not in tree
    ]
    found += [
        Problem(str(table.ack(flow, cursor, partition)), f"orphan: {partition} is gone")
        for (flow, cursor, partition), _ in _records(tree, table.ack)
        if (partition,) not in journals and (flow, partition) not in named
    ]
    return sorted(found, key=lambda problem: problem.path)


def dangling(tree: Mapping[str, bytes]) -> list[Problem]:
    """Flows without the text of their revision, and journals without their node."""
    found = [
        Problem(str(table.flow(name)), f"its revision {flow.revision} is not there")
        for (name,), flow in _records(tree, table.flow)
        if str(table.revision(name, str(flow.revision))) not in tree
    ]
    found += [
        Problem(str(table.journal(name)), f"its node {journal.primary} is not there")
        for (name,), journal in _records(tree, table.journal)
        if str(table.node(journal.primary)) not in tree
    ]
    return sorted(found, key=lambda problem: problem.path)


def _records(tree: Mapping[str, bytes], row: Row[R]) -> Iterator[tuple[tuple[str, ...], R]]:
    """The names and the record of each znode of ``row``; what does not decode is left out."""
    assert row.record is not None
    for path, data in tree.items():
        names = row.matches(path)
        if names is not None:
            try:
                yield names, codec.decode(row.record, data)
            except codec.DecodeError:
                continue
