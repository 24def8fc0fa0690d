"""Where events go, and what a sink owes to the batch loop.

A sink makes a batch in two steps. ``write`` makes every event of the batch durable, but what it
wrote may stay invisible: then it says which renames would show it. The loop decides about the batch
(acks and renames in one transaction) and only then carries the renames out; after a crash whoever
owns the journals next finishes a decided batch and throws an undecided one away. So a sink never
sees acks, and the loop never sees a format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flumeng.errors import FlumengError
from flumeng.filters.lazy_batch import LazyBatch


@dataclass(frozen=True)
class Written:
    """``events`` went in; each of ``files``, source to target (URIs), is to be renamed."""

    events: int
    files: tuple[tuple[str, str], ...] = ()


class BatchTooWideError(FlumengError):
    """The batch would make more files than one commit can hold: a smaller one will do."""


class Sink(Protocol):
    """One sink of a flow, made from its options when the flow's task starts."""

    @property
    def root(self) -> str | None:
        """The directory (URI) under which it stages; None when what it writes is visible at once.

        The same for every batch. Only a sink with a root can deliver exactly once.
        """

    def write(self, batch: LazyBatch, staging: str) -> Written:
        """Run the batch, and return when every event of it is durable.

        Called once per attempt of a batch, from a thread of the task's, perhaps for two batches at
        once. ``staging`` is an empty directory of this batch's own (URI), which exists when the
        sink has a root. Nothing outside of it may change if ``root`` is not None. What an attempt
        that failed has left in ``staging`` is removed by the loop, never by the sink.

        Raises BatchTooWideError; any other error fails the batch, which is then tried again.
        """
