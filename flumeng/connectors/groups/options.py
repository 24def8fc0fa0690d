"""The options of the sinks ``first_of`` and ``one_of``, which are groups of other sinks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config import registry
from flumeng.config.component import Component, ExactlyOnce, SinkOptions
from flumeng.platform.options.option import option

EXAMPLE = (
    '[http: {url: "https://hooks-1.example/events"}, http: {url: "https://hooks-2.example/events"}]'
)


@dataclass(frozen=True)
class Group(SinkOptions):
    sinks: tuple[Component[SinkOptions], ...] = option(
        doc="The members: two or more sinks.", minimum=1, example=EXAMPLE
    )
    backoff_seconds: float = option(
        doc="The first back-off of a failed member. It doubles with each further failure.",
        between=(0.1, 86_400),
        default=10.0,
    )
    max_backoff_seconds: float = option(
        doc="The longest back-off of a member.", between=(0.1, 86_400), default=300.0
    )

    bare: ClassVar[str] = "sinks"

    @property
    def members(self) -> tuple[Component[SinkOptions], ...]:
        return self.sinks

    @property
    def exactly_once(self) -> ExactlyOnce | None:
        """``staged`` if all members are. Without staging a failed member may have written events
        that the next member gets too."""
        staged = all(sink.options.exactly_once == "staged" for sink in self.sinks)
        return "staged" if staged else None

    @property
    def makes_files(self) -> bool:
        return any(sink.options.makes_files for sink in self.sinks)

    @property
    def one_row_an_event(self) -> bool:
        return any(sink.options.one_row_an_event for sink in self.sinks)

    def problems(self) -> Iterator[tuple[str, str]]:
        if len(self.sinks) == 1:
            yield "", f"expected two sinks or more: {self.sinks[0].name} alone needs no group"
        for sink in self.sinks:
            if isinstance(sink.options, Group):
                yield "", f"{sink.name} is a group, which cannot be a member: list its sinks here"
            elif sink.options.in_driver:
                possible = (
                    name
                    for name, cls in registry.usable("sink")
                    if not cls.in_driver and not issubclass(cls, Group)
                )
                yield (
                    "",
                    f"{sink.name} writes in the collector's driver, but members write in "
                    f"executors: use {', '.join(possible)}",
                )
        if self.backoff_seconds > self.max_backoff_seconds:
            yield "", "expected backoff_seconds to be at most max_backoff_seconds"


@dataclass(frozen=True)
class FirstOf(Group):
    """Failover: events go into the first of several sinks that accepts them.

    The order of the list is the priority. While a member fails, the next one gets the events. A
    failed member is tried again after its back-off.
    """

    implementation: ClassVar[str] = "flumeng.connectors.groups.sink:FirstOfSink"


@dataclass(frozen=True)
class OneOf(Group):
    """Load balancing: each split of a batch goes into one of several sinks, which take turns.

    A member that fails is skipped until its back-off is over, and others get its share.
    """

    implementation: ClassVar[str] = "flumeng.connectors.groups.sink:OneOfSink"
