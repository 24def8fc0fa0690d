"""How every process logs: one line an event, to standard error."""

from __future__ import annotations

import logging


def to_stderr(process: str) -> None:
    """Log from INFO up; kazoo only from ERROR up, since the store says what matters of it."""
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {process} %(levelname)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S%z",
    )
    logging.getLogger("kazoo").setLevel(logging.ERROR)
