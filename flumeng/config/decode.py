"""Decodes YAML nodes to option classes, by their fields' types. Continues after a problem: an
invalid value is reported and becomes ``INVALID``, and its dataclass is not built."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from flumeng.config import document, registry
from flumeng.config.component import Component, Keep, Kind, OnError, is_component
from flumeng.platform.options import quantities
from flumeng.platform.options.option import Option, Unit, described, is_required
from flumeng.platform.options.patterns import SECRET
from flumeng.platform.options.problems import Problem, SpecError, nearest


class Invalid(Enum):
    """The type of ``INVALID``, which replaces a value with a reported problem."""

    INVALID = "invalid"


INVALID: Final = Invalid.INVALID
_NUMBERS: Mapping[Unit | None, tuple[Callable[[str], float], str]] = {
    "bytes": (quantities.size, quantities.SIZE),
    "seconds": (quantities.duration, quantities.DURATION),
    "events": (quantities.whole_number, quantities.WHOLE_NUMBER),
    "ratio": (quantities.ratio, quantities.RATIO),
    None: (quantities.whole_number, quantities.WHOLE_NUMBER),
}
SWITCH = "expected true or false"
SECRET_REFERENCE = "expected a reference to a secret, like ${secret:NAME}, not the secret itself"
WHEN, ON_ERROR = "when", "on_error"
BESIDE: Mapping[str, Mapping[str, tuple[Any, Option]]] = {
    "filters": {
        WHEN: (str, Option(doc="A condition in Spark SQL.", example='"severity <= 4"')),
        ON_ERROR: (OnError, Option(doc="The fate of events that the filter cannot process.")),
    },
    "sinks": {"isolated": (bool, Option(doc="Whether the sink is written at its own pace."))},
    "dead_letters": {"keep": (Keep, Option(doc="The retention of dead letters."))},
}
"""Options written beside a component's name, which are fields of ``Component``, by list."""
_KINDS: Mapping[str, Kind] = {
    "sources": "source",
    "filters": "filter",
    "sinks": "sink",
    "first_of": "sink",
    "one_of": "sink",
    "dead_letters": "sink",
}


OptionsT = TypeVar("OptionsT")


def decode(cls: type[OptionsT], root: yaml.Node) -> OptionsT:
    """Return an instance of an option class. Raises ``SpecError`` with all problems."""
    decoder = Decoder()
    instance = decoder.mapping(cls, root, "")
    if decoder.problems:
        raise SpecError(decoder.problems)
    assert isinstance(instance, cls)
    return instance


class Decoder:
    """Decodes nodes and collects ``problems``, and the input for checks of a whole flow. ``parts``:
    valid values by path (``sinks[0].files``); ``lines``: line numbers by path, also of invalid
    parts. ``values`` and ``entries``: the options of each mapping and the entries of each list by
    path, ``INVALID`` where there is a problem."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.parts: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.values: dict[str, Mapping[str, Any]] = {}
        self.entries: dict[str, Sequence[Any]] = {}

    def report(self, node: yaml.Node, path: str, message: str) -> Literal[Invalid.INVALID]:
        self.problems.append(Problem(document.line(node), path, message))
        return INVALID

    def mapping(self, cls: type[Any], node: yaml.Node, path: str) -> Any:
        """Return an instance of the option class ``cls``, or ``INVALID``."""
        if not isinstance(node, yaml.MappingNode):
            return self._refuse(node, path, "expected a mapping of options")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        hints = _hints(cls)
        values: dict[str, Any] = {}
        before = len(self.problems)
        for name, key, value in self._pairs(node, path):
            option_path = f"{path}.{name}" if path else name
            self.lines[option_path] = document.line(key)
            field = fields.get(name)
            if field is None:
                hint = nearest(name, fields) if fields else "no options are allowed here"
                self.report(key, option_path, f"unknown option; {hint}")
                continue
            values[name] = self._value(hints[name], value, option_path, described(field))
        choice = getattr(cls, "needs_one_of", ())
        needed = choice[:1] if values.keys().isdisjoint(choice) else ()
        for name, field in fields.items():
            if (is_required(field) or name in needed) and name not in values:
                expected = _expected(hints[name], described(field))
                self.report(node, path, f'missing "{name}": {expected}')
        self.values[path] = values
        if len(self.problems) > before:
            return INVALID
        return self._whole(cls(**values), path)

    def _whole(self, instance: Any, path: str) -> Any:
        """Return the instance, or ``INVALID`` when its options contradict each other."""
        before = len(self.problems)
        if hasattr(instance, "problems"):
            for name, message in instance.problems():
                option_path = f"{path}.{name}" if path and name else path or name
                line = self.lines.get(option_path) or self.lines.get(path, 1)  # it may be left out
                self.problems.append(Problem(line, option_path, message))
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
                option_path = f"{path}.{name}" if path else name
                self.report(key, option_path, f"given twice; the first is in line {first[name]}")
                continue
            first[name] = document.line(key)
            pairs.append((name, key, value))
        return pairs

    def _value(self, hint: Any, node: yaml.Node, path: str, option: Option) -> Any:
        self.lines.setdefault(path, document.line(node))
        value = self._decoded(hint, node, path, option)
        if value is not INVALID and not isinstance(value, Component):
            self.parts[path] = value
        return value

    def _decoded(self, hint: Any, node: yaml.Node, path: str, option: Option) -> Any:
        origin = get_origin(hint)
        if option.registered is not None:
            return self.mapping(_registered(option, path), node, path)
        if hint is yaml.Node:  # of no fixed form: decoded later
            return node
        if origin in (Union, types.UnionType):
            return self._decoded(_alternative(hint, node), node, path, option)
        if origin is Literal or hint is str:
            return self._text(hint, node, path, option)
        if origin is tuple:
            return self._list(hint, node, path, option)
        if is_component(hint):
            return self._component(_kind(path), node, path)
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            return self.mapping(hint, node, path)
        if hint is bool:
            return self._switch(node, path)
        if origin is None:
            return self._number(hint, node, path, option)
        (_, value) = get_args(hint)
        if value is float:
            return self._amounts(node, path, option)
        if value is str:
            return self._names(node, path, option, "values", partial(self._label, option))
        if value is int:
            offset = dataclasses.replace(option, minimum=0)
            read = partial(self._number, int, option=offset)
            return self._names(node, path, option, "numbers", read)
        read = partial(self._value, value, option=option)
        return self._names(node, path, option, "options", read)

    def _list(self, hint: Any, node: yaml.Node, path: str, option: Option) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            return self._refuse(node, path, _expected(hint, option))
        (hint, _) = get_args(hint)
        if option.minimum is not None and len(node.value) < option.minimum:
            return self.report(node, path, "expected at least one entry")
        if option.maximum is not None and len(node.value) > option.maximum:
            return self.report(node, path, f"expected at most {option.maximum} entries")
        entry_option = dataclasses.replace(option, minimum=None, maximum=None)
        entries = [
            self._component(_kind(path), item, f"{path}[{index}]")
            if is_component(hint)
            else self._value(hint, item, f"{path}[{index}]", entry_option)
            for index, item in enumerate(node.value)
        ]
        self.entries[path] = entries
        return INVALID if INVALID in entries else tuple(entries)

    def _component(self, kind: Kind, node: yaml.Node, path: str) -> Any:
        """Decode ``- name: options`` or ``- name``, with the options in BESIDE."""
        options: yaml.Node | None = None
        name_node: yaml.Node = node
        beside: dict[str, Any] = {}
        if isinstance(node, yaml.MappingNode):
            known_beside = _beside(path)
            pairs = [pair for pair in node.value if _scalar(pair[0]) not in known_beside]
            for key, value in node.value:
                if (name := _scalar(key)) in known_beside:
                    hint, option = known_beside[name]
                    beside[name] = self._value(hint, value, f"{path}.{name}", option)
            if len(pairs) != 1 or len(node.value) > 1 + len(beside):
                return self.report(
                    node, path, f"expected one {kind} in each entry of the list, like "
                    f'"- {registry.entries(kind)[0].name}: {{...}}"'
                )  # fmt: skip
            name_node, options = pairs[0]
        if not isinstance(name_node, yaml.ScalarNode) or document.is_null(name_node):
            return self._refuse(name_node, path, f"expected the name of a {kind}")
        name = str(name_node.value)
        entry = registry.find(kind, name)
        if entry is None:
            names = [entry.name for entry in registry.entries(kind)]
            return self.report(name_node, path, f'unknown {kind} "{name}"; {nearest(name, names)}')
        option_path = f"{path}.{name}"
        self.lines[option_path] = document.line(name_node)
        decoded = self._options(entry.options_class(), name_node, options, option_path)
        if decoded is INVALID or INVALID in beside.values():
            return INVALID
        why = decoded.unconditional if WHEN in beside else None
        if why is not None:
            return self.report(node, f"{path}.{WHEN}", f"{name} takes no condition: {why}")
        if ON_ERROR in beside and not decoded.notes_errors:
            return self.report(
                node, f"{path}.{ON_ERROR}", f"{name} cannot fail for an event: leave {ON_ERROR} out"
            )
        component = Component(kind, name, decoded, **beside)
        self.parts[option_path] = component
        return component

    def _options(
        self, cls: type[Any], name_node: yaml.Node, node: yaml.Node | None, path: str
    ) -> Any:
        if node is None or document.is_null(node):
            none = yaml.MappingNode("", [], name_node.start_mark, name_node.end_mark)
            return self.mapping(cls, none, path)
        bare: str | None = getattr(cls, "bare", None)
        if bare is None:
            return self.mapping(cls, node, path)
        hint = _hints(cls)[bare]
        if isinstance(node, yaml.MappingNode) and get_origin(hint) is not Mapping:
            return self.mapping(cls, node, path)
        field = next(field for field in dataclasses.fields(cls) if field.name == bare)
        value = self._value(hint, node, path, described(field))
        return INVALID if value is INVALID else self._whole(cls(**{bare: value}), path)

    def _text(self, hint: Any, node: yaml.Node, path: str, option: Option) -> Any:
        text = _scalar(node)
        choices = get_args(hint)
        if not text.strip() or (choices and text not in choices):
            close = nearest(text, choices) if choices else ""
            return self._refuse(
                node, path, _expected(hint, option), f"; {close}" if "did you mean" in close else ""
            )
        if option.secret and not SECRET.fullmatch(text):
            return self.report(node, path, SECRET_REFERENCE)
        try:
            if option.check is not None:
                option.check(text)
        except ValueError as error:
            return self._refuse(node, path, str(error))
        return text

    def _switch(self, node: yaml.Node, path: str) -> Any:
        text = _scalar(node)
        if text not in ("true", "false"):
            return self._refuse(node, path, SWITCH)
        return text == "true"

    def _number(self, hint: Any, node: yaml.Node, path: str, option: Option) -> Any:
        read, _ = _NUMBERS[option.unit]
        try:
            value = read(_scalar(node))
            _check_bounds(value, option)
        except ValueError as error:
            return self._refuse(node, path, str(error))
        return hint(value)

    def _names(
        self,
        node: yaml.Node,
        path: str,
        option: Option,
        what: str,
        read: Callable[[yaml.Node, str], Any],
    ) -> Any:
        """Decode a mapping with keys chosen by the author; ``read`` decodes a value at a path."""
        if not isinstance(node, yaml.MappingNode):
            return self._refuse(node, path, f"expected names with {what}, like {option.example}")
        before = len(self.problems)
        values = {}
        for name, key, value in self._pairs(node, path):
            value_path = f"{path}.{name}"
            self.lines[value_path] = document.line(key)
            try:
                if option.check is not None:
                    option.check(name)
            except ValueError as error:
                self.report(key, value_path, str(error))
            values[name] = read(value, value_path)
        return values if len(self.problems) == before else INVALID

    def _label(self, option: Option, node: yaml.Node, path: str) -> Any:
        text = _scalar(node)
        if not text:
            return self._refuse(node, path, "expected a value")
        if option.secret and not SECRET.fullmatch(text):
            return self.report(node, path, SECRET_REFERENCE)
        return text

    def _amounts(self, node: yaml.Node, path: str, option: Option) -> Any:
        """Decode a mapping of names to numbers, at least one of them above 0."""
        if not isinstance(node, yaml.MappingNode):
            return self._refuse(node, path, f"expected amounts, like {option.example}")
        amounts = {}
        for name, _key, value in self._pairs(node, path):
            try:
                amounts[name] = quantities.amount(_scalar(value))
            except ValueError as error:
                return self._refuse(value, f"{path}.{name}", str(error))
        if not any(amounts.values()):
            return self._refuse(node, path, f"expected an amount above 0, like {option.example}")
        return amounts

    def _refuse(
        self, node: yaml.Node, path: str, expected: str, hint: str = ""
    ) -> Literal[Invalid.INVALID]:
        return self.report(node, path, f"{expected}; found {document.describe(node)}{hint}")


def _registered(option: Option, path: str) -> type[Any]:
    return registry.get(cast("Kind", option.registered), path.rpartition(".")[2]).options_class()


def _kind(path: str) -> Kind:
    return _KINDS[path.rpartition(".")[2]]


def _beside(path: str) -> Mapping[str, tuple[Any, Option]]:
    """Return the options allowed beside the component at ``path``; none for members of a group."""
    segment, _, entry = path.rpartition(".")
    of_segment = not segment or segment.rpartition(".")[2].startswith("branches[")
    return BESIDE.get(entry.partition("[")[0], {}) if of_segment else {}


def _alternative(hint: Any, node: yaml.Node) -> Any:
    """Return the member of a union that fits the node: an option class, a list, or another type."""
    hints = [arg for arg in get_args(hint) if arg is not type(None)]
    listed = [arg for arg in hints if get_origin(arg) is tuple]
    if listed and isinstance(node, yaml.SequenceNode):
        return listed[0]
    mapped = isinstance(node, yaml.MappingNode)
    classes = [arg for arg in hints if dataclasses.is_dataclass(arg) or is_component(arg)]
    suited = (arg for arg in hints if (arg in classes) is mapped)
    return next(suited, hints[0])


def _scalar(node: yaml.Node) -> str:
    """Return the text of a scalar; empty for null and any other node."""
    if not isinstance(node, yaml.ScalarNode) or document.is_null(node):
        return ""
    return str(node.value)


def _expected(hint: Any, option: Option) -> str:
    origin = get_origin(hint)
    if origin is Literal:
        return f"expected one of {', '.join(get_args(hint))}"
    if hint is bool:
        return SWITCH
    if hint in (int, float):
        return _NUMBERS[option.unit][1]
    sentence = option.doc.partition(". ")[0].rstrip(".")
    what = "a list" if origin is tuple else f"{sentence[0].lower()}{sentence[1:]}"
    return f"expected {what}, like {option.example}" if option.example else f"expected {what}"


def _check_bounds(value: float, option: Option) -> None:
    unit = f" {option.unit}" if option.unit else ""
    if option.minimum is not None and value < option.minimum:
        raise ValueError(f"expected at least {option.minimum:.12g}{unit}")
    if option.maximum is not None and value > option.maximum:
        raise ValueError(f"expected at most {option.maximum:.12g}{unit}")


def _hints(cls: Any) -> Mapping[str, Any]:
    """Return the type hints of a class, cached: they take longer than decoding a small flow."""
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls)
    return _HINTS[cls]


_HINTS: dict[Any, Mapping[str, Any]] = {}
