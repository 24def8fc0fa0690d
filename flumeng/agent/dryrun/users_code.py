"""Detects filters that call users' functions, and keeps pandas unloaded when there are none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

import pyarrow as pa

from flumeng.config import FlowSpec


def calls_users_code(spec: FlowSpec) -> bool:
    """Return whether a filter calls users' functions, which need one thread and may use pandas."""
    return any(part.name == "python" for part in spec.all_filters)


class _NoPandas:
    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None, _target: object = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)
        return None


def leave_out_pandas() -> None:
    """Keep Arrow from importing pandas, which saves a fifth of a second: Arrow tries this once,
    with its first array of Python values. ``to_pandas`` still loads pandas."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_NoPandas)
