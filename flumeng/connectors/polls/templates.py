"""Texts of requests with variables in braces, like ``{last}`` or ``{due:%Y-%m-%d}``.

Other braces are text, as in JSON. Values of secrets and variables are not expanded again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from flumeng.platform.options.patterns import SECRET

VARIABLES = ("last", "due", "page", "offset", "cursor")
TIMES = ("last", "due")
_NUMBERS = {"unix": 1, "unix_ms": 1000}
_DIRECTIVE = re.compile("%.?", re.DOTALL)
_DIRECTIVES = frozenset(f"%{letter}" for letter in "YmdHMSjf%")
_TOKEN = re.compile(
    rf"(?P<secret>{SECRET.pattern})"
    rf"|\{{(?P<name>{'|'.join(VARIABLES)})(?::(?P<form>[^{{}}]{{1,60}}))?\}}",
    re.ASCII,
)
_BRACED = re.compile(r"\{[^{}]*\}")


class Variable(NamedTuple):
    name: str
    form: str | None


@dataclass(frozen=True)
class Template:
    parts: tuple[str | Variable, ...]

    @classmethod
    def of(cls, text: str, resolve: Callable[[str], str] = lambda reference: reference) -> Template:
        """``resolve`` looks up secrets. Raises ValueError for an unknown form of a time."""
        parts: list[str | Variable] = []
        position = 0
        for token in _TOKEN.finditer(text):
            parts.append(text[position : token.start()])
            position = token.end()
            if token["secret"]:
                parts.append(resolve(token["secret"]))
            else:
                _check_form(token["name"], token["form"])
                parts.append(Variable(token["name"], token["form"]))
        return cls((*parts, text[position:]))

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(part.name for part in self.parts if isinstance(part, Variable))

    def fill(
        self, values: Mapping[str, str | datetime], written: Callable[[str], str] = str
    ) -> str:
        """The text with ``values``, escaped by ``written``; missing ones are empty."""
        return "".join(
            part if isinstance(part, str) else written(_shown(values.get(part.name, ""), part.form))
            for part in self.parts
        )


def unknown(text: str) -> str | None:
    """The first braces there that are neither a variable nor a secret."""
    found = _BRACED.search(_TOKEN.sub("", text))
    return found[0] if found else None


def _check_form(name: str, form: str | None) -> None:
    if form is None:
        return
    if name not in TIMES:
        raise ValueError(f"{{{name}}} is no time: expected it without :{form}")
    used = set(_DIRECTIVE.findall(form))
    if form not in _NUMBERS and (not used or used - _DIRECTIVES):
        raise ValueError(f"expected unix, unix_ms or a pattern like %Y-%m-%d in {{{name}:{form}}}")


def _shown(value: str | datetime, form: str | None) -> str:
    if isinstance(value, str):
        return value
    moment = value.astimezone(UTC)
    if form in _NUMBERS:
        return str(int(moment.timestamp() * _NUMBERS[form]))
    if form is not None:
        return moment.strftime(form)
    return iso(moment)


def iso(moment: datetime) -> str:
    """In UTC with a Z."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
