"""Request templates with variables in braces, like ``{last}`` or ``{due:%Y-%m-%d}``. Other braces
are plain text, as in JSON. Values of secrets and variables are not expanded again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
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


class Template:
    """A template. ``variables``: the names used in the text."""

    def __init__(
        self, text: str, resolve: Callable[[str], str] = lambda reference: reference
    ) -> None:
        """``resolve`` looks up secrets. Raises ValueError for an unknown time format."""
        self._text = text
        tokens = list(_TOKEN.finditer(text))
        for token in tokens:
            _check_form(token["name"], token["form"])
        self._secrets = {ref: resolve(ref) for token in tokens if (ref := token["secret"])}
        self.variables = frozenset(token["name"] for token in tokens if token["name"])

    def fill(
        self, values: Mapping[str, str | datetime], written: Callable[[str], str] = str
    ) -> str:
        """Return the text with ``values``, escaped by ``written``; missing values are empty."""

        def value(token: re.Match[str]) -> str:
            if token["secret"]:
                return self._secrets[token["secret"]]
            return written(_shown(values.get(token["name"], ""), token["form"]))

        return _TOKEN.sub(value, self._text)


def unknown(text: str) -> str | None:
    """Return the first braces that are neither a variable nor a secret."""
    braces = _BRACED.search(_TOKEN.sub("", text))
    return braces[0] if braces else None


def _check_form(name: str, form: str | None) -> None:
    if form is None:
        return
    if name not in TIMES:
        raise ValueError(f"{{{name}}} is not a time: expected it without :{form}")
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
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
