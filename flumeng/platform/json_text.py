"""JSON as RFC 8259 has it, for msgspec, which refuses one thing that the RFC lets be.

Half of a surrogate pair may stand alone (``"\\ud83d"``). A text with every such escape, paired or
not, written as ``\\ufffd`` is JSON exactly if the text is, and all of its values are as long. (What
looks like one behind an escaped backslash is letters, of which it does not matter which they are.)
"""

from __future__ import annotations

import numpy as np

_BACKSLASH = ord("\\")


def _is_one_of(characters: bytes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    table = np.zeros(256, np.bool_)
    table[np.frombuffer(characters, np.uint8)] = True
    return table


_ESCAPE = tuple(map(_is_one_of, (b"u", b"dD", b"89abcdefABCDEF", *[b"0123456789abcdefABCDEF"] * 2)))


def without_surrogates(text: bytes) -> bytes:
    """``text`` with every escaped half of a surrogate pair as ``\\ufffd``."""
    if rb"\ud" not in text and rb"\uD" not in text:
        return text
    data = np.frombuffer(text, np.uint8).copy()
    halves = np.flatnonzero(data[: -len(_ESCAPE)] == _BACKSLASH)
    for ahead, allowed in enumerate(_ESCAPE, start=1):
        halves = halves[allowed[data[halves + ahead]]]
    for ahead, character in enumerate(b"fffd", start=2):
        data[halves + ahead] = character
    return data.tobytes()
