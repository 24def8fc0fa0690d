"""Logging of every process: one line per event, to standard error, without secrets."""

from __future__ import annotations

import logging

from flumeng.platform import scrubbing


def to_stderr(process: str) -> None:
    """Log to standard error from INFO up; of kazoo only errors, as the store logs its events."""
    handler = logging.StreamHandler()
    line = f"%(asctime)s {process} %(levelname)s %(message)s"
    handler.setFormatter(scrubbing.Formatter(line, "%Y-%m-%dT%H:%M:%S%z"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("kazoo").setLevel(logging.ERROR)
