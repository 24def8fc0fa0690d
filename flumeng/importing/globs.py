"""Regular expressions of file names, as globs."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\.[*+]\??(?P<any>)"
    r"|(?P<one>\.)(?![*+?{])"
    r"|\\d[*+]|\[0-9\][*+](?P<digits>)"
    r"|(?P<digit>\\d|\[0-9\])(?![*+?{])"
    r"|\\w[*+](?P<word>)"
    r"|\\(?P<sign>[^0-9A-Za-z])"
    r"|(?P<set>\[!?[^\]\[\\^]+\])(?![*+?{])"
    r"|(?P<plain>[^\\\[\](){}*+?|^$.])(?![*+?{])"
)


def from_regex(pattern: str) -> tuple[str, bool]:
    """The glob for names that the expression matches whole, and whether it means exactly those; a
    glob that means more has ``*`` where it cannot be said. A dot that stands alone is taken for the
    dot that nearly everybody means by it."""
    text = re.sub(r"^\^|(?<!\\)\$$", "", pattern)
    found, exact, at = "", True, 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            end = re.compile(r"(?:\((?:[^()\\]|\\.)*\)|\[(?:[^\]\\]|\\.)*\]|\\.|.)[*+?]*").match(
                text, at
            )
            at = end.end() if end else len(text)
            found, exact = found + "*", False
            continue
        at = token.end()
        if token["plain"] or token["sign"]:
            sign = token["plain"] or token["sign"]
            found += f"[{sign}]" if sign in "*?[{" else sign
        elif token["one"]:
            found += "."
        elif token["set"]:
            found += token["set"]
        elif token["digit"]:
            found += "[0-9]"
        else:
            exact = exact and token["any"] is not None and "+" not in token[0]
            found += "*"
    return re.sub(r"\*+", "*", found) or "*", exact


def escaped(path: str) -> str:
    """A path that means itself."""
    return re.sub(r"([*?\[{])", r"[\1]", path)
