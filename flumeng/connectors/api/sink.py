"""Where events go, and what a sink owes to the batch loop.

A sink makes a batch in two steps. Its stage takes every event of the batch in the executors, and
``written`` sums up in the driver what the stages have yielded. When it can deliver exactly once, it
does so in one of three ways:

*staged*: what the stage wrote stays invisible, and ``written`` says which renames would show it.
The loop decides about the batch (acks and renames in one transaction) and only then carries the
renames out; after a crash whoever owns the journals next finishes a decided batch and throws an
undecided one away.

*by event*: writing the same event twice leaves one. The loop acks when the stage has ended.

*by batch*: the target remembers the number of the last batch that it took. The loop puts its intent
into ZooKeeper before the target is written, and after a crash exactly that batch is repeated under
that number. The target is written by ``Written.commit`` in the driver, after the intent; or, when
the sink ``writes_at_once``, by its stage already, and then the intent comes before the stage.

So a sink never sees acks, and the loop never sees a format.
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
    """Who writes: a task with the filters and sinks of that revision of its flow."""

    flow: str
    task: str
    revision: int


@dataclass(frozen=True)
class BatchId:
    """What a target remembers of a batch. A ``series`` is never used again, not even by a flow of
    the same name; in it ``number`` grows with each batch. Whoever writes a number again writes the
    same events, cut into the same splits."""

    series: str
    number: int


Commit = Callable[[BatchId | None], None]
"""Makes a batch visible that the stages have prepared: nothing happens when its target has that
number already, or a higher one; without a number it is just added. Raises ConflictError when
another owner seems to be at it, UnavailableError when trying again may help."""


@dataclass(frozen=True)
class Written:
    """``events`` went in; each of ``files``, source to target (URIs), is to be renamed. ``commit``
    makes the batch visible. ``refused``: so many have a time that was not believed.
    ``dead_letters``: so many are events that other sinks of the flow have refused for good. When
    the stages make their directories: ``files`` come from those of the roots ``staged``, and in
    those of the roots ``abandoned`` may be what nobody needs."""

    events: int
    files: tuple[tuple[str, str], ...] = ()
    refused: int = 0
    commit: Commit | None = None
    dead_letters: int = 0
    staged: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One attempt to write a batch. ``staging`` gives a directory (URI) of its own for each of the
    sink's roots; it is empty when nothing will be run. ``batch`` is known only to sinks that write
    at once, and None when the flow does not deliver exactly once. ``dead_letters`` is for what the
    sink refuses for good. ``patience_seconds``: a server that has taken nothing for so long, and
    fails, is given up; None: as the sink finds right. ``makes_staging``: the directories are not
    there, and the stage makes them. ``exactly_once``: no event may be in the target twice."""

    staging: Mapping[str, str] = field(default_factory=dict)
    batch: BatchId | None = None
    dead_letters: DeadLetters = field(default_factory=DeadLetters)
    patience_seconds: float | None = None
    makes_staging: bool = False
    exactly_once: bool = False


class BatchTooWideError(FlumengError):
    """The batch would make more files than one commit can hold: a smaller one will do."""


class Sink(Protocol):
    """One sink of a flow, made from its options and its ``TaskRevision`` when the task starts.

    Making it touches no server: that what it needs is missing (a secret, a package) is a UserError,
    that a server does not answer is none.
    """

    @property
    def roots(self) -> tuple[str, ...]:
        """The directories (URIs) under which it stages, the same for every batch."""

    @property
    def identified(self) -> bool:
        """Whether its stage needs the columns of ``events.identity``, which no filter drops. Then
        it takes them away itself; other sinks of the flow do not see them."""

    @property
    def writes_at_once(self) -> bool:
        """Whether its stage writes under a batch's number. Only for sinks by batch."""

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        """``batch``, and a last Arrow stage that writes it: every event of a split is durable when
        that has ended, or in ``attempt.dead_letters``. It yields a few rows a split.

        Called once when the task starts, to try it, and once per attempt of a batch, perhaps for
        two batches at once; it computes nothing. Nothing outside of ``attempt.staging`` may change
        if it has ``roots``; what a failed attempt has left there is removed by the loop, never
        by the sink. Raises UserError when the batch's columns do not fit.
        """

    def written(self, rows: Sequence[Row]) -> Written:
        """What the stages of all splits have yielded, in a sentence for the loop.

        Raises BatchTooWideError; any other error fails the batch, which is then tried again.
        """


@runtime_checkable
class Probed(Protocol):
    """A sink whose target can be asked before a flow is applied."""

    def probe(self) -> None:
        """Asks the target once and changes nothing there; never called while the flow runs.

        Raises UserError for what the flow's author has to change, UnavailableError for a target
        that does not answer.
        """
