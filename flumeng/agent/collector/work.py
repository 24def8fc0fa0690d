"""The interface between tasks, jobs and Spark: a flow's pipeline, and a batch to write."""

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
    """What the filters made of a task's events; None where it was not counted. ``taken``: events by
    branch with a condition. ``failed``: events that each filter, by its place, dropped because it
    could not process them. ``read``: events read; None where offsets count them."""

    dropped: int | None = 0
    parse_errors: int | None = 0
    taken: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    read: int | None = None
    times: Times | None = field(default=None, compare=False)


class Pipeline(Protocol):
    """A flow's filters and sinks. ``roots``: where its sinks stage; under ``spare_roots`` the
    stages make their directories themselves, if at all. ``shareable``: all stages are Arrow, so a
    batch may share a job with other flows. ``intent``: whether an intent is written before the
    stages run, or after them and before the commit; None without a target that knows batches by
    number."""

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
        """What is wrong while batches are written all the same."""

    def event_bytes(self) -> float | None:
        """Mean size of an event as it was read, since the last call; None when not counted."""

    def filtered(self) -> Filtered:
        """What the filters made of the events since the last call."""

    def splits(self, ranges: Sequence[Range], scale: Scale) -> int:
        """Into how many splits it would cut a batch of ``ranges``."""

    def joined(self, ranges: Sequence[Range]) -> Mapping[str, JoinedRange]:
        """The joined lines of the batch written last, by partition. Lacks ranges that executors did
        not report."""


@dataclass(frozen=True, eq=False)
class Work:
    """A batch to write now; ``staging`` gives each root's directory. With ``identity`` it is cut
    into exactly ``splits`` splits. Ranges of ``gaps`` are not read; dead letters record them. One
    that is ``apart`` takes one of Spark's tasks, since it may never end.

    ``done`` gets the outcome once, from any thread, and only stores it.
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
        """An empty batch, to check that the flow fits together."""
        return cls(pipeline, (), {}, {}, 0.0, lambda _outcome: None)
