"""Threads that a process cannot do without: when one ends with an error, so does the process.

The node starts it anew. Without such a thread it would go on saying that it is alive while it does
nothing any more.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

EXIT_CODE = 70


@contextmanager
def vital() -> Iterator[None]:
    """What is done in it raises nothing, or this process ends."""
    try:
        yield
    except BaseException:
        log.critical("a broken invariant; this process ends", exc_info=True)
        os._exit(EXIT_CODE)


def start(name: str, run: Callable[[], None]) -> threading.Thread:
    """Let ``run`` run in a daemon thread of that name."""

    def guarded() -> None:
        with vital():
            run()

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread
