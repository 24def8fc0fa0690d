"""The stages of a flow: filters, branches and sinks as one list, in the order of its text."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.config.branch import Branch, Located, Segment
from flumeng.config.component import DEAD_LETTER, Component, FilterOptions, SinkOptions


@dataclass(frozen=True)
class Stage:
    """A filter, branch or sink. ``behind``: number of the previous stage, None when there is none.
    ``path``: its place in the file; ``place``: the same by branch names, for messages and metrics.
    ``branch``: the full name of its branch; empty in the flow itself."""

    number: int
    path: str
    place: str
    branch: str
    behind: int | None


@dataclass(frozen=True)
class FilterStage(Stage):
    part: Component[FilterOptions]

    @property
    def makes_dead_letters(self) -> bool:
        """Whether failed events leave the flow here, as dead letters."""
        return self.part.on_error == DEAD_LETTER


@dataclass(frozen=True)
class BranchStage(Stage):
    """The entry of a branch; ``branch`` is the full name of the entered branch."""

    part: Branch


@dataclass(frozen=True)
class SinkStage(Stage):
    part: Component[SinkOptions]
    sink: int


FlowStage = FilterStage | BranchStage | SinkStage


def stages_of(flow: Segment) -> tuple[FlowStage, ...]:
    """Return the stages depth first: filters, then sinks, then branches."""
    stages: list[FlowStage] = []
    _append(Located(flow), None, stages)
    return tuple(stages)


def following(stages: tuple[FlowStage, ...], number: int | None) -> list[FlowStage]:
    """Return the stages directly after stage ``number``; None: the first stages."""
    return [stage for stage in stages if stage.behind == number]


def leading_to(stages: tuple[FlowStage, ...], last: FlowStage) -> list[FlowStage]:
    """Return the stages on the path to ``last``, and ``last`` itself."""
    way = [last]
    while (before := way[-1].behind) is not None:
        way.append(stages[before])
    return way[::-1]


def _append(where: Located, behind: int | None, stages: list[FlowStage]) -> None:
    for number, part in enumerate(where.segment.filters):
        name = f"filters[{number}].{part.name}"
        path, place = where.path + name, where.place + name
        stages.append(FilterStage(len(stages), path, place, where.name, behind, part))
        behind = stages[-1].number
    for number, output in enumerate(where.segment.sinks):
        name = f"sinks[{number}].{output.name}"
        path, place = where.path + name, where.place + name
        sink = sum(isinstance(stage, SinkStage) for stage in stages)
        stages.append(SinkStage(len(stages), path, place, where.name, behind, output, sink))
    for below in where.parts():
        branch = below.segment
        assert isinstance(branch, Branch)
        path, place = below.path.removesuffix("."), below.place.removesuffix(".")
        stages.append(BranchStage(len(stages), path, place, below.name, behind, branch))
        _append(below, stages[-1].number, stages)
