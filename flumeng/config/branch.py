"""Branches: a flow is a tree that splits after its filters; each branch may split again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

from flumeng.config.component import Component, FilterOptions, SinkOptions
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import check_name

SOMEWHERE = ("sinks", "branches")
"""The options of a segment, of which at least one is required."""


class Segment(Protocol):
    """A flow or a branch."""

    @property
    def filters(self) -> tuple[Component[FilterOptions], ...]: ...

    @property
    def sinks(self) -> tuple[Component[SinkOptions], ...]: ...

    @property
    def branches(self) -> tuple[Branch, ...]: ...


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A way for events behind the filters of the flow, or of the branch that it is in. Each event
    goes into every branch whose condition is true for it; a branch without one takes all events.
    Sources and filters before the branches run once, and all branches are written in one commit: an
    event is acked when all of its sinks have it."""

    needs_one_of: ClassVar[tuple[str, ...]] = SOMEWHERE

    name: str = option(
        doc="The name of the branch in messages, metrics and dead letters. Branches beside each "
        "other have different names.",
        check=check_name,
        example="errors",
    )
    when: str | None = option(
        doc="A condition in Spark SQL: the branch takes the events for which it is true, not null "
        "and not false.",
        example='"severity <= 3"',
        default=None,
    )
    otherwise: bool = option(
        doc="Takes the events that no branch beside it takes. Only the last branch may have it.",
        default=False,
    )
    isolated: bool = option(
        doc="Reads the flow's journals at its own pace, by tasks of its own: while its sinks are "
        "down, no other branch waits.",
        default=False,
    )
    filters: tuple[Component[FilterOptions], ...] = option(
        doc="The filters of the branch, in order, as in the flow.", default=()
    )
    sinks: tuple[Component[SinkOptions], ...] = option(
        doc="Where the events of the branch go. It has `sinks`, `branches` or both.",
        minimum=1,
        example="[files: {path: /data/errors}]",
        default=(),
    )
    branches: tuple[Branch, ...] = option(
        doc="Further branches inside this one, as in the flow.", minimum=1, default=()
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.otherwise and self.when is not None:
            yield "otherwise", "this branch takes all other events: leave `when` out"
        yield from problems(self)


def problems(segment: Segment) -> Iterator[tuple[str, str]]:
    names: set[str] = set()
    for number, branch in enumerate(segment.branches):
        if branch.name in names:
            yield f"branches[{number}].name", f"there is a branch {branch.name} already"
        names.add(branch.name)
        if branch.otherwise and number < len(segment.branches) - 1:
            yield f"branches[{number}].otherwise", "only the last branch may have `otherwise`"
    every = [b.name for b in segment.branches if b.when is None and not b.otherwise]
    if every and segment.branches[-1].otherwise:
        yield (
            f"branches[{len(segment.branches) - 1}].otherwise",
            f"branch {every[0]} takes all events, so no others are left: give {every[0]} a `when`",
        )


@dataclass(frozen=True)
class Located:
    """A segment and its place in a flow. ``path``: in the file (``branches[0].``); ``place``: by
    names (``branches[errors].``), so that it is stable. ``name``: of the branch, after its parents'
    names. All three are empty for the flow itself."""

    segment: Segment
    path: str = ""
    place: str = ""
    name: str = ""

    def parts(self) -> Iterator[Located]:
        for number, branch in enumerate(self.segment.branches):
            yield Located(
                branch,
                f"{self.path}branches[{number}].",
                f"{self.place}branches[{branch.name}].",
                f"{self.name}/{branch.name}" if self.name else branch.name,
            )

    def walk(self) -> Iterator[Located]:
        yield self
        for part in self.parts():
            yield from part.walk()
