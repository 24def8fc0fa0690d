"""Operator decisions about failed queue items: retry or skip."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Put, ReadableStore, Versioned, readable
from flumeng.platform.errors import UnknownNameError
from flumeng.platform.options.problems import nearest
from zkschema import paths
from zkschema.records import QueueFailure

Decision = Literal["retry", "skip"]


def decide(operator: Operator, flow: str, names: Collection[str], decision: Decision) -> list[str]:
    """Retry or skip these items, or all failed ones; return their names. Raises ``UserError``."""
    store = operator.store
    failed = failed_items(store, flow, names)
    writes = (
        Put(paths.queue_failure(flow, name), replace(item.value, wanted=decision), item.version)
        for name, item in failed.items()
    )
    operator.commit_each(writes, lambda items: f"queue {decision} {flow} {items}")
    return list(failed)


def failed_items(
    store: ReadableStore, flow: str, names: Collection[str]
) -> dict[str, Versioned[QueueFailure]]:
    """Return these failed items, or all. Raises ``UserError`` for an unknown one."""
    there = store.children(paths.queue_failures(flow))
    requested = sorted(names) if names else there
    for name in requested:
        if name not in there:
            hint = nearest(name, there) if there else "none of its items failed"
            raise UnknownNameError(f'flow {flow} has no failed item "{name}"; {hint}')
    failures = store.read_each([paths.queue_failure(flow, name) for name in requested])
    read = dict(zip(requested, map(readable, failures), strict=True))
    return {name: failure for name, failure in read.items() if failure is not None}
