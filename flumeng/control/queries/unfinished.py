"""Commits and batches that are decided and not finished, as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from flumeng.control.commands import unfinished_writes
from flumeng.control.zookeeper import ReadableStore


@dataclass(frozen=True)
class CommitRow:
    """A decided commit. ``files`` are pairs (staged, final), ``staging`` are directories;
    ``staged`` and ``missing``: files not in place, as the asking host sees them."""

    flow: str
    name: str
    files: tuple[tuple[str, str], ...]
    problem: str
    newer: bool
    staging: tuple[str, ...]
    staged: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class BatchRow:
    """A decided batch of a task. ``ranges``: first and end offset by partition. ``problem``: why
    the batch cannot be repeated."""

    flow: str
    task: str
    number: int = 0
    revision: int = 0
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    problem: str = ""
    newer: bool = False
    events: int = 0


def commits(
    store: ReadableStore, flow: str | None, exists: Callable[[str], bool]
) -> list[CommitRow]:
    """Return the decided commits of a flow (None: of all). ``exists``: whether this host sees a
    file."""
    return [
        CommitRow(**asdict(commit), **asdict(unfinished_writes.whereabouts(commit, exists)))
        for commit in unfinished_writes.unfinished_commits(store, flow)
    ]


def batches(store: ReadableStore, flow: str | None) -> list[BatchRow]:
    """Return the decided batches of a flow (None: of all)."""
    return [
        BatchRow(**asdict(batch), events=batch.events)
        for batch in unfinished_writes.decided_batches(store, flow)
    ]
