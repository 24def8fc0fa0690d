"""JSON paths like ``data.items[*].hits`` or ``["@odata.nextLink"]``, and their verbatim values. A
step is a name, an index (negative from the end) or ``[*]``; a ``?`` after it makes it optional.
Names with characters other than letters, digits and ``_@$-`` are quoted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from flumeng.platform.errors import UserError

MOST_STEPS = 32
BLANK = b" \t\n\r"
NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
_STEP = re.compile(
    r"(?:(?P<dot>\.?)(?P<name>[\w@$-]{1,200})"
    r'|\["(?P<quoted>[^"\\\x00-\x1f]{1,200})"\]'
    r"|\[(?P<index>-?[0-9]{1,9})\]"
    r"|\[(?P<all>\*)\])(?P<optional>\??)"
)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True)
class Step:
    """``key``: a name, an index, or None for all elements."""

    key: str | int | None
    optional: bool

    def __str__(self) -> str:
        if isinstance(self.key, str):
            return self.key
        return "[*]" if self.key is None else f"[{self.key}]"


def parse(text: str) -> tuple[Step, ...]:
    """Return the steps of a path. Raises ValueError when it is invalid."""
    steps: list[Step] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None or (match["name"] and bool(match["dot"]) != bool(steps)):
            raise ValueError('expected a path, like "data.items", "hits[*].source" or ["a.b"]')
        index = match["index"]
        key = int(index) if index is not None else match["name"] or match["quoted"]
        steps.append(Step(key, bool(match["optional"])))
        position = match.end()
    if not 0 < len(steps) <= MOST_STEPS:
        raise ValueError(f"expected a path of 1 to {MOST_STEPS} steps")
    return tuple(steps)


def check_path(text: str) -> None:
    """Check a path. Raises ValueError when it is invalid."""
    parse(text)


def check_single(text: str) -> None:
    """Check a path to one value. Raises ValueError, also for a path to several values."""
    if any(step.key is None for step in parse(text)):
        raise ValueError("expected a path to one value, without [*]")


def values_at(text: bytes, path: Sequence[Step]) -> Iterator[bytes]:
    """Yield values at the path. Raises UserError for a missing required step; null ends a path,
    except before a required ``[*]``."""
    if not path:
        yield text
        return
    step, rest = path[0], path[1:]
    inner = _below(text, step)
    if inner is None:
        if step.optional or (step.key is not None and text.strip(BLANK) == b"null"):
            return
        raise UserError(
            f"the answer has no {step} of the path `records`: correct the path, or put a ? behind "
            "an optional step"
        )
    for value in inner:
        yield from values_at(value, rest)


def value_at(text: bytes, path: Sequence[Step]) -> bytes | None:
    """Return the first value at the path; None when it is missing or null."""
    for step in path:
        inner = _below(text, step)
        if not inner:
            return None
        text = inner[0]
    text = text.strip(BLANK)
    return None if text == b"null" else text


def scalar(text: bytes) -> str | None:
    """Return a string's content, or a number verbatim; None for other values."""
    if text[:1] == b'"':
        try:
            return msgspec.json.decode(text, type=str)
        except NOT_JSON:
            return None
    return text.decode() if text[:1] in b"-0123456789" and text else None


def _below(text: bytes, step: Step) -> list[bytes] | None:
    """Return the values of a step, several only for ``[*]``; None when it is missing."""
    text = text.strip(BLANK)
    try:
        if isinstance(step.key, str):
            named = _object(text) if text[:1] == b"{" else {}
            return [bytes(named[step.key])] if step.key in named else None
        if text[:1] != b"[":
            return None
        listed = [bytes(element) for element in _array(text)]
    except NOT_JSON:
        return None
    if step.key is None:
        return listed
    return [listed[step.key]] if -len(listed) <= step.key < len(listed) else None
