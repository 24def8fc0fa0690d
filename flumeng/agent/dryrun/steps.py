"""The steps of a flow after which events can be shown, and the flow cut after one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flumeng.config import columns
from flumeng.config.branch import Branch
from flumeng.config.component import Component, FilterOptions
from flumeng.config.flow import FlowSpec
from flumeng.config.stages import FilterStage
from flumeng.connectors.console.options import Noop
from flumeng.filters.options.where import Where
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import nearest

SOURCES = "sources"
_END = (Component("sink", "noop", Noop()),)


@dataclass(frozen=True)
class Step:
    """A point in a flow. ``place``: its name in messages. ``branch``: with its parents' names.
    ``filters``: number of the branch's filters up to here. ``name``: of the filter, else empty."""

    place: str
    branch: str
    filters: int
    name: str = ""


def steps(spec: FlowSpec) -> Iterator[Step]:
    """Yield the steps of a flow: the sources, the flow's filters and sinks, then each branch, its
    filters and its sinks, depth first."""
    yield Step(SOURCES, "", 0)
    for segment in spec.segments:
        if segment.name:
            yield Step(segment.place.removesuffix("."), segment.name, 0)
        own = [stage for stage in spec.stages if stage.branch == segment.name]
        filters = [stage for stage in own if isinstance(stage, FilterStage)]
        for number, stage in enumerate(filters, 1):
            yield Step(stage.place, segment.name, number, stage.part.name)
        yield Step(f"{segment.place}sinks", segment.name, len(filters))


def find(spec: FlowSpec, text: str) -> Step:
    """Find a step by its place (``filters[2].parse``), or a filter by its name (``parse``) or, for
    the flow's own filters, number (``2``). Raises UserError unless exactly one step matches."""
    all_steps = list(steps(spec))
    filters = [step for step in all_steps if step.name]
    same = [step for step in filters if text == step.place.removesuffix(f".{step.name}")]
    short = [
        step
        for step in filters
        if text == step.name or (not step.branch and text == str(step.filters - 1))
    ]
    for matches in ([step for step in all_steps if step.place == text], same, short):
        if len(matches) == 1:
            return matches[0]
        if matches:
            places = ", ".join(step.place for step in matches)
            raise UserError(f"--at: several filters are named {text}: {places}")
    hint = nearest(text, [step.place for step in all_steps])
    raise UserError(f"--at: flow {spec.flow} has no step {text!r}; {hint}")


def as_far_as(spec: FlowSpec, step: Step, where: str | None = None) -> FlowSpec:
    """Return the flow cut after ``step``, with a sink ``noop`` there, no other sinks, and ``where``
    as its last filter. Raises UserError when that condition does not fit the columns."""
    last = () if where is None else (Component("filter", "where", Where(where)),)
    names = step.branch.split("/") if step.branch else []
    filters, branches = _shortened(spec.filters, spec.branches, names, step.filters, last)
    multiline = None if step.place == SOURCES else spec.multiline
    sinks = () if names else _END
    shortened = replace(
        spec,
        filters=filters,
        branches=branches,
        sinks=sinks,
        dead_letters=None,
        multiline=multiline,
    )
    if where is not None:
        for _, message in columns.check(shortened):
            raise UserError(f"--where: {message}")
    return shortened


def _shortened(
    filters: tuple[Component[FilterOptions], ...],
    branches: tuple[Branch, ...],
    names: list[str],
    count: int,
    last: tuple[Component[FilterOptions], ...],
) -> tuple[tuple[Component[FilterOptions], ...], tuple[Branch, ...]]:
    """Cut the branch ``names``; siblings stay, since ``otherwise`` branches depend on them."""
    if not names:
        return (*filters[:count], *last), ()
    kept = []
    for branch in branches:
        inner: tuple[tuple[Component[FilterOptions], ...], tuple[Branch, ...]] = ((), ())
        on_the_way = branch.name == names[0]
        if on_the_way:
            inner = _shortened(branch.filters, branch.branches, names[1:], count, last)
        ends = _END if on_the_way and len(names) == 1 else ()
        kept.append(replace(branch, filters=inner[0], branches=inner[1], sinks=ends))
    return filters, tuple(kept)
