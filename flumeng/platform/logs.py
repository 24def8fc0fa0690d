"""Logging of every process: one line an event, to standard error, without secrets."""

from __future__ import annotations

import logging

from flumeng.platform import scrubbing


def to_stderr(process: str) -> None:
    """Log from INFO up; kazoo only from ERROR up, since the store reports its relevant events."""
    handler = logging.StreamHandler()
    line = f"%(asctime)s {process} %(levelname)s %(message)s"
    handler.setFormatter(scrubbing.Formatter(line, "%Y-%m-%dT%H:%M:%S%z"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("kazoo").setLevel(logging.ERROR)
