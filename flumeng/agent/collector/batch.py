"""A batch of a task, from its decision until its commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from flumeng.agent.collector.batch_times import Times
from flumeng.agent.collector.gaps import Gap
from flumeng.agent.collector.lines import JoinedRange
from flumeng.agent.collector.outcome import Outcome
from flumeng.agent.collector.ranges import COUNTED, Scale
from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import BatchId, Written
from flumeng.control.zookeeper import Write


@dataclass(eq=False)
class Batch:
    """``waited_seconds``: for a slot. ``ended``: when ``outcome`` became known. A batch under an
    intent has an ``identity`` and fixed ``splits``. A batch of ``gaps`` has no events; any other
    skips ``left_out``. ``reread``: number of events that earlier batches had read."""

    ranges: tuple[Range, ...]
    addresses: Mapping[str, str]
    staging: Mapping[str, str]
    began: float
    scale: Scale = COUNTED
    identity: BatchId | None = None
    splits: int | None = None
    waited_seconds: float = 0.0
    ended: float = 0.0
    outcome: Outcome | None = None
    gaps: tuple[Gap, ...] = ()
    left_out: tuple[Gap, ...] = ()
    reread: int = 0
    lines_closed: Counter[str] = field(default_factory=Counter)

    @property
    def also(self) -> list[Write]:
        return [write for gap in self.gaps or self.left_out for write in gap.also]

    @property
    def events(self) -> int:
        return 0 if self.gaps else self.scale.total(self.ranges) - self.reread

    @property
    def gone(self) -> int:
        """Number of skipped offsets of unreadable events."""
        return self.scale.total(gap.reported for gap in self.gaps)

    @property
    def refused(self) -> int:
        """Number of events whose time a sink rejected as implausible."""
        return max((part.refused for part in self.written), default=0)

    @property
    def dead_letters(self) -> int:
        return sum(part.dead_letters for part in self.written)

    @property
    def written(self) -> list[Written]:
        return self.outcome if isinstance(self.outcome, list) else []


Intent = Literal["before", "after"]


@dataclass(frozen=True)
class Filtered:
    """Counts of a task's filters; None where not counted. ``taken``: events by branch with a
    condition. ``failed``: events that each filter, by its place, could not process and dropped.
    ``read``: events read; None where offsets count them."""

    dropped: int | None = 0
    parse_errors: int | None = 0
    taken: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    read: int | None = None
    times: Times | None = field(default=None, compare=False)


class Pipeline(Protocol):
    """A flow's filters and sinks. ``roots``: where its sinks stage; under ``spare_roots`` stages
    create their directories on demand. ``shareable``: a batch may share its job with other flows.
    ``intent``: written before the stages, or between stages and commit; None: never."""

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
        """A fault that does not stop batches."""

    def event_bytes(self) -> float | None:
        """Mean size of an event as read, since the last call; None when not counted."""

    def filtered(self) -> Filtered: ...

    def splits(self, ranges: Sequence[Range], scale: Scale) -> int:
        """Number of splits for a batch of ``ranges``."""

    def joined(self, ranges: Sequence[Range]) -> Mapping[str, JoinedRange]:
        """Joined lines of the last batch, by partition; lacks ranges without a report."""


@dataclass(frozen=True, eq=False)
class Work:
    """A batch to write now. With ``identity`` it has exactly ``splits`` splits. ``gaps`` are
    recorded as dead letters, not read. ``apart``: it takes one of Spark's tasks, since it may never
    end. ``done`` gets the outcome once, from any thread, and only stores it."""

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
        """An empty batch that checks the flow's stages."""
        return cls(pipeline, (), {}, {}, 0.0, lambda _outcome: None)
