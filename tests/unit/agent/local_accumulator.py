"""An accumulator without Spark, within one process."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from flumeng.connectors.ranged.accumulator import Entries

_made: list[LocalAccumulator] = []


class LocalAccumulator:
    """The same object after pickling and unpickling."""

    def __init__(self, merge: Callable[[Any, Any], Any] = operator.add) -> None:
        self.value: Entries[Any] = {}
        self._merge = merge
        self._number = len(_made)
        _made.append(self)

    def add(self, term: Entries[Any]) -> None:
        both = self.value.keys() & term.keys()
        merged = {key: self._merge(self.value[key], term[key]) for key in both}
        self.value = {**self.value, **term, **merged}

    def __reduce__(self) -> tuple[Callable[[int], LocalAccumulator], tuple[int]]:
        return _numbered, (self._number,)


def _numbered(number: int) -> LocalAccumulator:
    return _made[number]
