"""Translates regular expressions of file names to globs."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\.[*+]\??(?P<any>)"
    r"|(?P<one>\.)(?![*+?{])"
    r"|\\d[*+]|\[0-9\][*+](?P<digits>)"
    r"|(?:\\d|\[0-9\])\{(?P<count>[0-9]{1,2})\}(?![*+?])"
    r"|(?P<digit>\\d|\[0-9\])(?![*+?{])"
    r"|\\w[*+](?P<word>)"
    r"|\\(?P<sign>[^0-9A-Za-z])(?![*+?{])"
    r"|(?P<set>\[!?[^\]\[\\^]+\])(?![*+?{])"
    r"|(?P<plain>[^\\\[\](){}*+?|^$.])(?![*+?{])"
)


_GROUPING = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|(?P<flags>\(\?[a-zA-Z]+\))|(?P<mark>[()|])")


def from_regex(pattern: str) -> tuple[str, bool]:
    """Return the glob for names that the expression matches whole, and whether it is exact. ``*``
    replaces parts that a glob cannot express. A dot alone is taken literally, since nearly
    everybody means that."""
    text = re.sub(r"^\^|(?<!\\)\$$", "", pattern)
    if _is_of_branches(text):
        return "*", False
    glob, exact, at = "", True, 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            glob, exact = glob + "*", False
            break
        at = token.end()
        if token["plain"] or token["sign"]:
            sign = token["plain"] or token["sign"]
            glob += f"[{sign}]" if sign in "*?[{" else sign
        elif token["one"]:
            glob += "."
        elif token["set"]:
            glob += token["set"]
        elif token["digit"]:
            glob += "[0-9]"
        elif token["count"]:
            glob += "[0-9]" * int(token["count"])
        else:
            exact = exact and token["any"] is not None and "+" not in token[0]
            glob += "*"
    return re.sub(r"\*+", "*", glob) or "*", exact


def _is_of_branches(text: str) -> bool:
    """Whether the expression has ``|`` outside of groups, or flags that change its meaning."""
    depth = 0
    for token in _GROUPING.finditer(text):
        if token["flags"] or (token["mark"] == "|" and depth == 0):
            return True
        depth += {"(": 1, ")": -1}.get(token["mark"] or "", 0)
    return False


def escaped(path: str) -> str:
    """Return a glob that matches only this path."""
    return re.sub(r"([*?\[{])", r"[\1]", path)
