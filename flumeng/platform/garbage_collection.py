"""Pauses Python's cyclic garbage collection, and exempts modules from it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection while very many lasting objects are created: a plan, modules."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def freeze_modules() -> None:
    """Exempt loaded modules from the garbage collection (50 ms) of Spark's workers after tasks."""
    gc.freeze()


def current_frames() -> dict[int, FrameType]:
    """Return the frame of each thread by thread id. In CPython 3.11 ``sys._current_frames`` may
    deadlock with a garbage collection (https://github.com/python/cpython/issues/106883)."""
    with no_garbage_collection():
        return sys._current_frames()
