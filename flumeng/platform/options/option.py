"""The declaration of an option: a dataclass field with its documentation, bounds and checks.

The decoder, the reference page and the error messages are derived from the field's type and from
this metadata.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal

Unit = Literal["bytes", "seconds", "events", "ratio"]
_UNITS: Mapping[str, Unit] = {"bytes": "bytes", "seconds": "seconds", "events": "events"}
"""By the last word of an option's name."""
Check = Callable[[str], None]
"""Raises ``ValueError`` with what was expected. Called for each entry of a list, and for each name
of a mapping."""

Need = tuple[
    Literal["listen", "path", "command", "output", "input", "spark format", "python module"], Any
]
"""What a node's policy has to allow: an address, a path or glob, the words of a command, a path or
URL that is written or read, a format of Spark, a Python module."""

_KEY = "flumeng"


@dataclass(frozen=True)
class Option:
    """The metadata of an option. Bounds are inclusive; for a list they count its entries."""

    doc: str
    unit: Unit | None = None
    minimum: float | None = None
    maximum: float | None = None
    check: Check | None = None
    example: str | None = None
    secret: bool = False
    """Whether the value is a reference to a secret, ``${secret:NAME}``."""
    registered: str | None = None
    """The kind of a registered component: the value is the options of the one with this name."""


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
    """Declare an option as a dataclass field; without a default it is required.

    ``unit`` is needed only if it is not the last word of the option's name. ``between`` is the
    minimum and the maximum. ``example`` is a YAML value for messages and the reference page.
    """
    least, most = between or (minimum, None)
    return dataclasses.field(
        default=default,
        default_factory=factory,
        metadata={_KEY: Option(doc, unit, least, most, check, example, secret, registered)},
    )


def described(field: dataclasses.Field[Any]) -> Option:
    """The metadata of a field made by ``option``, as every field of an option class is."""
    found = field.metadata[_KEY]
    assert isinstance(found, Option)
    unit = found.unit or _UNITS.get(field.name.rpartition("_")[2])
    return dataclasses.replace(found, unit=unit)


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of an option that has one."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default
