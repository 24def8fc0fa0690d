"""Documentation of option classes as rows, for the reference page and ``flumeng components``."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from flumeng.config.component import is_component
from flumeng.platform.options.option import Option, Unit, default_of, described, is_required

_UNITS: Mapping[Unit | None, tuple[tuple[str, float], ...]] = {
    "bytes": (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1)),
    "seconds": (("d", 86400), ("h", 3600), ("s", 1), ("ms", 0.001)),
}
_UNIT_NAMES = {
    "bytes": "size",
    "seconds": "duration",
    "events": "number of events",
    "ratio": "ratio",
}

UNIONS = (Union, types.UnionType)


@dataclass(frozen=True)
class OptionRow:
    """An option in Markdown. ``value``: type, bounds. ``default``: the default or "required"."""

    name: str
    value: str
    default: str
    meaning: str


def option_rows(cls: type[Any]) -> Iterator[OptionRow]:
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        option = described(field)
        meaning = option.doc
        if option.example:
            meaning += f" Example: `{option.example}`."
        default = "required" if is_required(field) else _default(default_of(field), option)
        yield OptionRow(field.name, _value(hints[field.name], option), default, meaning)


def nested_options(cls: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    """Yield the options that have options of their own, with the option class."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        for hint in _leaf_types(hints[field.name]):
            if dataclasses.is_dataclass(hint):
                yield field.name, hint


def documentation(cls: type[Any]) -> str:
    return inspect.cleandoc(cls.__doc__ or "")


def _leaf_types(hint: Any) -> Iterator[type[Any]]:
    if get_origin(hint) in (*UNIONS, tuple, Mapping):
        for arg in get_args(hint):
            yield from _leaf_types(arg)
    elif isinstance(hint, type):
        yield hint


def _value(hint: Any, option: Option) -> str:
    if get_origin(hint) in UNIONS:
        return ", or ".join(_value(arg, option) for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if get_origin(hint) is tuple:
        (item, _) = get_args(hint)
        if is_component(item):
            return "list of components"
        if any(dataclasses.is_dataclass(leaf) for leaf in _leaf_types(item)):
            return "list, see below"
        if item is yaml.Node:
            return "list"
        return "list of numbers" if item is int else "list of texts"
    if get_origin(hint) is Mapping:
        return _by_name(get_args(hint)[1])
    if dataclasses.is_dataclass(hint) or is_component(hint):
        return "see below"
    if hint is bool:
        return "`true` or `false`"
    if hint in (int, float):
        return f"{_UNIT_NAMES[option.unit] if option.unit else 'number'}{_bounds(option)}"
    return "text"


def _by_name(item: Any) -> str:
    if get_origin(item) in UNIONS:
        return ", or ".join(map(_by_name, get_args(item)))
    if dataclasses.is_dataclass(item):
        return "by name, see below"
    if get_origin(item) is tuple:
        return "lists of texts by name"
    return "texts by name" if item is str else "numbers by name"


def _bounds(option: Option) -> str:
    if option.minimum is None or option.maximum is None:
        return ""
    return f", {_quantity(option.minimum, option)} to {_quantity(option.maximum, option)}"


def _default(value: Any, option: Option) -> str:
    if value is None:
        return "none"
    if value in ("", (), {}) or dataclasses.is_dataclass(value):
        return "empty"
    if isinstance(value, tuple):
        return f"`{', '.join(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{_quantity(value, option)}`"


def _quantity(value: Any, option: Option) -> str:
    for unit, factor in _UNITS.get(option.unit, ()):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:_}" if isinstance(value, int) else str(value)
