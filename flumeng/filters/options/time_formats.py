"""Time formats: names, and patterns as of ``strptime``.

Each becomes a pattern of RE2, with groups named as the directives of ``strptime``:
``Y y m b d j H I p M S f``, ``s`` for seconds since the epoch with the fraction in ``f``, ``n`` for
whole units since the epoch, ``z`` for the zone, with ``sign``, ``zh`` and ``zm`` if numeric.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from flumeng.platform.options.problems import nearest

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SHORT_MONTH = rf"(?P<b>(?i:{'|'.join(name[:3] for name in _MONTHS)}))"
_SHORT_DAY = rf"(?i:{'|'.join(name[:3] for name in _DAYS)})"
_OFFSET = r"(?P<sign>[+-])(?P<zh>[0-9]{2})"
_FRACTION = r"(?P<f>[0-9]{1,18})"
_DIRECTIVES: Mapping[str, str] = {
    "Y": r"(?P<Y>[0-9]{4})",
    "y": r"(?P<y>[0-9]{2})",
    "m": r"(?P<m>[0-9]{1,2})",
    "b": rf"(?P<b>(?i:{'|'.join(f'{name[:3]}(?:{name[3:]})?' for name in _MONTHS)}))",
    "d": r" ?(?P<d>[0-9]{1,2})",
    "j": r"(?P<j>[0-9]{1,3})",
    "H": r" ?(?P<H>[0-9]{1,2})",
    "I": r" ?(?P<I>[0-9]{1,2})",
    "p": r"(?P<p>(?i:[ap]\.?m\.?))",
    "M": r"(?P<M>[0-9]{1,2})",
    "S": r"(?P<S>[0-9]{1,2})",
    "f": _FRACTION,
    "s": r"(?P<s>-?[0-9]{1,12})",
    "z": rf"(?P<z>{_OFFSET}(?::?(?P<zm>[0-9]{{2}}))?|[Zz]|UTC|GMT)",
    "a": rf"(?i:{'|'.join(f'{name[:3]}(?:{name[3:]})?' for name in _DAYS)})",
}
_SAME = {"B": "b", "h": "b", "A": "a", "e": "d", "k": "H", "l": "I", "Z": "z"}
_SHORT = {"T": "%H:%M:%S", "R": "%H:%M", "F": "%Y-%m-%d", "D": "%m/%d/%y"}

NAMED: Mapping[str, str] = {
    "iso8601": ".*",
    "rfc3339": (
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,18})?"
        r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
    ),
    "rfc2822": (
        rf"(?:{_SHORT_DAY},? +)?(?P<d>[0-9]{{1,2}}) +{_SHORT_MONTH} +(?P<Y>[0-9]{{4}}) +"
        r"(?P<H>[0-9]{2}):(?P<M>[0-9]{2})(?::(?P<S>[0-9]{2}))? +"
        rf"(?P<z>{_OFFSET}(?P<zm>[0-9]{{2}})|UTC?|GMT|Z)(?: +\([^)]*\))?"
    ),
    "common_log": (
        rf"\[?(?P<d>[0-9]{{2}})/{_SHORT_MONTH}/(?P<Y>[0-9]{{4}}):"
        r"(?P<H>[0-9]{2}):(?P<M>[0-9]{2}):(?P<S>[0-9]{2}) "
        rf"(?P<z>{_OFFSET}(?P<zm>[0-9]{{2}}))\]?"
    ),
    "unix": rf"(?P<s>-?[0-9]{{1,12}})(?:\.{_FRACTION})?",
    "unix_ms": r"(?P<n>-?[0-9]{1,15})",
    "unix_us": r"(?P<n>-?[0-9]{1,18})",
    "unix_ns": r"(?P<n>-?[0-9]{1,18}|-?[1-8][0-9]{18})",
}
ISO = ("iso8601", "rfc3339")
"""Formats read by ``iso8601``; their patterns only restrict the texts."""
UNITS: Mapping[str, int] = {"unix": 1, "unix_ms": 10**3, "unix_us": 10**6, "unix_ns": 10**9}
"""Units per second, for the formats that also read numbers."""


def check(text: str) -> None:
    pattern(text)


def pattern(text: str) -> str:
    """Return a regular expression that matches a whole text in this format. Raises ValueError."""
    if text in NAMED:
        return rf"\A\s*(?:{NAMED[text]})\s*\z"
    if "%" not in text:
        raise ValueError(
            f'expected {", ".join(NAMED)}, or a pattern like "%d.%m.%Y %H:%M:%S"; '
            f"{nearest(text, list(NAMED))}"
        )
    body = _of_directives(text)
    names = set(re.findall(r"\(\?P<(\w)>", body))
    day = ({"d", "m"} <= names) + ({"d", "b"} <= names) + ("j" in names) + ("s" in names)
    if day != 1:
        raise ValueError("expected a pattern with one day: %d and %m or %b, or %j, or %s")
    if {"Y", "y"} <= names or {"H", "I"} <= names or ("I" in names) != ("p" in names):
        raise ValueError("expected one of %Y and %y, and one of %H and %I with %p")
    if "j" in names and not names & {"Y", "y"}:
        raise ValueError("expected a year beside %j")
    return rf"\A\s*(?:{body})\s*\z"


def _of_directives(text: str) -> str:
    """Translate directives to a regular expression; white space matches any white space."""
    text = re.sub("%(.)", lambda token: _SHORT.get(token[1], token[0]), text)
    expression = ""
    used: set[str] = set()
    for token in re.finditer(r"%(.?)|(\s+)|(.)", text, re.DOTALL):
        directive, space, character = token.groups()
        if directive is None:
            expression += r"\s+" if space else re.escape(character)
            continue
        if directive == "%":
            expression += "%"
            continue
        name = _SAME.get(directive, directive)
        if name not in _DIRECTIVES:
            supported = " ".join(f"%{key}" for key in (*_DIRECTIVES, *_SAME, *_SHORT))
            raise ValueError(f"unknown directive %{directive}; supported: {supported}")
        if name in used:
            raise ValueError(f"%{directive} occurs twice")
        used.add(name)
        expression += _DIRECTIVES[name]
    return expression
