"""Drafts of flows and their parts, checked with the flow language itself: ``flumeng flow validate``
accepts each result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import yaml

from flumeng.config import Problem, SpecError, check_flow
from flumeng_flume.answers import Options, Setting
from flumeng_flume.findings import Location, Log

COMMENTS = 20
_UNCHECKED_SOURCE: Any = {"generate": {}}


@dataclass
class Draft:
    """A source or sink of flumeng, and its origin in Flume. ``batch_seconds``: the interval that a
    sink asks of its flow."""

    kind: Literal["source", "sink"]
    name: str
    location: Location
    options: Options = field(default_factory=Options)
    batch_seconds: tuple[int, Setting] | None = None

    def to_yaml(self) -> Any:
        return {self.name: self.options.values} if self.options.values else self.name


@dataclass
class Way:
    """A branch of a flow: for the events that meet ``when``, with ``otherwise`` for those of no
    other branch, else for all."""

    name: str
    ends: list[End]
    when: str | None = None
    otherwise: bool = False
    filters: list[Any] = field(default_factory=list)

    def to_yaml(self) -> Any:
        named: dict[str, Any] = {"name": self.name}
        if self.when is not None:
            named["when"] = self.when
        if self.otherwise:
            named["otherwise"] = True
        if self.filters:
            named["filters"] = self.filters
        return {**named, **segment(self.ends)}


@dataclass
class Fork:
    """The branches of a flow, made for the component at ``location``."""

    ways: list[Way]
    location: Location

    def to_yaml(self) -> Any:
        return [way.to_yaml() for way in self.ways]


End = Draft | Fork
"""The end of a flow or branch, after its filters: a sink, or further branches."""


def segment(ends: Sequence[End]) -> dict[str, Any]:
    """Return the sinks and branches of a flow or branch, as in a flow file."""
    forks = [fork.to_yaml() for fork in ends if isinstance(fork, Fork)]
    several = [{"name": f"part-{n}", "branches": branches} for n, branches in enumerate(forks, 1)]
    parts = {
        "sinks": [end.to_yaml() for end in ends if isinstance(end, Draft)],
        "branches": forks[0] if len(forks) == 1 else several,
    }
    return {name: value for name, value in parts.items() if value}


def sinks_of(ends: Iterable[End]) -> list[Draft]:
    """Return all sinks, also those of branches."""
    sinks: list[Draft] = []
    for end in ends:
        if isinstance(end, Draft):
            sinks.append(end)
        else:
            sinks += [draft for way in end.ways for draft in sinks_of(way.ends)]
    return sinks


def valid(draft: Draft, log: Log, filters: Iterable[Any] = ()) -> bool:
    """Remove and report options that flumeng refuses; return False when the component is invalid
    without them."""
    for _ in range(len(draft.options.origins) + 1):
        problems = problems_of(draft, filters)
        if not problems:
            return True
        wrong = [(option, why) for path, why in problems if (option := _option_at(draft, path))]
        if not wrong:
            log.missing(draft.location, f"{draft.name}: {problems[0][1]}")
            return False
        for option, why in wrong:
            if (origin := draft.options.origins.pop(option, None)) is not None:
                log.missing(origin.location, f"{option}: {why}")
            draft.options.drop(option)
    log.missing(draft.location, f"{draft.name}: its required options could not be derived")
    return False


def refused(filters: Iterable[Any], *, kafka: bool = False) -> str | None:
    """Return why a flow may not have these filters; None when it may."""
    source: Any = {"kafka": {"brokers": ["a:1"], "topics": ["a"]}} if kafka else _UNCHECKED_SOURCE
    wrong = problems({"flow": "a", "sources": [source], "filters": [*filters], "sinks": ["noop"]})
    return wrong[0].message if wrong else None


def problems(flow: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return the problems of a flow. JSON is YAML, and is written several times faster."""
    given = {name: value for name, value in flow.items() if value not in ({}, [], None)}
    return _checked(json.dumps(given, ensure_ascii=False))


def to_text(flow: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    lines = [*comments]
    if len(lines) > COMMENTS:
        lines = [*lines[:COMMENTS], f"and {len(lines) - COMMENTS} more: see the report"]
    head = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    body: str = yaml.dump(
        {name: value for name, value in flow.items() if value not in ({}, [], None)},
        Dumper=_Dumper,
        sort_keys=False,
        width=100,
        allow_unicode=True,
    )
    return head + body


class Names:
    """Gives each flow a unique name that flumeng accepts."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def flow(self, *words: str) -> str:
        text = "-".join(label(word) for word in words if word)[:58].strip("-") or "flume"
        name, number = text, 2
        while name in self._taken:
            name, number = f"{text}-{number}", number + 1
        self._taken.add(name)
        return name


def label(word: str) -> str:
    """Return a word of lower-case letters, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", word.lower()).strip("-")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  each is written out
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def problems_of(draft: Draft, filters: Iterable[Any]) -> list[tuple[str, str]]:
    """Return the paths and messages of a component's problems after such filters."""
    other: dict[str, Any] = {"sources": [_UNCHECKED_SOURCE], "sinks": ["noop"]}
    flow = {"flow": "a", "filters": [*filters], **other, f"{draft.kind}s": [draft.to_yaml()]}
    return [(problem.path, problem.message) for problem in problems(flow)]


@lru_cache(maxsize=1024)
def _checked(text: str) -> tuple[Problem, ...]:
    try:
        check_flow(text)
    except SpecError as error:
        return error.problems
    return ()


def _option_at(draft: Draft, path: str) -> str | None:
    """Return the option of the component that a problem's path means; None when it was not set."""
    inside = path.partition(f"{draft.kind}s[0].{draft.name}.")[2]
    inside = re.sub(r"\[\d+\].*", "", inside)
    while inside:
        if inside in draft.options.origins:
            return inside
        nested = [name for name in draft.options.origins if name.startswith(inside + ".")]
        if nested:
            return nested[0]
        if "." not in inside:
            return inside if inside in draft.options.values else None
        inside = inside.rpartition(".")[0]
    return None
