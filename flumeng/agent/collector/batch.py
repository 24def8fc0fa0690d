"""A batch of a task, from its decision until it is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from flumeng.agent.collector.gaps import Gap
from flumeng.agent.collector.ranges import COUNTED, Scale
from flumeng.agent.collector.written import Outcome
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.api.sink import BatchId, Written
from flumeng.control.zookeeper import Write


@dataclass(eq=False)
class Batch:
    """``outcome``: what the sinks wrote, known at ``ended``. ``waited_seconds``: for a slot. A
    batch under an intent has an ``identity`` and a fixed number of ``splits``. A batch of ``gaps``
    has no events; any other lacks what is ``left_out``. ``reread`` events were in batches
    before."""

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
        """Writes in the transaction of its acks."""
        return [write for gap in self.gaps or self.left_out for write in gap.also]

    @property
    def events(self) -> int:
        return 0 if self.gaps else self._offsets - self.reread

    @property
    def gone(self) -> int:
        """How many offsets it skips, of events that cannot be read."""
        return self.scale.total(gap.told for gap in self.gaps)

    @property
    def _offsets(self) -> int:
        return self.scale.total(self.ranges)

    @property
    def refused(self) -> int:
        """How many events had a time that a sink did not believe."""
        return max((part.refused for part in self._written), default=0)

    @property
    def dead_letters(self) -> int:
        """How many events sinks have refused for good."""
        return sum(part.dead_letters for part in self._written)

    @property
    def _written(self) -> list[Written]:
        return self.outcome if isinstance(self.outcome, list) else []
