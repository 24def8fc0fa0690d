"""Encodings of text files that are cut into lines."""

from __future__ import annotations

UTF_8 = "utf-8"
_LINE_ENDS = {b"\n": 1, b"\n\0": 2, b"\0\n": 2, b"\xff\xfe\n\0": 2}


def check_encoding(text: str) -> None:
    width_of(text)


def width_of(name: str) -> int:
    """How many bytes a newline has. Raises ValueError for what is no encoding of lines."""
    try:
        width = _LINE_ENDS.get("\n".encode(name))
    except (LookupError, UnicodeError):
        width = None
    if width is None:
        raise ValueError(
            "expected an encoding such as utf-8, utf-16, latin-1 or windows-1252, in which a line "
            "ends with a newline"
        )
    return width
