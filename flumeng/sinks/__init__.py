"""Where events go, and what a sink owes to the batch loop.

A sink makes a batch in two steps. Its stage makes every event of the batch durable, but what it
wrote may stay invisible: then ``written`` says which renames would show it. The loop decides about
the batch (acks and renames in one transaction) and only then carries the renames out; after a crash
whoever owns the journals next finishes a decided batch and throws an undecided one away. So a sink
never sees acks, and the loop never sees a format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flumeng.errors import FlumengError
from flumeng.filters.lazy_batch import LazyBatch

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Written:
    """``events`` went in; each of ``files``, source to target (URIs), is to be renamed.
    ``refused``: so many have a time that was not believed."""

    events: int
    files: tuple[tuple[str, str], ...] = ()
    refused: int = 0


class BatchTooWideError(FlumengError):
    """The batch would make more files than one commit can hold: a smaller one will do."""


class Sink(Protocol):
    """One sink of a flow, made from its options when the flow's task starts."""

    @property
    def root(self) -> str | None:
        """The directory (URI) under which it stages; None when what it writes is visible at once.

        The same for every batch. Only a sink with a root can deliver exactly once.
        """

    def stage(self, batch: LazyBatch, staging: str) -> LazyBatch:
        """``batch``, and a last Arrow stage that writes it: every event of a split is durable when
        that has ended. It yields a few rows a split, for ``written``.

        Called once when the task starts, to try it, and once per attempt of a batch, perhaps for
        two batches at once; it computes nothing. ``staging`` is an empty directory of this batch's
        own (URI), which exists when the sink has a root. Nothing outside of it may change if
        ``root`` is not None. What an attempt that failed has left in ``staging`` is removed by the
        loop, never by the sink. Raises UserError when the batch's columns do not fit.
        """

    def written(self, rows: Sequence[Row]) -> Written:
        """What the stages of all splits have yielded, in a sentence for the loop.

        Raises BatchTooWideError; any other error fails the batch, which is then tried again.
        """
