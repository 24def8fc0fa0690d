"""Translates escapes in Flume's paths and names to those of flumeng: ``%Y`` for times, else
``{column}``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from flumeng_flume.stream import Stream

_ESCAPE = re.compile(r"%(?:\{(?P<header>[^{}]+)\}|\[(?P<host>[^\]]*)\]|(?P<letter>[A-Za-z%]))")
_OWN = "YmdHM"
_LONG = {"D": "%m/%d/%y", "c": "%a %b %e %H:%M:%S %Y", "r": "%I:%M:%S %p", "R": "%H:%M",
         "T": "%H:%M:%S", "x": "%m/%d/%y", "X": "%H:%M:%S"}  # fmt: skip
_PATTERNS = {
    "y": ("yy", "year2"), "S": ("ss", "second"), "a": ("E", "weekday"), "A": ("EEEE", "weekday"),
    "b": ("MMM", "month"), "B": ("MMMM", "month"), "h": ("MMM", "month"), "e": ("d", "day"),
    "I": ("hh", "hour12"), "j": ("DDD", "day_of_year"), "k": ("H", "hour"), "l": ("h", "hour12"),
    "n": ("M", "month"), "p": ("a", "half_day"), "L": ("SSS", "milli"),
}  # fmt: skip
_NUMBERS = {"s": ("unix_seconds(ts)", "epoch_seconds"), "t": ("unix_millis(ts)", "epoch_millis")}
TIMED = re.compile(r"%[A-Za-z]")
Unit = Literal["second", "minute", "hour"]


@dataclass(frozen=True)
class Rounding:
    """The rounding of times in a path, down to a multiple of ``value`` units."""

    unit: Unit
    value: int


def translate(
    text: str, stream: Stream, rounding: Rounding | None = None, *, times: str = _OWN
) -> tuple[str, list[str]]:
    """Return the text with flumeng's escapes, and the errors. Columns that it needs are added to
    ``stream``. ``times``: escapes of time that may stay."""
    wrong: list[str] = []
    for letter, written in _LONG.items():
        text = text.replace(f"%{letter}", written)

    def meant(match: re.Match[str]) -> str:
        try:
            column = _column(match, stream, rounding, times)
        except ValueError as error:
            wrong.append(f"{match[0]}: {error}")
            return "unknown"
        return column

    return _ESCAPE.sub(meant, text), wrong


def _column(match: re.Match[str], stream: Stream, rounding: Rounding | None, times: str) -> str:
    if match["header"]:
        return f"{{{_of_header(match['header'], stream)}}}"
    if match["host"] is not None:
        return "{host}"
    letter = match["letter"]
    if letter == "%":
        return "_"
    if rounding is not None and (rounded := _rounded(letter, rounding)) is not None:
        return rounded if isinstance(rounded, str) else f"{{{_time(stream, *rounded)}}}"
    if letter in times:
        return f"%{letter}"
    if letter in _OWN:
        return f"{{{_time(stream, f'date_format(ts, {_JAVA[letter]!r})', 'ts_' + letter)}}}"
    if letter in _PATTERNS:
        pattern, name = _PATTERNS[letter]
        return f"{{{_time(stream, f'date_format(ts, {pattern!r})', name)}}}"
    if letter in _NUMBERS:
        return f"{{{_time(stream, *_NUMBERS[letter])}}}"
    raise ValueError("flumeng has no such escape")


_JAVA = {"Y": "yyyy", "m": "MM", "d": "dd", "H": "HH", "M": "mm"}


def _of_header(name: str, stream: Stream) -> str:
    column = stream.header(name)
    if column == "ts":
        return _time(stream, *_NUMBERS["t"])
    if column is None:
        raise ValueError(f"unknown header {name}: make a column of it with select")
    return column


def _time(stream: Stream, expression: str, name: str) -> str:
    """Return the column with a part of the time; add it when it is missing."""
    column = stream.headers.get(expression)
    if column is None:
        column = stream.headers[expression] = stream.add(name, expression)
    return column


def _rounded(letter: str, rounding: Rounding) -> str | tuple[str, str] | None:
    """Return a text for the escape, or an expression and the name of its column; None when rounding
    does not change it."""
    smaller = {"hour": "MS", "minute": "S", "second": ""}[rounding.unit]
    if letter in smaller:
        return "00"
    if letter != {"hour": "H", "minute": "M", "second": "S"}[rounding.unit] or rounding.value == 1:
        return None
    unit, value = rounding.unit, rounding.value
    number = f"CAST(floor({unit}(ts) / {value}) * {value} AS INT)"
    return f"lpad(CAST({number} AS STRING), 2, '0')", f"{unit}_of_{value}"
