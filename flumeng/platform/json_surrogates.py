r"""Replaces escaped surrogates (``\ud83d``), even paired ones, by ``\ufffd``. RFC 8259 allows
unpaired ones, msgspec refuses them. The result is valid JSON exactly if the text was, and values
keep their lengths: it serves to check and find values, not to read them."""

from __future__ import annotations

import numpy as np

_BACKSLASH = ord("\\")


def is_one_of(characters: bytes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return, for each value of a byte, whether it is one of the characters."""
    table = np.zeros(256, np.bool_)
    table[np.frombuffer(characters, np.uint8)] = True
    return table


_ESCAPE = tuple(map(is_one_of, (b"u", b"dD", b"89abcdefABCDEF", *[b"0123456789abcdefABCDEF"] * 2)))


def without_surrogates(text: bytes) -> bytes:
    if rb"\ud" not in text and rb"\uD" not in text:
        return text
    data = np.frombuffer(text, np.uint8).copy()
    halves = np.flatnonzero(data[: -len(_ESCAPE)] == _BACKSLASH)
    for ahead, allowed in enumerate(_ESCAPE, start=1):
        halves = halves[allowed[data[halves + ahead]]]
    for ahead, character in enumerate(b"fffd", start=2):
        data[halves + ahead] = character
    return data.tobytes()
