"""What tasks, jobs and Spark hand to each other: a batch that is to be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from flumeng.agent.collector.batch_times import Times
from flumeng.agent.collector.gaps import Gap
from flumeng.agent.collector.lines.joined import JoinedRange
from flumeng.agent.collector.ranges import COUNTED, Scale
from flumeng.agent.collector.written import Outcome
from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import BatchId

Intent = Literal["before", "after"]


@dataclass(frozen=True)
class Filtered:
    """What the filters made of a task's events; None where nobody has counted. ``taken``: how many
    events went into each branch that has a condition. ``failed``: how many of the dropped ones each
    filter, by its place, dropped since it could not process them. ``read``: how many events were
    read; None where offsets count them. ``times``: how old they are, and how long sinks took."""

    dropped: int | None = 0
    parse_errors: int | None = 0
    taken: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    read: int | None = None
    times: Times | None = field(default=None, compare=False)


class Pipeline(Protocol):
    """A flow's filters and sinks. ``roots``: where its sinks stage; under ``spare_roots`` among
    them the stages make their directories, if they get so far at all. ``shareable``: all of its
    stages are Arrow, so that a batch may be written in one job with batches of other flows.
    ``intent``: of a flow with a target that knows batches by number, an intent is written before
    the stages run, or after that and before the commit."""

    @property
    def spec(self) -> FlowSpec: ...

    @property
    def roots(self) -> tuple[str, ...]: ...

    @property
    def spare_roots(self) -> frozenset[str]: ...

    @property
    def shareable(self) -> bool: ...

    @property
    def intent(self) -> Intent | None: ...

    @property
    def trouble(self) -> str:
        """What is not as it should be, while batches are written all the same."""

    def event_bytes(self) -> float | None:
        """How large an event was as it was read, of those since the last call; None when nobody
        has counted."""

    def filtered(self) -> Filtered:
        """What the filters made of the events since the last call."""

    def splits(self, ranges: Sequence[Range], scale: Scale) -> int:
        """Into how many splits it would cut a batch of ``ranges``."""

    def joined(self, ranges: Sequence[Range]) -> Mapping[str, JoinedRange]:
        """Of a flow that joins lines: what became of each range, by partition, in the batch that
        was written last. Lacks those of which nobody has told."""


@dataclass(frozen=True, eq=False)
class Work:
    """A batch that is to be written now; ``staging`` gives each root's directory. A batch that is
    decided has an ``identity``, and is cut into exactly so many ``splits``. The ranges of one with
    ``gaps`` are gone: nothing is read, and dead letters tell of them. One that is ``apart`` takes
    one of Spark's tasks, since it may never end.

    ``done`` is told the outcome once, from any thread; it only takes it down.
    """

    pipeline: Pipeline
    ranges: Sequence[Range]
    addresses: Mapping[str, str]
    staging: Mapping[str, str]
    limit_seconds: float
    done: Callable[[Outcome], None]
    identity: BatchId | None = None
    splits: int | None = None
    gaps: tuple[Gap, ...] = ()
    apart: bool = False
    scale: Scale = COUNTED

    @property
    def events(self) -> int:
        return self.scale.total(self.ranges)

    @classmethod
    def trial(cls, pipeline: Pipeline) -> Work:
        """Nothing, to see whether the flow fits together."""
        return cls(pipeline, (), {}, {}, 0.0, lambda _outcome: None)
