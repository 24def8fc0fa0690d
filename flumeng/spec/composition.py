"""What a flow runs that reads another one: what that does to its events first, then what it says.

Each flow reads the journals at the beginning of its *way*, under a cursor of its own, whatever
stands between. What runs is a flow's text like any other, with that flow as its source: nothing of
it has to be looked up when it runs.

Rules
1. A flow that is read ``after: filters`` adds its ``multiline`` and its filters, not its branches.
2. It writes the dead letters of its filters itself: here they drop those events.
3. What is before a flow's filters is before those of all who read it, after sources or filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import yaml

from flumeng.spec import FlowSpec, check_flow, document, nodes, parse_written
from flumeng.spec.flow_source import FlowSource
from flumeng.spec.isolation import without_letters
from flumeng.spec.problems import Problem, SpecError

SOURCE = "flow"


@dataclass(frozen=True)
class Step:
    """A flow that is read, and whether its filters come before those of the one that reads it."""

    flow: str
    filters: bool


class CycleError(Exception):
    """Flows read each other; ``way`` ends with the flow that it begins with."""

    def __init__(self, way: Sequence[str]) -> None:
        self.way = tuple(way)
        said = " ".join(f"{flow} reads" for flow in way[:-1])
        super().__init__(f"flows read each other: {said} {way[-1]}")


def source_of(spec: FlowSpec) -> FlowSource | None:
    """The source of a flow that reads another one."""
    options = (part.options for part in spec.sources)
    return next((one for one in options if isinstance(one, FlowSource)), None)


def way_of(flow: str, text_of: Callable[[str], str | None]) -> tuple[Step, ...]:
    """The flows that it reads, the next one first; the last has sources of its own, or no text.
    Raises ``CycleError``, ``SpecError``."""
    way = [flow]
    steps: list[Step] = []
    while (text := text_of(way[-1])) is not None:
        source = source_of(parse_written(text))
        if source is None:
            break
        if source.name in way:
            raise CycleError([*way[way.index(source.name) :], source.name])
        way.append(source.name)
        steps.append(Step(source.name, source.after == "filters"))
    return tuple(steps)


def composed(text: str, way: Sequence[Step], texts: Sequence[str]) -> str:
    """What the flow of this text runs; ``texts`` are those of the flows on its way. Empty when it
    runs its own text. Raises ``SpecError`` when they do not go together."""
    if not way or (len(way) == 1 and not way[0].filters):
        return ""
    read = [(step.flow, one) for step, one in zip(way, texts, strict=True) if step.filters]
    for one in (text, *texts[:-1], *(one for _, one in read)):
        _refuse_rollout(one)
    root = document.compose(text)
    own = document.items(root)
    source = document.items(own["sources"].value[0])[SOURCE]
    source.value = [pair for pair in source.value if pair[0].value != "after"]
    nodes.put(source, "name", nodes.text(way[-1].flow))
    filters: list[yaml.Node] = []
    multiline: yaml.Node | None = None
    for flow, one in reversed(read):
        parts = document.items(document.compose(one))
        if "multiline" in parts:
            _refuse_second_multiline(flow, filters, multiline)
            multiline = parts["multiline"]
        filters += map(without_letters, parts["filters"].value if "filters" in parts else ())
    if "multiline" in own:
        _refuse_second_multiline("", filters, multiline)
    elif multiline is not None:
        nodes.put(root, "multiline", multiline)
    filters += own["filters"].value if "filters" in own else ()
    if filters:
        nodes.put(root, "filters", nodes.listed(filters))
    made = str(yaml.serialize(root))
    check_flow(made)
    return made


def _refuse_rollout(text: str) -> None:
    spec = parse_written(text)
    if spec.rollout is not None:
        raise _problem(
            "rollout",
            f"flow {spec.flow} may go back by itself, and what is made of its text would not: "
            "leave rollout out, or read `after: sources` what has sources of its own",
        )


def _refuse_second_multiline(
    flow: str, filters: Sequence[yaml.Node], multiline: yaml.Node | None
) -> None:
    if not filters and multiline is None:
        return
    whose = f"flow {flow}" if flow else "it"
    before = "filters" if filters else "a multiline"
    raise _problem(
        "multiline",
        f"{whose} joins lines, and what is read has {before} before that: lines are joined once, "
        "before all filters",
    )


def _problem(path: str, message: str) -> SpecError:
    return SpecError([Problem(0, path, message)])
