"""Users' functions in filters: detects them, and avoids pandas without them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

import pyarrow as pa

from flumeng.config import FlowSpec


def calls_users_code(spec: FlowSpec) -> bool:
    """Whether a filter calls users' functions: these need one thread, and may use pandas."""
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
    """Saves a fifth of a second: Arrow loads pandas with its first array of Python values, but
    tries only once. ``to_pandas`` still loads it."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_NoPandas)
