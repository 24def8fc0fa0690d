"""``KEY=VALUE`` words of a command: labels and capacities. ``KEY-`` takes a key away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flumeng.platform.errors import UserError


def given(texts: Sequence[str], what: str) -> dict[str, str]:
    """Raises ``UserError`` for a word that is no pair; ``what`` is what one is called."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UserError(f"{what} is KEY=VALUE, not {text!r}")
        pairs[key] = value
    return pairs


def changes(texts: Sequence[str], what: str) -> tuple[dict[str, str], list[str]]:
    """What is set and what is taken away. Raises ``UserError``."""
    taken = [text[:-1] for text in texts if "=" not in text and text.endswith("-")]
    pairs = given([text for text in texts if text[:-1] not in taken], what)
    both = sorted({*taken} & {*pairs})
    if both:
        raise UserError(f"{what} cannot be set and removed at once: {both[0]}")
    return pairs, taken


def numbers(pairs: Mapping[str, str], what: str) -> dict[str, float]:
    """Values that are numbers above 0. Raises ``UserError``."""
    found = {}
    for key, text in pairs.items():
        try:
            found[key] = float(text)
        except ValueError as error:
            raise UserError(f"{what} {key} is a number, not {text!r}") from error
        if not 0 < found[key] < math.inf:
            raise UserError(f"{what} {key} is above 0, not {text}")
    return found
