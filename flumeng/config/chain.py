"""Chains of flows: a flow reads another one, its *upstream*, which may read a third, and so on.

The last flow of a chain, its *origin*, has sources of its own. All flows of a chain read the
journals of the origin, each under its own cursor. A flow runs a text *composed* of the filters of
its chain and its own text, with the origin as its source. So it looks nothing up at run time.

1. A flow that is read ``after: filters`` adds its ``multiline`` and filters, not its branches.
2. It writes the dead letters of its filters itself: a composed text drops those events.
3. Filters that an upstream gets from its own chain are added in both cases, whether the upstream is
   read ``after: sources`` or ``after: filters``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import yaml

from flumeng.config import FlowSpec, check_flow, document, parse_written
from flumeng.config.component import Upstream
from flumeng.config.isolation import without_dead_letters
from flumeng.platform.options.problems import Problem, SpecError

SOURCE = "flow"


class CycleError(Exception):
    """Flows read each other in a cycle, ``names``, which ends with its first name."""

    def __init__(self, names: Sequence[str]) -> None:
        loop = " ".join(f"{flow} reads" for flow in names[:-1])
        super().__init__(f"flows read each other: {loop} {names[-1]}")


def upstream_of(spec: FlowSpec) -> Upstream | None:
    return next(filter(None, (source.options.upstream for source in spec.sources)), None)


def chain_of(flow: str, text_of: Callable[[str], str | None]) -> tuple[Upstream, ...]:
    """Return the upstreams of ``flow``, nearest first; the last is the origin or has no text.
    Raises CycleError, SpecError."""
    names = [flow]
    chain: list[Upstream] = []
    while (text := text_of(names[-1])) is not None:
        upstream = upstream_of(parse_written(text))
        if upstream is None:
            break
        if upstream.flow in names:
            raise CycleError([*names[names.index(upstream.flow) :], upstream.flow])
        names.append(upstream.flow)
        chain.append(upstream)
    return tuple(chain)


def composed(text: str, chain: Sequence[Upstream], texts: Sequence[str]) -> str:
    """Return the composed text of a flow; empty when it runs its own text. ``texts``: those of its
    chain. Raises ``SpecError``."""
    if not chain or (len(chain) == 1 and not chain[0].filters):
        return ""
    read = [(up.flow, its) for up, its in zip(chain, texts, strict=True) if up.filters]
    for flow_text in (text, *texts[:-1], *(its for _, its in read)):
        _refuse_rollout(flow_text)
    root = document.compose(text)
    own = document.items(root)
    source = document.items(own["sources"].value[0])[SOURCE]
    source.value = [pair for pair in source.value if pair[0].value != "after"]
    document.put(source, "name", document.scalar(chain[-1].flow))
    filters: list[yaml.Node] = []
    multiline: yaml.Node | None = None
    for flow, its in reversed(read):
        top = document.items(document.compose(its))
        if "multiline" in top:
            _refuse_second_multiline(flow, filters, multiline)
            multiline = top["multiline"]
        filters += map(without_dead_letters, top["filters"].value if "filters" in top else ())
    if "multiline" in own:
        _refuse_second_multiline("", filters, multiline)
    elif multiline is not None:
        document.put(root, "multiline", multiline)
    filters += own["filters"].value if "filters" in own else ()
    if filters:
        document.put(root, "filters", document.list_node(filters))
    made = str(yaml.serialize(root))
    check_flow(made)
    return made


def _refuse_rollout(text: str) -> None:
    spec = parse_written(text)
    if spec.rollout is not None:
        raise _problem(
            "rollout",
            f"flow {spec.flow} may roll back by itself, but the flows that use its filters would "
            "not: leave rollout out, or read `after: sources` a flow with sources of its own",
        )


def _refuse_second_multiline(
    flow: str, filters: Sequence[yaml.Node], multiline: yaml.Node | None
) -> None:
    if not filters and multiline is None:
        return
    reader = f"flow {flow}" if flow else "the flow"
    before = "filters" if filters else "a multiline"
    raise _problem(
        "multiline",
        f"{reader} joins lines, but a flow that it reads has {before}: lines are joined once, "
        "before all filters",
    )


def _problem(path: str, message: str) -> SpecError:
    return SpecError([Problem(0, path, message)])
