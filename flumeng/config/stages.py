"""The stages of a flow: its filters, branches and sinks as one list, in the order of its text.

Everything that runs a flow, tries it or draws it goes through this list.
"""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.config.branch import Branch, Located, Segment
from flumeng.config.component import DEAD_LETTER, Component, FilterOptions, SinkOptions


@dataclass(frozen=True)
class Stage:
    """One step of an event's way. ``behind``: the number of the stage whose events it gets; None
    when it gets what the flow reads. ``path`` is where it stands in the file, ``place`` the same
    with the names of branches, which messages, metrics and dead letters show. ``branch``: the
    name of the branch that it is in, behind those that this is in; empty in the flow itself."""

    number: int
    path: str
    place: str
    branch: str
    behind: int | None


@dataclass(frozen=True)
class FilterStage(Stage):
    part: Component[FilterOptions]

    @property
    def makes_letters(self) -> bool:
        """Whether events that it cannot process become dead letters: events part behind it."""
        return self.part.on_error == DEAD_LETTER


@dataclass(frozen=True)
class BranchStage(Stage):
    """The entry of a branch; ``branch`` is its own name."""

    part: Branch


@dataclass(frozen=True)
class SinkStage(Stage):
    """``sink``: its number among the sinks."""

    part: Component[SinkOptions]
    sink: int


FlowStage = FilterStage | BranchStage | SinkStage


def stages_of(flow: Segment) -> tuple[FlowStage, ...]:
    """The stages of a flow or of a branch, depth first: each behind the one whose events it gets.
    Filters come before sinks, and sinks before branches."""
    found: list[FlowStage] = []
    _append(Located(flow), None, found)
    return tuple(found)


def following(stages: tuple[FlowStage, ...], number: int | None) -> list[FlowStage]:
    """The stages that get the events of one of them; of None those that get what is read."""
    return [stage for stage in stages if stage.behind == number]


def leading_to(stages: tuple[FlowStage, ...], last: FlowStage) -> list[FlowStage]:
    """The stages through which events come to one of them, and that itself."""
    way = [last]
    while (before := way[-1].behind) is not None:
        way.append(stages[before])
    return way[::-1]


def _append(where: Located, behind: int | None, found: list[FlowStage]) -> None:
    for number, part in enumerate(where.segment.filters):
        name = f"filters[{number}].{part.name}"
        path, place = where.path + name, where.place + name
        found.append(FilterStage(len(found), path, place, where.name, behind, part))
        behind = found[-1].number
    for number, output in enumerate(where.segment.sinks):
        name = f"sinks[{number}].{output.name}"
        path, place = where.path + name, where.place + name
        sink = sum(isinstance(stage, SinkStage) for stage in found)
        found.append(SinkStage(len(found), path, place, where.name, behind, output, sink))
    for below in where.parts():
        branch = below.segment
        assert isinstance(branch, Branch)
        path, place = below.path.removesuffix("."), below.place.removesuffix(".")
        found.append(BranchStage(len(found), path, place, below.name, behind, branch))
        _append(below, found[-1].number, found)
