"""The features of flows that need a newer tree. A flow that uses one is refused until the tree is
migrated, when all live processes know that version."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flumeng.config import check_flow
from flumeng.config.flow_names import is_part, whole_of
from flumeng.control.commands.live_processes import live_processes
from flumeng.control.commands.next_revision import NextRevision
from flumeng.control.zookeeper import ReadableStore, tree
from zkschema import paths, table

NAMED = 5
"""Too old processes that are named."""


@dataclass(frozen=True)
class Need:
    """A feature that needs a tree of version ``since``."""

    since: int
    said: str
    is_of: Callable[[NextRevision], bool]


NEEDS = (
    Need(
        paths.intent.since,
        "delivers exactly once to a target that knows batches by number",
        lambda one: check_flow(one.effective).by_batch,
    ),
    Need(table.PARTS_SINCE, "has an isolated part", lambda one: is_part(one.flow)),
    Need(
        paths.queue_failures.since,
        "reads objects",
        lambda one: any(part.name == "objects" for part in check_flow(one.effective).sources),
    ),
    Need(
        paths.polls.since,
        "polls on a schedule",
        lambda one: bool(check_flow(one.effective).pollers),
    ),
    Need(
        table.COPIES_SINCE,
        "keeps its events on several nodes (`durability: replicated`)",
        lambda one: check_flow(one.effective).durability == "replicated",
    ),
    Need(table.CHAINS_SINCE, "runs what flows that it reads say", lambda one: bool(one.runs)),
)


def too_old(store: ReadableStore, wanted: Iterable[NextRevision]) -> dict[str, str]:
    """Flow -> why it is refused: the tree is too old."""
    version = tree.require(store).version
    return {
        whole_of(one.flow): f"flow {whole_of(one.flow)} {need.said}: {_missing(store, need.since)}"
        for need in NEEDS
        if version < need.since
        for one in wanted
        if need.is_of(one)
    }


def why_too_old(store: ReadableStore, since: int) -> str:
    """Empty when the tree has this version."""
    return _missing(store, since) if tree.require(store).version < since else ""


def _missing(store: ReadableStore, since: int) -> str:
    version = tree.require(store).version
    older = [str(process) for process in live_processes(store) if process.schema < since]
    some = ", ".join(older[:NAMED]) + (f" and {len(older) - NAMED} more" if older[NAMED:] else "")
    first = f"{some} cannot use that version: upgrade and restart, then " if older else ""
    return (
        f"that takes a tree of version {since}, and this one has {version} "
        f"({first}`flumeng schema migrate --finish`)"
    )
