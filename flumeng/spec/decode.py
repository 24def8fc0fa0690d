"""One decoder for every option class: nodes to frozen dataclasses, driven by the fields' types.

Never stops at the first problem: what cannot be decoded is reported and stands as ``INVALID``, and
its neighbours are still looked at. A dataclass is built only when all of it is valid.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from flumeng import registry
from flumeng.spec import document, quantities
from flumeng.spec.component import Component, Kind
from flumeng.spec.option import Option, described, is_required
from flumeng.spec.problems import Problem, nearest


class Invalid(Enum):
    """Stands for a value about which a problem was reported."""

    INVALID = "invalid"


INVALID: Final = Invalid.INVALID
_NUMBERS: Mapping[object, Callable[[str], float]] = {
    "bytes": quantities.size,
    "seconds": quantities.duration,
    int: quantities.whole_number,
    float: quantities.number,
}
_KINDS: Mapping[str, Kind] = {"sources": "source", "filters": "filter", "sinks": "sink"}


class Decoder:
    """Collects ``problems`` and remembers where each decoded component stood.

    ``places`` maps a path such as ``sinks[0].files`` to its line, for the checks that come after.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.places: dict[str, int] = {}

    def report(self, node: yaml.Node, path: str, message: str) -> Literal[Invalid.INVALID]:
        self.problems.append(Problem(document.line(node), path, message))
        return INVALID

    def mapping(self, cls: type[Any], node: yaml.Node, path: str) -> Any:
        """An instance of the option class ``cls`` from the mapping ``node``, or ``INVALID``."""
        if not isinstance(node, yaml.MappingNode):
            return self.report(
                node, path, f"expected a mapping of options, found {document.describe(node)}"
            )
        fields = {field.name: field for field in dataclasses.fields(cls)}
        hints = _hints(cls)
        values: dict[str, Any] = {}
        before = len(self.problems)
        for name, key, value in self._pairs(node, path):
            place = f"{path}.{name}" if path else name
            self.places[place] = document.line(key)
            field = fields.get(name)
            if field is None:
                hint = nearest(name, fields) if fields else "there are no options here"
                self.report(key, place, f"unknown option; {hint}")
                continue
            values[name] = self._value(hints[name], value, place, described(field))
        for name, field in fields.items():
            if is_required(field) and name not in values:
                self.report(node, path, f'missing "{name}": {_wanted(described(field))}')
        if len(self.problems) > before:
            return INVALID
        instance = cls(**values)
        if isinstance(getattr(cls, "problems", None), types.FunctionType):
            for name, message in instance.problems():
                place = f"{path}.{name}" if name else path
                where = self.places.get(place, document.line(node))
                self.problems.append(Problem(where, place, message))
        return instance if len(self.problems) == before else INVALID

    def _pairs(
        self, node: yaml.MappingNode, path: str
    ) -> list[tuple[str, yaml.ScalarNode, yaml.Node]]:
        pairs = []
        first: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.report(key, path, f"expected a name, found {document.describe(key)}")
                continue
            name = str(key.value)
            if name in first:
                place = f"{path}.{name}" if path else name
                self.report(key, place, f"given twice; the first is in line {first[name]}")
                continue
            first[name] = document.line(key)
            pairs.append((name, key, value))
        return pairs

    def _value(self, hint: Any, node: yaml.Node, path: str, option: Option) -> Any:
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
            return self._value(hint, node, path, option)
        if origin is Literal:
            return self._choice(get_args(hint), node, path)
        if origin is tuple:
            return self._list(get_args(hint)[0], node, path, option)
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            return self.mapping(hint, node, path)
        if hint is str or origin is None:
            return self._scalar(hint, node, path, option)
        return self._labels(node, path, option)

    def _list(self, hint: Any, node: yaml.Node, path: str, option: Option) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            return self.report(node, path, f"expected a list, found {document.describe(node)}")
        if option.minimum is not None and len(node.value) < option.minimum:
            return self.report(node, path, "expected at least one entry")
        entry_option = dataclasses.replace(option, minimum=None, maximum=None)
        entries = [
            self._component(_KINDS[path], item, f"{path}[{index}]")
            if hint is Component
            else self._value(hint, item, f"{path}[{index}]", entry_option)
            for index, item in enumerate(node.value)
        ]
        return INVALID if INVALID in entries else tuple(entries)

    def _component(self, kind: Kind, node: yaml.Node, path: str) -> Component | Invalid:
        """``- name: options``, or ``- name`` alone."""
        options: yaml.Node | None = None
        name_node: yaml.Node = node
        if isinstance(node, yaml.MappingNode):
            if len(node.value) != 1:
                return self.report(
                    node, path, f"expected one {kind} in each entry of the list, like "
                    f'"- {registry.entries(kind)[0].name}: {{...}}"'
                )  # fmt: skip
            name_node, options = node.value[0]
        if not isinstance(name_node, yaml.ScalarNode) or document.is_null(name_node):
            return self.report(
                node, path, f"expected the name of a {kind}, found {document.describe(name_node)}"
            )
        name = str(name_node.value)
        entry = registry.find(kind, name)
        if entry is None:
            known = [known.name for known in registry.entries(kind)]
            return self.report(name_node, path, f'unknown {kind} "{name}"; {nearest(name, known)}')
        place = f"{path}.{name}"
        self.places[place] = document.line(name_node)
        decoded = self._options(entry.options_class(), name_node, options, place)
        return INVALID if decoded is INVALID else Component(kind, name, decoded)

    def _options(
        self, cls: type[Any], name_node: yaml.Node, node: yaml.Node | None, path: str
    ) -> Any:
        if node is None or document.is_null(node):
            none = yaml.MappingNode("", [], name_node.start_mark, name_node.end_mark)
            return self.mapping(cls, none, path)
        bare: str | None = getattr(cls, "bare", None)
        if bare is None or isinstance(node, yaml.MappingNode):
            return self.mapping(cls, node, path)
        field = next(field for field in dataclasses.fields(cls) if field.name == bare)
        value = self._value(_hints(cls)[bare], node, path, described(field))
        return INVALID if value is INVALID else cls(**{bare: value})

    def _choice(self, choices: tuple[str, ...], node: yaml.Node, path: str) -> Any:
        text = self._text(node, path, f"expected one of {', '.join(choices)}")
        if text is INVALID or text in choices:
            return text
        message = f"expected one of {', '.join(choices)}, found {document.describe(node)}"
        hint = nearest(text, choices)
        return self.report(node, path, f"{message}; {hint}" if "did you" in hint else message)

    def _scalar(self, hint: Any, node: yaml.Node, path: str, option: Option) -> Any:
        text = self._text(node, path, _wanted(option))
        if text is INVALID:
            return INVALID
        try:
            if hint is str:
                if not text.strip():
                    raise ValueError(_wanted(option))
                if option.check is not None:
                    option.check(text)
                return text
            read = _NUMBERS.get(option.unit) or _NUMBERS[hint]
            value = read(text)
            _check_bounds(value, option)
        except ValueError as error:
            return self.report(node, path, f"{error}; found {document.describe(node)}")
        return hint(value)

    def _labels(self, node: yaml.Node, path: str, option: Option) -> Any:
        if not isinstance(node, yaml.MappingNode):
            return self.report(node, path, f"expected labels, like {option.example}")
        values = {
            name: self._text(value, f"{path}.{name}", "expected the label's value")
            for name, _key, value in self._pairs(node, path)
        }
        return INVALID if INVALID in values.values() else values

    def _text(self, node: yaml.Node, path: str, wanted: str) -> str | Literal[Invalid.INVALID]:
        if not isinstance(node, yaml.ScalarNode) or document.is_null(node):
            return self.report(node, path, f"{wanted}; found {document.describe(node)}")
        return str(node.value)


def _wanted(option: Option) -> str:
    sentence = option.doc.partition(". ")[0].rstrip(".")
    text = f"expected {sentence[0].lower()}{sentence[1:]}"
    return f"{text} (like {option.example})" if option.example else text


def _check_bounds(value: float, option: Option) -> None:
    unit = f" {option.unit}" if option.unit else ""
    if option.minimum is not None and value < option.minimum:
        raise ValueError(f"expected at least {option.minimum:g}{unit}")
    if option.maximum is not None and value > option.maximum:
        raise ValueError(f"expected at most {option.maximum:.12g}{unit}")


def _hints(cls: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(cls)
