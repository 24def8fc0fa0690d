"""Reports all problems of a flow file at once, with the path of each option."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from flumeng.platform.errors import UserError

NAMES = 30


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to change: ``line`` from 1, ``path`` like ``sources[0].syslog.listen``. Line 0 and
    an empty path mean the whole file."""

    line: int
    path: str
    message: str

    def __str__(self) -> str:
        line = f"line {self.line}" if self.line else ""
        return ": ".join(part for part in (line, self.path, self.message) if part)


class SpecError(UserError):
    """An invalid flow file; ``problems`` is never empty and is sorted by line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        assert self.problems
        super().__init__("\n".join(map(str, self.problems)))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint about an unknown ``word``: the nearest known one, else the first NAMES ones."""
    names = list(known)
    folded = {name.lower().replace("_", "-"): name for name in names}
    unknown = word.lower().replace("_", "-")
    close = difflib.get_close_matches(unknown, folded, n=1)
    if not close and len(unknown) > 2:
        close = [name for name in folded if name.startswith(unknown)][:1]
    if close:
        return f'did you mean "{folded[close[0]]}"?'
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return f"known here: {', '.join(names[:NAMES])}{more}"
