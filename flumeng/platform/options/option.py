"""The declaration of an option: a dataclass field with documentation, bounds and checks. The
decoder, the reference page and the error messages derive from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal

Unit = Literal["bytes", "seconds", "events", "ratio"]
_UNITS: Mapping[str, Unit] = {"bytes": "bytes", "seconds": "seconds", "events": "events"}
"""Last word of an option's name -> its unit."""
Check = Callable[[str], None]
"""Raises ``ValueError`` with the expected form. Called for each list entry or mapping name."""

Need = tuple[
    Literal["listen", "path", "command", "output", "input", "spark format", "python module"], Any
]
"""A permission to ask of a node's policy: its kind, and the address, path, command or the like."""

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
    """Declare an option as a dataclass field; without a default it is required. ``unit``: unless it
    is the last word of the name. ``between``: minimum and maximum. ``example``: YAML for messages
    and docs."""
    least, most = between or (minimum, None)
    return dataclasses.field(
        default=default,
        default_factory=factory,
        metadata={_KEY: Option(doc, unit, least, most, check, example, secret, registered)},
    )


def described(field: dataclasses.Field[Any]) -> Option:
    """The metadata of a field made by ``option``. Every field of an option class must be."""
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
