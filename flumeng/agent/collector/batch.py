"""A batch of a task, from the choice of its ranges until its commit."""

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
    """The ranges read together, and their outcome. ``waited_seconds``: time spent waiting for a
    slot. ``ended``: when ``outcome`` became known. A batch under an intent has an ``identity`` and
    a fixed number of ``splits``. A batch of ``gaps`` has no events; any other batch skips
    ``left_out``. ``reread``: number of events that earlier batches had read."""

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
    def skipped(self) -> tuple[Gap, ...]:
        return self.gaps or self.left_out

    @property
    def also(self) -> list[Write]:
        return [write for gap in self.skipped for write in gap.also]

    @property
    def events(self) -> int:
        return 0 if self.gaps else self.scale.total(self.ranges) - self.reread

    @property
    def gone(self) -> int:
        return self.scale.total(gap.reported for gap in self.skipped)

    @property
    def refused(self) -> int:
        """Number of events whose time a sink rejected as implausible; the most of any sink."""
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
    """Event counts of a task's filters; None when not counted. ``taken``: events by branch with a
    condition. ``failed``: events dropped because a filter could not process them, by the filter's
    place. ``read``: events read; None when offsets count them."""

    dropped: int | None = 0
    parse_errors: int | None = 0
    taken: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    read: int | None = None
    times: Times | None = field(default=None, compare=False)


class Pipeline(Protocol):
    """A flow's filters and sinks. ``roots``: directories in which its sinks stage files; those in
    ``spare_roots`` are created by the stages on demand. ``shareable``: a batch may share a Spark
    job with other flows. ``intent``: whether the intent is written before the stages run, or after
    them and before the commit; None when there is none."""

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
    def filters(self) -> str:
        """The name of the filters of another site before this flow's own; "" without any."""

    @property
    def outdated(self) -> bool:
        """Whether that site has other filters by now."""

    @property
    def trouble(self) -> str:
        """A fault that does not stop batches; empty without one."""

    def event_bytes(self) -> float | None:
        """Return the mean bytes per event read since the last call; None when none were counted."""

    def filtered(self) -> Filtered: ...

    def splits(self, ranges: Sequence[Range], scale: Scale) -> int:
        """Return the number of splits for a batch of ``ranges``."""

    def joined(self, ranges: Sequence[Range]) -> Mapping[str, JoinedRange]:
        """Return the last batch's reports on joined lines, by partition; some may be missing."""


@dataclass(frozen=True, eq=False)
class Work:
    """A batch to write now. With ``identity`` it has exactly ``splits`` splits. ``gaps`` are
    recorded as dead letters, not read. ``apart``: the batch runs as a single Spark task, since it
    may hang. ``done`` is called once with the outcome, from any thread, and only stores it."""

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
        """Return an empty batch that checks whether the flow's stages can be planned."""
        return cls(pipeline, (), {}, {}, 0.0, lambda _outcome: None)
