"""The options of the source ``flow``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.component import Guarantee, Placing, SourceOptions, Upstream
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import check_name


@dataclass(frozen=True)
class FlowSource(SourceOptions):
    """Reads the events that another flow has accepted, under a cursor of its own: nothing is
    copied, and neither of the two waits for the other. The other's journals keep all that this flow
    has not read yet, up to their `max_bytes`: then senders wait.

    The events are as they arrive at the other flow's filters, or as these leave them, with their
    identity.
    """

    implementation: ClassVar[str] = "flumeng.connectors.flows.finder:FlowFinder"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})

    name: str = option(doc="The flow to read.", check=check_name, example="web-logs")
    start_from: Literal["earliest", "latest"] = option(
        doc="Where to start in journals that exist when the flow is applied: at the first event "
        "that they still keep, or after the last. Later journals are read whole.",
        default="earliest",
    )
    after: Literal["sources", "filters"] = option(
        doc="`sources`: the events before that flow's filters. `filters`: the events after its "
        "`multiline` and `filters`, but not its branches. When these change, this flow gets a new "
        "revision in the same transaction.",
        default="sources",
    )
    discovery_seconds: float = option(
        doc="How often to look for new journals of that flow.", between=(0.5, 3600), default=5.0
    )

    @property
    def placing(self) -> Placing:
        return "partitioned"

    @property
    def upstream(self) -> Upstream:
        return Upstream(self.name, self.after == "filters")

    def arrival(self) -> str:
        behind = f", through the filters of {self.name}" if self.after == "filters" else ""
        return f"each event that {self.name} has accepted and still keeps is taken once{behind}"
