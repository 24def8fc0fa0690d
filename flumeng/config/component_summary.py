"""A one-line summary of a component of a flow."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from flumeng.config.component import Component, Declared
from flumeng.platform.options.option import default_of, is_required

CHARACTERS = 72


def summary(part: Component[Declared]) -> str:
    """Return the component's name and required values, or else its first non-default value."""
    cls: Any = type(part.options)
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields if is_required(field)]
    if not names:
        names = [f.name for f in fields if getattr(part.options, f.name) != default_of(f)][:1]
    words = [_shown(getattr(part.options, name)) for name in names]
    return " ".join([part.name, *filter(None, words)])


def _shown(value: Any) -> str:
    if isinstance(value, Component):
        text = summary(value)
    elif isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False) if " " in value else value
    elif isinstance(value, tuple):
        text = ", ".join(map(_shown, value))
    elif isinstance(value, Mapping):
        text = ", ".join(f"{name}={_shown(item)}" for name, item in value.items())
    elif dataclasses.is_dataclass(value):
        text = ""
    else:
        text = str(value)
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 3] + "..."
