"""Texts of requests with what a poll knows in braces, like ``{last}`` or ``{due:%Y-%m-%d}``.

Only the variables of ``VARIABLES`` are such; other braces are letters, as JSON has them. What a
secret or a variable stands for is never looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

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


@dataclass(frozen=True)
class Variable:
    name: str
    form: str | None = None


@dataclass(frozen=True)
class Template:
    parts: tuple[str | Variable, ...]

    @classmethod
    def of(cls, text: str, resolve: Callable[[str], str] = lambda reference: reference) -> Template:
        """``resolve``: what a reference to a secret stands for. Raises ValueError for a form that
        is none of a time."""
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
        """With what ``values`` has, ``written`` as it has to be there, and nothing for the rest."""
        return "".join(
            part if isinstance(part, str) else written(_shown(values.get(part.name, ""), part.form))
            for part in self.parts
        )


def unknown(text: str) -> str | None:
    """What stands in braces there and is neither a variable nor a secret."""
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
    """In UTC, with as many digits as it needs."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
