"""Fail-fast threads: when one raises, the process ends and the node restarts it. Otherwise the
process would report that it is alive and do nothing."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

EXIT_CODE = 70


@contextmanager
def ending_the_process() -> Iterator[None]:
    try:
        yield
    except BaseException:
        log.critical("unexpected error; this process ends", exc_info=True)
        os._exit(EXIT_CODE)


def start(name: str, run: Callable[[], None]) -> threading.Thread:
    """Run ``run`` in a fail-fast daemon thread of that name."""

    def run_or_end() -> None:
        with ending_the_process():
            run()

    thread = threading.Thread(target=run_or_end, name=name, daemon=True)
    thread.start()
    return thread


def every(seconds: float, act: Callable[[], None], name: str) -> None:
    """Call ``act`` repeatedly in a fail-fast thread, after ``seconds`` each time."""

    def run() -> None:
        while True:
            time.sleep(seconds)
            act()

    start(name, run)
