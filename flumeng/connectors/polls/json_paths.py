"""Paths into JSON, like ``data.items[*].hits`` or ``["@odata.nextLink"]``.

A name, an index (counted from the end below 0) or ``[*]`` for all elements, and a ``?`` behind what
may be missing. A name with other characters than letters, digits and ``_@$-`` is written in quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_STEPS = 32
_STEP = re.compile(
    r"(?:(?P<dot>\.?)(?P<name>[\w@$-]{1,200})"
    r'|\["(?P<quoted>[^"\\\x00-\x1f]{1,200})"\]'
    r"|\[(?P<index>-?[0-9]{1,9})\]"
    r"|\[(?P<all>\*)\])(?P<optional>\??)"
)


@dataclass(frozen=True)
class Step:
    """``key`` is a name, an index, or None for all elements."""

    key: str | int | None
    optional: bool

    def __str__(self) -> str:
        return (
            f"[{'*' if self.key is None else self.key}]" if self.key != str(self.key) else self.key
        )


def parse(text: str) -> tuple[Step, ...]:
    """Raises ValueError."""
    steps: list[Step] = []
    position = 0
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None or (found["name"] and bool(found["dot"]) != bool(steps)):
            raise ValueError('expected a path, like "data.items", "hits[*].source" or ["a.b"]')
        steps.append(_step(found))
        position = found.end()
    if not 0 < len(steps) <= MOST_STEPS:
        raise ValueError(f"expected a path of 1 to {MOST_STEPS} steps")
    return tuple(steps)


def check_path(text: str) -> None:
    """Raises ValueError."""
    parse(text)


def check_single(text: str) -> None:
    """Raises ValueError, also for a path that may lead to several values."""
    if any(step.key is None for step in parse(text)):
        raise ValueError("expected a path to one value, without [*]")


def _step(found: re.Match[str]) -> Step:
    optional = bool(found["optional"])
    if found["index"] is not None:
        return Step(int(found["index"]), optional)
    return Step(None if found["all"] else found["name"] or found["quoted"], optional)
