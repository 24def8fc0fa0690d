"""A read of the API: its path, its parameters, and the type of its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from flumeng.console.console import Console
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import nearest

Given = Mapping[str, Any]
"""The names in the path, and the parameters that are given or have a default."""

MOST_ROWS = 10_000
Name = Annotated[str, Meta(min_length=1, max_length=300)]
Whole = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Label = Annotated[str, Meta(pattern="^[^=]+=", max_length=300)]
NAMES = {
    "flow": "The name of a flow.",
    "node": "The name of a node.",
    "task": "The name of a task of the flow, such as collect.0.",
    "journal": "The name of a journal.",
    "cursor": "The name of a cursor.",
    "site": "The name of another site.",
    "key": "The key of a setting.",
    "component": "The name of a source, filter, sink, or option of a flow.",
}
"""The names in paths."""


class BadParametersError(UserError):
    """Some parameters of a query cannot be read; ``problems`` has a sentence by parameter."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        super().__init__("; ".join(problems.values()))


@dataclass(frozen=True)
class Parameter:
    """A parameter of a query. ``type``: of its value, with its limits."""

    name: str
    doc: str
    type: Any
    default: Any = None

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """JSON Schema of its value."""
        schema = msgspec.json.schema(self.type)
        return schema if self.default is None else {**schema, "default": self.default}

    def read(self, values: Sequence[str]) -> Any:
        """Return the value of a parameter given as ``values``. Raises ValueError."""
        many = self.schema.get("type") == "array"
        if len(values) > 1 and not many:
            raise ValueError(f"{self.name} is given {len(values)} times")
        try:
            return msgspec.convert(values if many else values[0], self.type, strict=False)
        except msgspec.ValidationError as error:
            shown = ", ".join(values)
            raise ValueError(f"{self.name}={shown}: expected {expected(self.schema)}") from error


LIMIT = Parameter("limit", "At most this many rows.", Annotated[int, Meta(ge=1, le=MOST_ROWS)])
AFTER = Parameter("after", "Only rows behind this one; see the header Link.", Name)


@dataclass(frozen=True)
class Paging:
    """Pages of a list. ``key``: names a row; ``order``: makes the list's sort key of that name."""

    key: Callable[[Any], str]
    order: Callable[[str], Any] = str


@dataclass(frozen=True)
class Read:
    """``path``: below ``/api/v1``, with names in braces. ``command``: gives the same on a terminal.
    ``answer``: the type that ``read`` returns. ``paging``: None for an answer that is given
    whole. ``shared_seconds``: how long viewers share an equal answer that costs nodes or ZooKeeper
    something; 0: not."""

    name: str
    path: str
    command: str
    doc: str
    answer: Any
    read: Callable[[Console, Given], Any]
    parameters: tuple[Parameter, ...] = ()
    paging: Paging | None = None
    shared_seconds: float = 0.0
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        object.__setattr__(self, "names", tuple(p[1:-1] for p in parts if p.startswith("{")))

    @property
    def all_parameters(self) -> tuple[Parameter, ...]:
        return (*self.parameters, *((LIMIT, AFTER) if self.paging else ()))

    def given(self, names: Mapping[str, str], query: Iterable[tuple[str, str]]) -> Given:
        """Return the checked names and parameters. Raises BadParametersError with all problems."""
        values: dict[str, list[str]] = {}
        for name, value in query:
            values.setdefault(name, []).append(value)
        known = {each.name: each for each in self.all_parameters}
        problems = {
            name: f"there is no parameter {name}; "
            f"{nearest(name, known) if known else 'there are none'}"
            for name in sorted(values.keys() - known.keys())
        }
        given: dict[str, Any] = dict(names)
        for each in known.values():
            if each.name in values:
                try:
                    given[each.name] = each.read(values[each.name])
                except ValueError as error:
                    problems[each.name] = str(error)
            elif each.default is not None:
                given[each.name] = each.default
        if problems:
            raise BadParametersError(problems)
        return given


def expected(schema: Mapping[str, Any]) -> str:
    """Describe a value in words, such as ``a whole number from 1 to 500``."""
    kind = schema.get("type")
    if kind == "integer":
        least, most = schema.get("minimum"), schema.get("maximum")
        return f"a whole number from {least} to {most}"
    if kind == "array":
        return expected(schema["items"])
    if kind == "boolean":
        return "true or false"
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema.get("pattern") == "^[^=]+=":
        return "KEY=VALUE"
    return f"1 to {schema['maxLength']} characters"
