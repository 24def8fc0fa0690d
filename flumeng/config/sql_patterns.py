"""Checks regular expressions inside SQL, which Java matches by backtracking. Refuses ambiguous
repeats, like ``(a+)+``, and patterns that Java and Python interpret differently."""

from __future__ import annotations

import re

MOST_WAYS = 10_000
MOST_REPEATS = 1000
MOST_DEPTH = 20
_TOKEN = re.compile(
    r"(?P<set>\[\^?(?:\\.|[^\[\]\\])+\])"
    r"|(?P<open>\((?:\?[ims]*:)?)(?!\?)"
    r"|(?P<flags>\(\?[ims]+\))"
    r"|(?P<close>\))"
    r"|(?P<or>\|)"
    r"|(?P<repeat>(?:[*+?]|\{\d{1,4}(?:,\d{0,4})?\})\??)"
    r"|(?P<atom>\\x[0-9a-fA-F]{2}|\\[dDwWsSbBnrtfA]|\\[^0-9A-Za-z]|[^\\\[\](){}*+?|])",
    re.DOTALL,
)
_SET_ESCAPE = re.compile(r"\\(?!x[0-9a-fA-F]{2}|[dDwWsSnrtf]|[^0-9A-Za-z])")


def check(text: str) -> None:
    """Raise ValueError unless the text is an allowed regular expression."""
    _Pattern(text)
    try:
        re.compile(text)
    except (re.error, OverflowError) as error:
        raise ValueError(f"expected a regular expression: {error}") from None


def groups(text: str) -> int:
    return re.compile(text).groups


def check_replacement(text: str, groups: int) -> None:
    """Raise ValueError for a ``$1`` without that group, or for an unescaped backslash or ``$``."""
    for sign in re.finditer(r"\\(.?)|\$(\d?)", text, re.DOTALL):
        if sign[0].startswith("\\"):
            if sign[1] not in ("\\", "$"):
                raise ValueError(r"expected \\ or \$ for a backslash or $ in the replacement")
        elif not sign[2] or int(sign[2]) > groups:
            raise ValueError(f"there is no group {sign[0]} in the regular expression")


class _Pattern:
    """Counts the ways in which each part can match. Refuses a repeat of an unbounded repeat, and an
    unbounded repeat of a part that can match in several ways."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._alternatives(0)
        if self._at < len(text):
            self._refuse()

    def _refuse(self) -> None:
        rest = self._text[self._at : self._at + 10]
        raise ValueError(f"not supported in regular expressions of SQL: {rest}")

    def _next(self) -> re.Match[str] | None:
        token = _TOKEN.match(self._text, self._at)
        if token is None and self._at < len(self._text):
            self._refuse()
        return token

    def _alternatives(self, depth: int) -> tuple[int, bool]:
        """Return in how many ways all alternatives can match, and whether one is unbounded."""
        if depth > MOST_DEPTH:
            raise ValueError(f"the regular expression is nested deeper than {MOST_DEPTH}")
        ways, unbounded = self._sequence(depth)
        while (token := self._next()) is not None and token["or"]:
            self._at = token.end()
            more, also = self._sequence(depth)
            ways, unbounded = ways + more, unbounded or also
        return ways, unbounded

    def _sequence(self, depth: int) -> tuple[int, bool]:
        ways, unbounded = 1, False
        while (token := self._next()) is not None and not (token["or"] or token["close"]):
            self._at = token.end()
            if token["flags"]:
                continue
            if token["repeat"]:
                raise ValueError(f"nothing to repeat before {token[0]}")
            of_part, also = self._part(token, depth)
            of_part, also = self._repeated(of_part, also)
            ways, unbounded = min(ways * of_part, MOST_WAYS + 1), unbounded or also
            if ways > MOST_WAYS:
                raise ValueError("the regular expression can match in too many ways")
        return ways, unbounded

    def _part(self, token: re.Match[str], depth: int) -> tuple[int, bool]:
        if token["set"] and _SET_ESCAPE.search(token["set"]):
            raise ValueError(f"escape not supported in regular expressions of SQL: {token['set']}")
        if token["set"] and "&&" in token["set"]:
            raise ValueError("&& is not supported in sets of regular expressions")
        if not token["open"]:
            return 1, False
        inside = self._alternatives(depth + 1)
        closing = self._next()
        if closing is None:
            raise ValueError("expected a regular expression: a group is not closed")
        self._at = closing.end()
        return inside

    def _repeated(self, ways: int, unbounded: bool) -> tuple[int, bool]:
        token = self._next()
        if token is None or not token["repeat"]:
            return ways, unbounded
        self._at = token.end()
        following = self._next()
        if following is not None and following["repeat"]:
            raise ValueError(f"a repeat cannot be repeated: {token[0]}{following[0]}")
        least, most = _bounds(token["repeat"])
        if max(least, most or 0) > MOST_REPEATS:
            raise ValueError(f"expected at most {MOST_REPEATS} repetitions, not {token[0]}")
        if most == 1:
            return ways + 1 - least, unbounded
        if unbounded or (most is None and ways > 1):
            raise ValueError(
                f"a repeat {token[0]} of a part that can match in several ways may take for ever"
            )
        if most is None:
            return 1, True
        return min(ways**most * (most - least + 1), MOST_WAYS + 1), False


def _bounds(repeat: str) -> tuple[int, int | None]:
    if repeat[0] != "{":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[repeat[0]]
    least, comma, most = repeat.rstrip("?")[1:-1].partition(",")
    if not comma:
        return int(least), int(least)
    return int(least), int(most) if most else None
