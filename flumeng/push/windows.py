"""When sites may be changed: windows of the week, in a site's own time zone. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """``days`` are those on which it begins, Monday is 0; ``begin`` and ``end`` are minutes of the
    day in local time. One that ends before it begins, or at the same minute, ends the day after."""

    days: frozenset[int]
    begin: int
    end: int
