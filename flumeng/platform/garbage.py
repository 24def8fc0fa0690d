"""When Python does not look for garbage: objects that refer to each other in a circle."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """For what makes very many objects that stay, while somebody waits for it: a plan, modules."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def current_frames() -> dict[int, FrameType]:
    """The frame that each thread is in, by the thread's identifier.

    ``sys._current_frames`` of CPython 3.11 holds the interpreter's lock on its threads. When it
    collects garbage meanwhile, and that has a ``threading.local`` in it, it waits for ever for its
    own lock (https://github.com/python/cpython/issues/106883).
    """
    with no_garbage_collection():
        return sys._current_frames()
