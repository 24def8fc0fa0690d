"""The readable parts of a flow with problems, so that all of its problems are found. An unreadable
component gets the options ``Unreadable``, so that the numbers of other components stay the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from flumeng.config.branch import Branch
from flumeng.config.component import Component, Declared, FilterOptions, SinkOptions, SourceOptions
from flumeng.config.decode import INVALID, Decoder
from flumeng.config.flow import FlowSpec
from flumeng.platform.options.option import is_required


class Unreadable(SourceOptions, FilterOptions, SinkOptions):
    """Options of a component that has a problem and could not be read."""


def readable_flow(decoder: Decoder) -> FlowSpec:
    """Return the flow; options with a problem have their default, required ones ()."""
    flow = _readable(decoder, FlowSpec, "")
    assert isinstance(flow, FlowSpec)
    return flow


def _readable(decoder: Decoder, cls: type[Any], path: str) -> Any:
    prefix = f"{path}." if path else ""
    values = dict(decoder.values.get(path, {}))
    for name in ("sources", "filters", "sinks"):
        entries = decoder.entries.get(f"{prefix}{name}")
        if name in values and entries is not None:
            values[name] = tuple(map(_component, entries))
    branches = decoder.entries.get(f"{prefix}branches")
    if "branches" in values and branches is not None:
        values["branches"] = tuple(
            _readable(decoder, Branch, f"{prefix}branches[{number}]")
            if branch is INVALID
            else branch
            for number, branch in enumerate(branches)
        )
    kept = {name: value for name, value in values.items() if value is not INVALID}
    empty = {field.name: () for field in fields(cls) if is_required(field)}
    return cls(**{**empty, **kept})


def _component(entry: Any) -> Component[Declared]:
    unreadable = Component("filter", "?", Unreadable())
    return unreadable if entry is INVALID else entry
