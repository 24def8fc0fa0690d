"""Kinds of columns, as far as Spark SQL distinguishes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flumeng.config.functions import BINARY, BOOLEAN, DATE, INTEGER, TEXT, TIMESTAMP
from flumeng.platform.options.problems import nearest


@dataclass(frozen=True)
class Kind:
    """The type of a column. ``name``: a kind of ``flumeng.config.functions``, or map, array or
    struct. ``inner``: fields of a struct, or contents of a map or array. ``growth``: the most bytes
    of a value, as a multiple of the event's."""

    name: str
    inner: tuple[tuple[str, Kind], ...] = ()
    growth: int = 1


Columns = Mapping[str, Kind]
_TEXT = Kind(TEXT)
RECEIVED: Columns = {
    "body": Kind(BINARY),
    "ts": Kind(TIMESTAMP),
    "host": _TEXT,
    "attrs": Kind("map", (("", _TEXT), ("", _TEXT))),
}
EVENT: Columns = {**RECEIVED, "journal": _TEXT, "seq": Kind(INTEGER), "replayed": Kind(BOOLEAN)}
MESSAGE: Columns = {
    "topic": _TEXT,
    "partition": Kind(INTEGER),
    "key": Kind(BINARY),
    "headers": Kind("map", (("", _TEXT), ("", Kind(BINARY)))),
}
"""Columns that only events from ``kafka`` have."""
PASSED: Columns = {"sites": _TEXT}
"""The column of events from other sites: the sites passed, separated by commas, origin first."""

IN_KEYS = frozenset({TEXT, BINARY, INTEGER, BOOLEAN, DATE, TIMESTAMP})
"""Kinds that all systems compare for equality in the same way."""
_COLUMN = re.compile(r"(?!__|_flumeng)[A-Za-z_][A-Za-z0-9_]{0,199}", re.ASCII)


def check_column(text: str) -> None:
    """Raise ValueError unless a flow may give a column this name."""
    if not _COLUMN.fullmatch(text):
        raise ValueError(
            "expected the name of a column: letters, digits and _, not beginning with __"
        )


def require_new(columns: Iterable[str], more: Iterable[str]) -> None:
    """Raise ValueError when a name in ``more`` is taken; case is ignored."""
    taken = {name.lower() for name in columns}
    for name in more:
        if name.lower() in taken:
            raise ValueError(f"there is a column {name} already")
        taken.add(name.lower())


def require_column(columns: Columns, name: str) -> Kind:
    """Return the kind of a column. Raises ValueError when it does not exist."""
    if name not in columns:
        raise ValueError(f"there is no column {name}; {nearest(name, list(columns))}")
    return columns[name]


def either(passing: Columns, through: Columns) -> Columns:
    """Return the columns after a filter that some events bypass: those before and after it, null
    where missing. Raises ValueError when the kinds of a column differ."""
    require_new(passing, [name for name in through if name not in passing])
    columns = {**passing, **through}
    for name in passing.keys() & through.keys():
        old, new = passing[name], through[name]
        if not _alike(old, new):
            other = "another" if new.name == old.name else "a"
            raise ValueError(
                f"{name} is a {old.name} in events that bypass the filter, for which `when` is not "
                f"true, and {other} {new.name} in the others: CAST it, or give it another name"
            )
        columns[name] = Kind(new.name, new.inner, max(old.growth, new.growth))
    return columns


def _alike(kind: Kind, other: Kind) -> bool:
    """Return whether two kinds are equal, ignoring growth."""
    return (
        kind.name == other.name
        and [name for name, _ in kind.inner] == [name for name, _ in other.inner]
        and all(_alike(a, b) for (_, a), (_, b) in zip(kind.inner, other.inner, strict=True))
    )


def require_keys(columns: Columns, names: Iterable[str]) -> None:
    """Raise ValueError for a name that is not a column usable in keys."""
    for name in names:
        kind = require_column(columns, name).name
        if kind not in IN_KEYS:
            raise ValueError(
                f"column {name} is a {kind}: expected one of {', '.join(sorted(IN_KEYS))}"
            )
