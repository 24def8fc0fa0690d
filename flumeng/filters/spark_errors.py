"""Reports the errors of Spark's analysis as errors in the user's text.

Spark analyses a generated text, which has the same words in the same order. So a word of the error
in the generated text is found in the user's text by counting it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flumeng.platform.errors import UserError

_MESSAGE = re.compile(r"(.*?)(?:SQLSTATE: \w+.*)?$", re.DOTALL)
"""An error's text as far as it is for people; a position in the generated text and the analysed
plan may follow."""


@contextmanager
def in_texts(texts: Sequence[tuple[str, str]], name: str) -> Iterator[None]:
    """Raise errors of Spark's analysis as UserError with Spark's message, and with the position in
    the user's text if it is known. ``texts``: pairs of a generated and the user's text. ``name``:
    of the filter."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415  loads pyspark

    try:
        yield
    except AnalysisException as error:
        found = _MESSAGE.match(error.getMessage() or str(error))
        message = " ".join(found[1].split() if found else ()) or type(error).__name__
        raise UserError(f"{name}: {message}{_position(error, texts)}") from error


def _position(error: Any, texts: Sequence[tuple[str, str]]) -> str:
    for context in error.getQueryContext() or ():
        fragment = context.fragment()
        offsets = [
            (given, offset_in(given, generated, start.start()))
            for generated, given in texts
            for start in (re.finditer(re.escape(fragment), generated) if fragment else ())
        ]
        if len(offsets) == 1 and (offset := offsets[0][1]) is not None:
            given = offsets[0][0]
            line, column = given[:offset].count("\n") + 1, offset - given[:offset].rfind("\n")
            return f" (line {line}, column {column} of {_shortened(given)!r})"
    return ""


def offset_in(text: str, generated: str, start: int) -> int | None:
    """Return the place in the user's ``text`` of the first word of ``generated`` from ``start``;
    None if both texts do not have this word equally often."""
    word = re.compile(r"\w+").search(generated, start)
    if word is None:
        return None
    same = re.compile(rf"\b{re.escape(word[0])}\b", re.IGNORECASE)
    in_text, in_generated = (
        [found.start() for found in same.finditer(it)] for it in (text, generated)
    )
    if len(in_text) != len(in_generated):
        return None
    return in_text[in_generated.index(word.start())]


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
