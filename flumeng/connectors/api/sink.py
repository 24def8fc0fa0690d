"""The contract of sinks with the batch loop.

A sink writes a batch in two steps: its stage takes every event in the executors, and ``written``
sums up the stages' rows in the driver. It can deliver exactly once in three ways:

*staged*: written files stay invisible, and ``written`` lists the renames that show them. The loop
decides the batch (acks and renames in one transaction), then renames; after a crash the next owner
finishes a decided batch and discards an undecided one.

*by event*: writing an event twice leaves one. The loop acks when the stage has ended.

*by batch*: the target remembers the number of the last batch. The loop stores its intent in
ZooKeeper before the target is written, and after a crash repeats exactly that batch under that
number. ``Written.commit`` writes the target, in the driver after the intent; when the sink
``writes_at_once``, its stage does, after the intent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from flumeng.connectors.api.dead_letters import DeadLetters
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform.errors import FlumengError

Row = Mapping[str, Any]


@dataclass(frozen=True)
class TaskRevision:
    flow: str
    task: str
    revision: int


@dataclass(frozen=True)
class BatchId:
    """A batch, as targets remember it. A ``series`` is never reused, not even by a flow of the same
    name; in it ``number`` grows. A number that is written again has the same events and splits."""

    series: str
    number: int


Commit = Callable[[BatchId | None], None]
"""Makes a prepared batch visible, unless the target has this number or a higher one; with None,
always. Raises ConflictError for another owner, UnavailableError when a retry may help."""


@dataclass(frozen=True)
class Written:
    """Result of writing a batch. ``events``: number of events given to the sink; ``refused`` of
    them had implausible times. ``dead_letters``: set by the loop, ``events`` if this is the sink of
    dead letters. ``files`` are to be renamed, source to target (URIs). ``commit`` makes the batch
    visible. When stages make their directories, ``files`` come from the roots ``staged``, and the
    roots ``abandoned`` may hold garbage."""

    events: int
    files: tuple[tuple[str, str], ...] = ()
    refused: int = 0
    commit: Commit | None = None
    dead_letters: int = 0
    staged: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One attempt to write a batch. ``staging``: a directory (URI) for each of the sink's roots;
    empty when nothing is run. ``makes_staging``: the stage creates it. ``batch``: only for sinks
    that write at once, in flows that deliver exactly once. ``patience_seconds``: give up a failing
    server that has accepted nothing for this time; None when the sink decides.
    ``exactly_once``: no event may be in the target twice."""

    staging: Mapping[str, str] = field(default_factory=dict)
    batch: BatchId | None = None
    dead_letters: DeadLetters = field(default_factory=DeadLetters)
    patience_seconds: float | None = None
    makes_staging: bool = False
    exactly_once: bool = False


class BatchTooWideError(FlumengError):
    """The batch makes more files than a commit can hold; a smaller batch can be committed."""


class Sink(Protocol):
    """A sink of a flow, created from its options and a ``TaskRevision`` when the task starts.
    Creation touches no server, and raises UserError for a missing secret or package."""

    @property
    def roots(self) -> tuple[str, ...]:
        """The directories (URIs) under which it stages, the same for each batch."""

    @property
    def identified(self) -> bool:
        """Whether its stage needs the columns of ``events.identity``, which the stage strips."""

    @property
    def writes_at_once(self) -> bool:
        """Whether its stage writes the target, by batch number. Only if exactly once *by batch*."""

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        """Return ``batch`` with a last Arrow stage that writes it. When the stage ends, every event
        of a split is durable, or in ``attempt.dead_letters``. The stage yields a few rows per
        split.

        Called as a trial when the task starts, and for each attempt, perhaps for two batches at
        once; the call itself computes nothing. A sink with ``roots`` changes only
        ``attempt.staging``, which the loop cleans up. Raises UserError when the columns do not fit.
        """

    def written(self, rows: Sequence[Row]) -> Written:
        """Sum up the rows of all splits. Raises BatchTooWideError; other errors repeat a batch."""


@runtime_checkable
class Probed(Protocol):
    """A sink whose target can be probed before a flow is applied."""

    def probe(self) -> None:
        """Contact the target once, changing nothing; never while the flow runs. Raises UserError
        when the author must change the options, UnavailableError if the target does not answer."""
