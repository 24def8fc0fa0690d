"""The options of the source ``flow``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.column_kinds import EVENT, PASSED, Columns
from flumeng.config.component import Guarantee, Placing, RemoteFlow, SourceOptions, Upstream
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.patterns import check_name
from flumeng.platform.options.quantities import LINK_RATES
from flumeng.platform.options.windows import check_hours

LEAST_KEPT = 4
"""Least ratio of ``keep_seconds`` to ``discovery_seconds``."""


@dataclass(frozen=True)
class FlowSource(SourceOptions):
    """Reads the events that another flow has accepted, under a cursor of its own: nothing is
    copied, and neither of the two waits for the other. The other's journals keep all that this flow
    has not read yet, up to their `max_bytes`: then senders wait.

    The events are as they arrive at the other flow's filters, or as these leave them, with their
    identity.

    With `site`, the flow is one of another cluster, whose gateways send the events.
    """

    implementation: ClassVar[str] = "flumeng.connectors.flows.finder:FlowFinder"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})
    alone: ClassVar[str] = "make a flow of each"

    name: str = option(doc="The flow to read.", check=check_name, example="web-logs")
    start_from: Literal["earliest", "latest"] = option(
        doc="Where to start in journals that exist when the flow is applied: at the first event "
        "that they still keep, or after the last. Later journals are read whole.",
        default="earliest",
    )
    after: Literal["sources", "filters"] = option(
        doc="`sources`: the events before that flow's filters. `filters`: the events after its "
        "`multiline` and `filters`, but not its branches. When these change, this flow gets a new "
        "revision in the same transaction. With `site`, the other site runs the filters.",
        default="sources",
    )
    site: str | None = option(
        doc="The site of that flow, as `flumeng site list` shows it. By default this cluster.",
        check=check_name,
        example="fra",
        default=None,
    )
    keep_seconds: float = option(
        doc="With `site`: how long that site keeps unread events after it last heard of this flow.",
        between=(60, 400 * 86_400),
        default=7 * 86_400.0,
    )
    bytes_per_second: int | None = option(
        doc="With `site`: the rate at which a gateway sends events to this flow.",
        unit="bytes",
        between=LINK_RATES,
        example="10 MB",
        default=None,
    )
    priority: int = option(
        doc="With `site`: the highest comes first at a limited rate.", between=(0, 9), default=0
    )
    at: str | None = option(
        doc="With `site`: when events are read, daily or on days such as `mon-fri 22:00-06:00 "
        "Europe/Berlin`.",
        check=check_hours,
        example='"22:00-06:00 Europe/Berlin"',
        default=None,
    )
    discovery_seconds: float = option(
        doc="How often to look for new journals of that flow.", between=(0.5, 3600), default=5.0
    )

    @property
    def placing(self) -> Placing:
        return "partitioned"

    @property
    def upstream(self) -> Upstream | None:
        return Upstream(self.name, self.after == "filters") if self.site is None else None

    @property
    def remote(self) -> RemoteFlow | None:
        if self.site is None:
            return None
        return RemoteFlow(
            self.site,
            self.name,
            self.keep_seconds,
            self.bytes_per_second or 0,
            self.at or "",
            self.priority,
            self.after == "filters",
        )

    @property
    def read_columns(self) -> Columns:
        return EVENT if self.site is None else {**EVENT, **PASSED}

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.site is None:
            for name in ("bytes_per_second", "priority", "at"):
                if getattr(self, name):
                    yield name, "only a flow of another site has limits: give its `site`"
            return
        if self.keep_seconds < LEAST_KEPT * self.discovery_seconds:
            yield (
                "keep_seconds",
                f"the site hears of this flow every discovery_seconds, {self.discovery_seconds:g} "
                f"s: keep events for {LEAST_KEPT} times as long at least",
            )

    def needs(self) -> Iterator[Need]:
        if self.site is not None:
            yield "input", f"flow://{self.site}"

    def arrival(self) -> str:
        behind = f", through the filters of {self.name}" if self.after == "filters" else ""
        if self.site is not None:
            return (
                f"each event that {self.name} of site {self.site} has accepted and still keeps is "
                f"taken once{behind}; a gap is a dead letter, or stops the flow"
            )
        return f"each event that {self.name} has accepted and still keeps is taken once{behind}"
