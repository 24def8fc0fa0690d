"""Operator decisions about failed queue items: retry or skip."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Put, Store, Versioned, readable
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths
from zkschema.records import QueueFailure

Decision = Literal["retry", "skip"]


def decide(operator: Operator, flow: str, names: Collection[str], wanted: Decision) -> list[str]:
    """Retry or skip these items, or all that failed; returns their names. Raises ``UserError``."""
    store = operator.store
    failed = _failed(store, flow, names)
    writes = (
        Put(paths.queue_failure(flow, name), replace(one.value, wanted=wanted), one.version)
        for name, one in failed.items()
    )
    operator.commit_each(writes, lambda items: f"queue {wanted} {flow} {items}")
    return list(failed)


def _failed(store: Store, flow: str, names: Collection[str]) -> dict[str, Versioned[QueueFailure]]:
    there = store.children(paths.queue_failures(flow))
    wanted = sorted(names) if names else there
    for name in wanted:
        if name not in there:
            hint = nearest(name, there) if there else "none has failed"
            raise UserError(f'flow {flow} has no item "{name}" that failed; {hint}')
    found = store.read_each([paths.queue_failure(flow, name) for name in wanted])
    read = dict(zip(wanted, map(readable, found), strict=True))
    return {name: one for name, one in read.items() if one is not None}
