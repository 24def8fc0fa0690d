"""Whether Arrow knows pandas, whose import takes a quarter of a second and 35 MB. Arrow imports it
with its first array of Python values, and needs it only for objects of pandas."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

import pyarrow as pa


class _NoPandas:
    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None, _target: object = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)
        return None


def leave_out() -> None:
    """Keep Arrow from importing pandas in this process: it tries that once."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
        pa.scalar(0)
    finally:
        sys.meta_path.remove(_NoPandas)


def take_in() -> None:
    """Let Arrow import pandas after all: users' code may give it a Series."""
    pa.array([], pa.null()).to_pandas()
