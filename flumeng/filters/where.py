"""Keeps the events for which a condition in Spark SQL is true (not null, not false)."""

from __future__ import annotations

from flumeng.frame import Frame
from flumeng.spec.filters import Where


class WhereFilter:
    def __init__(self, options: Where) -> None:
        self._options = options

    def apply(self, frame: Frame) -> Frame:
        return frame.sql(lambda rows: rows.where(self._options.expression))
