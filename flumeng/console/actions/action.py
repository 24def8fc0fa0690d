"""What an action is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flumeng.console.console import Console
from flumeng.control.commands.operator import Operator

Given = Mapping[str, Any]
"""The names in the path, and the fields, with the types of their schemas."""


@dataclass(frozen=True)
class Field:
    """A field of an action's form and JSON body. ``schema``: JSON Schema of its value."""

    name: str
    doc: str
    schema: Mapping[str, Any]
    required: bool = False


@dataclass(frozen=True)
class Action:
    """A change. ``name``: such as ``flow-pause``. ``path``: below ``/api/v1``, names in braces.
    ``command``: its command line. ``rehearse``: sentences on what it will do, without doing it.
    ``act``: does it; the result is the JSON of the command. Both raise FlumengError."""

    name: str
    path: str
    title: str
    doc: str
    command: Callable[[Given], str]
    rehearse: Callable[[Console, Given], Sequence[str]]
    act: Callable[[Console, Operator, Given], Any]
    fields: tuple[Field, ...] = ()
