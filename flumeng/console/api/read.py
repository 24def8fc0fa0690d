"""A read of the API: its path, its parameters, and the type of its answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

from flumeng.console.console import Console
from flumeng.console.path_names import names_in
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import nearest

Given = Mapping[str, Any]
"""The names in the path, and the parameters that are given or have a default."""

MOST_ROWS = 10_000
Name = Annotated[str, Meta(min_length=1, max_length=300)]
Whole = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Label = Annotated[str, Meta(pattern="^[^=]+=", max_length=300)]
Query = TypeVar("Query", bound=Callable[[Console, Given], Any])


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


def in_flow(name: str) -> Paging:
    """Return the pages of a list that is sorted by flow, then by this member of its rows."""
    return Paging(
        lambda row: f"{row.flow}/{getattr(row, name)}", lambda key: tuple(key.split("/", 1))
    )


@dataclass(frozen=True)
class Read:
    """``name``: such as ``flow-show``. ``path``: below ``/api/v1``, with names in braces.
    ``query``: its docstring and its annotation describe the answer. ``paging``: None for an
    answer that is given whole. ``shared_seconds``: how long viewers share an equal answer that
    costs nodes or ZooKeeper something; 0: not. ``command``: gives the same on a terminal."""

    name: str
    path: str
    query: Callable[[Console, Given], Any]
    parameters: tuple[Parameter, ...]
    paging: Paging | None
    shared_seconds: float
    command: str

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.query) or ""

    @property
    def answer(self) -> Any:
        return get_type_hints(self.query)["return"]

    @property
    def names(self) -> list[str]:
        return names_in(self.path)

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


class Reads(list[Read]):
    """A table of reads, which ``get`` adds to."""

    def get(
        self,
        name: str,
        path: str,
        *parameters: Parameter,
        paging: Paging | None = None,
        shared_seconds: float = 0.0,
        command: str = "",
    ) -> Callable[[Query], Query]:
        """Return a decorator that adds its function as a read. ``command``: by default the words of
        the name, and the names in the path."""
        words = [*name.split("-"), *(f"{{{each}}}" for each in names_in(path))]
        command = f"flumeng {command or ' '.join(words)}"

        def add(query: Query) -> Query:
            self.append(Read(name, path, query, parameters, paging, shared_seconds, command))
            return query

        return add


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
