"""The declaration of an option: a dataclass field with documentation, bounds and checks. The
decoder, the reference page and the error messages derive from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal

Unit = Literal["bytes", "seconds", "events", "ratio"]
_UNITS: Mapping[str, Unit] = {"bytes": "bytes", "seconds": "seconds", "events": "events"}
"""The unit of an option by the last word of its name."""
Check = Callable[[str], None]
"""Checks a value, list entry or mapping name; raises ``ValueError`` with the expected form."""

Need = tuple[
    Literal["listen", "path", "command", "output", "input", "spark format", "python module"], Any
]
"""A permission to request from a node's policy: kind, and address, path, command or the like."""

_KEY = "flumeng"


@dataclass(frozen=True)
class Option:
    """The metadata of an option. Bounds are inclusive; those of a list count its entries."""

    doc: str
    unit: Unit | None = None
    minimum: float | None = None
    maximum: float | None = None
    check: Check | None = None
    example: str | None = None
    secret: bool = False
    """Whether the value is a reference to a secret, ``${secret:NAME}``."""
    registered: str | None = None
    """A kind of component: the value has the options of the one whose name is the option's name."""


def option(
    *,
    doc: str,
    default: Any = MISSING,
    factory: Any = MISSING,
    unit: Unit | None = None,
    minimum: float | None = None,
    between: tuple[float, float] | None = None,
    check: Check | None = None,
    example: str | None = None,
    secret: bool = False,
    registered: str | None = None,
) -> Any:
    """Declare an option as a dataclass field, required without a default. ``unit``: unless the name
    ends in it. ``between``: minimum and maximum. ``example``: YAML for messages and docs."""
    least, most = between or (minimum, None)
    return dataclasses.field(
        default=default,
        default_factory=factory,
        metadata={_KEY: Option(doc, unit, least, most, check, example, secret, registered)},
    )


def described(field: dataclasses.Field[Any]) -> Option:
    """Return the metadata of a field, which ``option`` must have made."""
    metadata = field.metadata[_KEY]
    assert isinstance(metadata, Option)
    unit = metadata.unit or _UNITS.get(field.name.rpartition("_")[2])
    return dataclasses.replace(metadata, unit=unit)


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default
