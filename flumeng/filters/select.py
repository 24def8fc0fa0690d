"""Chooses and computes columns with expressions in Spark SQL; all others are dropped."""

from __future__ import annotations

from flumeng.frame import Frame
from flumeng.spec.filters import Select


class SelectFilter:
    def __init__(self, options: Select) -> None:
        self._options = options

    def apply(self, frame: Frame) -> Frame:
        return frame.sql(lambda rows: rows.selectExpr(*self._options.expressions))
