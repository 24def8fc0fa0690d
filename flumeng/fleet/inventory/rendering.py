"""Renders each site: overlays layers, fills in variables, validates the result. Pure. A flow
without overlays and variables, or marked ``layers.VERBATIM``, keeps its text byte for byte; others
are serialized from their trees. Sites with the same files and values share the work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from flumeng.config import check_flow, document
from flumeng.config.flow_names import why_not_applied
from flumeng.fleet.inventory import (
    Inventory,
    InventoryError,
    InventoryProblem,
    Site,
    cluster_file,
    layers,
    overlays,
    site_loops,
    variables,
)
from flumeng.fleet.inventory.cluster_file import ClusterResources
from flumeng.fleet.inventory.layers import Layer, LayerFile
from flumeng.fleet.inventory.overlays import Origin, Problems
from flumeng.fleet.resources import FLOW, HERE, SITE, Resources
from flumeng.platform.options.problems import Problem, SpecError, nearest

_UNFOLDED = 2**20
_Dumper: Any = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper

Files = tuple[LayerFile, ...]
"""The files of a flow or cluster, laid over each other, lowest first."""
Check = Callable[[str], ClusterResources | None]
"""Returns the content of a cluster file, None for a flow. Raises ``SpecError``."""


def render(inventory: Inventory) -> Mapping[str, Resources]:
    """Return each site's resources. Raises ``InventoryError`` with all problems of all sites, and
    ``UserError`` for flows that form a loop over sites."""
    rendering = _Rendering()
    rendered = {
        site.name: rendering.resources(site, _layers(inventory, site))
        for site in inventory.sites.values()
    }
    if rendering.problems:
        raise InventoryError(
            [replace(problem, sites=tuple(sites)) for problem, sites in rendering.problems.items()]
        )
    site_loops.refuse(rendered)
    return rendered


@dataclass(frozen=True)
class Stack:
    flows: Mapping[str, Files]
    cluster: Files
    problems: tuple[InventoryProblem, ...]


@dataclass(frozen=True)
class Laid:
    """A merged tree and its variables; ``untouched``: its only file, if the text is unchanged."""

    tree: yaml.Node
    names: tuple[str, ...]
    untouched: LayerFile | None
    problems: tuple[InventoryProblem, ...]


@dataclass(frozen=True)
class Rendered:
    """A rendered file. ``source``: the text's origin; ``cluster``: content of a cluster file."""

    text: str
    source: LayerFile | yaml.Node
    problems: tuple[InventoryProblem, ...]
    cluster: ClusterResources | None


class _Rendering:
    """Renders sites; caches the work that sites share. ``problems``: each with its sites."""

    def __init__(self) -> None:
        self.problems: dict[InventoryProblem, list[str]] = {}
        self._stacks: dict[tuple[str, ...], Stack] = {}
        self._laid: dict[Files, Laid] = {}
        self._rendered: dict[tuple[Files, tuple[str | None, ...]], Rendered] = {}

    def resources(self, site: Site, own: Mapping[str, Layer]) -> Resources:
        """Return the resources of a site with these layers; invalid when there are problems."""
        values = {**site.variables, "site": site.name}
        if site.zone:
            values["zone"] = site.zone
        stack = self._stack(own)
        problems = set(stack.problems)
        resources: dict[str, str] = {}
        for flow, files in stack.flows.items():
            rendered = self._file(files, values, _check_flow)
            problems.update(rendered.problems)
            resources[f"{FLOW}/{flow}"] = rendered.text
        if stack.cluster:
            rendered = self._file(stack.cluster, values, cluster_file.read)
            problems.update(rendered.problems)
            if rendered.cluster is not None:
                problems.update(_wrong_chokes(rendered, rendered.cluster, stack.flows))
                problems.update(_without_gateways(rendered, rendered.cluster, site.name))
                resources |= rendered.cluster.resources
                if f"{SITE}/{site.name}" in resources:
                    resources[f"{SITE}/{site.name}"] = HERE
        for problem in problems:
            self.problems.setdefault(problem, []).append(site.name)
        return resources

    def _stack(self, own: Mapping[str, Layer]) -> Stack:
        key = tuple(own)
        if key not in self._stacks:
            self._stacks[key] = _stacked(list(own.values()))
        return self._stacks[key]

    def _file(self, files: Files, values: Mapping[str, str], check: Check) -> Rendered:
        if files not in self._laid:
            self._laid[files] = _lay(files)
        laid = self._laid[files]
        key = files, tuple(map(values.get, laid.names))
        if key not in self._rendered:
            self._rendered[key] = _render(laid, values, check)
        return self._rendered[key]


def _layers(inventory: Inventory, site: Site) -> Mapping[str, Layer]:
    own = layers.names(site.name, site.groups)
    return {name: inventory.layers[name] for name in own if name in inventory.layers}


def _stacked(own: Sequence[Layer]) -> Stack:
    flows: dict[str, Files] = {}
    cluster: Files = ()
    problems: list[InventoryProblem] = []
    seen: set[str] = set()
    for layer in own:
        for flow, file in layer.flows.items():
            if overlays.directive(file.root) == overlays.DELETE and flow not in seen:
                hint = nearest(flow, sorted(seen)) if seen else "they have no flows"
                message = f"removes flow {flow}, which no lower layer has; {hint}"
                problems.append(overlays.problem(file.root, "flow", message))
            flows[flow] = _over(flows.get(flow, ()), file)
        seen |= set(layer.flows)
        if layer.cluster is not None:
            cluster = _over(cluster, layer.cluster)
    kept = {flow: files for flow, files in sorted(flows.items()) if files}
    return Stack(kept, cluster, tuple(problems))


def _over(below: Files, file: LayerFile) -> Files:
    patch = overlays.directive(file.root)
    if patch == overlays.DELETE:
        return ()
    return (file,) if patch == overlays.REPLACE or file.is_verbatim else (*below, file)


def _lay(files: Files) -> Laid:
    problems: Problems = []
    tree = overlays.lay([file.root for file in files], problems)
    assert tree is not None, "a stack has no file that removes the flow"
    usage = variables.usage(tree)
    changes = usage.changes or overlays.has_directives(files[0].root)
    is_touched = len(files) > 1 or (changes and not files[0].is_verbatim)
    return Laid(tree, usage.names, None if is_touched else files[0], tuple(problems))


def _render(laid: Laid, values: Mapping[str, str], check: Check) -> Rendered:
    if laid.untouched is not None:
        text: str = laid.untouched.text
        source: LayerFile | yaml.Node = laid.untouched
        problems: Problems = []
    else:
        problems = list(laid.problems)
        source = variables.filled(laid.tree, values, problems)
        text = written(source)
    cluster = None
    try:
        cluster = check(text)
    except SpecError as error:
        reported = {(problem.file, problem.line) for problem in problems}
        more = _placed(error.problems, text, source)
        problems += [problem for problem in more if (problem.file, problem.line) not in reported]
    return Rendered(text, source, tuple(problems), cluster)


def written(tree: yaml.Node) -> str:
    """Return the tree's text, without folded lines, so that equal trees have equal texts."""
    text: str = yaml.serialize(tree, Dumper=_Dumper, width=_UNFOLDED, allow_unicode=True)
    return text


def _check_flow(text: str) -> None:
    if why := why_not_applied(check_flow(text).flow):
        raise SpecError([Problem(1, "flow", why)])


def _wrong_chokes(
    rendered: Rendered, cluster: ClusterResources, flows: Mapping[str, Files]
) -> list[InventoryProblem]:
    problems = []
    for name, line in cluster.choke_lines.items():
        flow = name.partition("@")[0]
        if flow not in flows:
            hint = nearest(flow, flows) if flows else "it has none"
            message = f'the site has no flow "{flow}"; {hint}'
            problems.append(Problem(line, f"chokes.{name}", message))
    return _placed(problems, rendered.text, rendered.source)


def _without_gateways(
    rendered: Rendered, cluster: ClusterResources, here: str
) -> list[InventoryProblem]:
    problems = [
        Problem(line, f"sites.{name}", "give the gateways of this site, HOST:PORT each")
        for name, line in cluster.site_lines.items()
        if name != here and not cluster.resources[f"{SITE}/{name}"]
    ]
    return _placed(problems, rendered.text, rendered.source)


def _placed(
    problems: Iterable[Problem], text: str, source: LayerFile | yaml.Node
) -> list[InventoryProblem]:
    if isinstance(source, LayerFile):
        above = int(source.is_verbatim)
        return [InventoryProblem(source.name, p.line + above, p.path, p.message) for p in problems]
    places = _places(source, text) if problems else {}
    located = []
    for problem in problems:
        file, line = (
            places.get((problem.line, problem.path))
            or places.get((problem.line, None))
            or overlays.origin(source)
        )
        located.append(InventoryProblem(file, line, problem.path, problem.message))
    return located


def _places(tree: yaml.Node, text: str) -> Mapping[tuple[int, str | None], Origin]:
    """Return the origin of each (line, path) and (line, None); empty for a too large text."""
    try:
        pending = deque([(tree, document.compose(text), "")])
    except SpecError:
        return {}
    places: dict[tuple[int, str | None], Origin] = {}
    while pending:
        source, node, path = pending.popleft()
        places[document.line(node), path] = overlays.origin(source)
        places[document.line(node), None] = overlays.origin(source)
        if isinstance(node, yaml.MappingNode):
            for before, (key, value) in zip(source.value, node.value, strict=True):
                key_path = f"{path}.{key.value}" if path else key.value
                pending += [(before[0], key, key_path), (before[1], value, key_path)]
        elif isinstance(node, yaml.SequenceNode):
            pending += [
                (before, entry, f"{path}[{index}]")
                for index, (before, entry) in enumerate(zip(source.value, node.value, strict=True))
            ]
    return places
