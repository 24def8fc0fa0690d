"""The stages of a flow: filters, branches and sinks as one list, in the order of its text."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.config.branch import Branch, Located, Segment
from flumeng.config.component import DEAD_LETTER, Component, FilterOptions, SinkOptions


@dataclass(frozen=True)
class Stage:
    """``behind``: the number of the previous stage; None: it gets the events as read. ``path``: its
    place in the file; ``place``: the same by names of branches, for messages and metrics.
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
        """Whether failed events become dead letters, which leave the flow there."""
        return self.part.on_error == DEAD_LETTER


@dataclass(frozen=True)
class BranchStage(Stage):
    """The entry of a branch; ``branch`` is its own name."""

    part: Branch


@dataclass(frozen=True)
class SinkStage(Stage):
    part: Component[SinkOptions]
    sink: int


FlowStage = FilterStage | BranchStage | SinkStage


def stages_of(flow: Segment) -> tuple[FlowStage, ...]:
    """Depth first: filters, then sinks, then branches."""
    stages: list[FlowStage] = []
    _append(Located(flow), None, stages)
    return tuple(stages)


def following(stages: tuple[FlowStage, ...], number: int | None) -> list[FlowStage]:
    """The stages directly after ``number``; None: the first ones."""
    return [stage for stage in stages if stage.behind == number]


def leading_to(stages: tuple[FlowStage, ...], last: FlowStage) -> list[FlowStage]:
    """The stages on the way to ``last``, and itself."""
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
