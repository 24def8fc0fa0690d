"""When Python does not look for garbage: objects that refer to each other in a circle."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """For what makes very many objects that stay, while somebody waits for it: a plan, modules."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
