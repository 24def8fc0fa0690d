"""Config is schema is docs: one dataclass field says everything about one option.

The decoder, the reference page and the messages about bad input are derived from the field's type
and from this metadata; an option is spelled nowhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any, Literal

Unit = Literal["bytes", "seconds", "events", "ratio"]
Check = Callable[[str], None]
"""Raises ``ValueError`` with what was expected; called for each entry when the option is a list,
and for each name when it is a mapping."""

Need = tuple[
    Literal["listen", "path", "command", "output", "input", "spark format", "python module"], Any
]
"""What a node's policy has to allow: an address to listen on, a path or glob on the node, the words
of a command, a path or URL that is written or read, a format of Spark, a Python module."""

_KEY = "flumeng"


@dataclass(frozen=True)
class Option:
    """What a field's type does not say. Bounds are inclusive; of a list they count its entries."""

    doc: str
    unit: Unit | None = None
    minimum: float | None = None
    maximum: float | None = None
    check: Check | None = None
    example: str | None = None
    secret: bool = False
    """The value is a reference to a secret, ``${secret:NAME}``, and never the secret itself."""
    registered: str | None = None
    """The value are the options of the registered component of this kind that has the option's
    name."""


def option(
    *,
    doc: str,
    default: Any = MISSING,
    factory: Any = MISSING,
    unit: Unit | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    check: Check | None = None,
    example: str | None = None,
    secret: bool = False,
    registered: str | None = None,
) -> Any:
    """Declare an option as a dataclass field; without a default the file must give it.

    ``example`` is a YAML value, shown in messages and on the reference page.
    """
    return dataclasses.field(
        default=default,
        default_factory=factory,
        metadata={_KEY: Option(doc, unit, minimum, maximum, check, example, secret, registered)},
    )


def described(field: dataclasses.Field[Any]) -> Option:
    """The metadata of a field made by ``option``; every field of an option class is made by it."""
    found = field.metadata[_KEY]
    assert isinstance(found, Option)
    return found


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The value of an option that the file leaves out. Only for options that have one."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default
