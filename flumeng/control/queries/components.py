"""Sources, filters and sinks with their options, and the options of a flow itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flumeng.config import registry
from flumeng.config.component import SourceOptions
from flumeng.config.flow import FlowSpec
from flumeng.config.option_docs import OptionRow, documentation, nested_options, option_rows
from flumeng.platform.errors import UnknownNameError, UserError
from flumeng.platform.options.problems import nearest


@dataclass(frozen=True)
class Section:
    """A component, or an option that has options of its own. ``kind``: ``source``, ``filter``,
    ``sink``, ``flow`` or ``option``. ``guarantees``: of a source."""

    kind: str
    name: str
    package: str
    guarantees: tuple[str, ...]
    doc: str
    options: tuple[OptionRow, ...]


def components() -> list[Section]:
    """Return all components; a broken one with its fault as ``doc``."""
    return list(_components())


def sections(name: str) -> list[Section]:
    """Return the components and options with this name. Raises UnknownNameError with the nearest
    name for an unknown one, and UserError for a broken component."""
    found = list(_named(name))
    if not found:
        names = [section.name for section in (*_components(), *_flow_sections())]
        raise UnknownNameError(
            f'there is no source, filter, sink or option of a flow named "{name}"; '
            f"{nearest(name, names)}"
        )
    return found


def _named(name: str) -> Iterator[Section]:
    for entry in registry.all_entries():
        if entry.name == name:
            if fault := entry.fault():
                raise UserError(fault)
            yield from _sections(entry.kind, name, entry.distribution, entry.options_class())
    for section in _flow_sections():
        if section.name == name or section.name.startswith(f"{name}."):
            yield section


def _components() -> Iterator[Section]:
    for entry in registry.all_entries():
        if fault := entry.fault():
            yield Section(entry.kind, entry.name, entry.distribution, (), f"BROKEN: {fault}.", ())
        else:
            yield _section(entry.kind, entry.name, entry.distribution, entry.options_class())


def _flow_sections() -> Iterator[Section]:
    yield _section("flow", "flow", registry.OWN, FlowSpec)
    for option, cls in nested_options(FlowSpec):
        yield from _sections("option", option, registry.OWN, cls)


def _sections(
    kind: str, name: str, package: str, cls: type[Any], above: tuple[type[Any], ...] = ()
) -> Iterator[Section]:
    """Yield the sections of a class and, by path, of nested option classes that do not recur."""
    yield _section(kind, name, package, cls)
    for option, nested in nested_options(cls):
        if nested not in (cls, *above):
            yield from _sections("option", f"{name}.{option}", package, nested, above=(cls, *above))


def _section(kind: str, name: str, package: str, cls: type[Any]) -> Section:
    guarantees = tuple(sorted(cls.guarantees)) if issubclass(cls, SourceOptions) else ()
    options = tuple(option_rows(cls))
    return Section(kind, name, package, guarantees, documentation(cls), options)
