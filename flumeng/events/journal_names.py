"""The parts of a journal's id: ``flow.node.worker.suffix``, with the number of the ingest worker
that made it. Flow names have no dots. Light to import."""

from __future__ import annotations

import re
import uuid

NODE_CHARACTERS = 100
_JOURNAL = re.compile(r"[^.]+\..+\.[0-9]+\.[^.]+")
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def is_id(text: str) -> bool:
    """Whether it is a valid name of a journal, and of a directory."""
    return _ID.fullmatch(text) is not None


def is_journal(text: str) -> bool:
    """Whether it is an id of ``new_id``, with flow, node and worker."""
    return is_id(text) and _JOURNAL.fullmatch(text) is not None


def is_node(text: str) -> bool:
    """Whether a node may have that name: the ids of its journals contain it."""
    return len(text) <= NODE_CHARACTERS and is_id(text)


def new_id(flow: str, node: str, worker: int) -> str:
    return f"{flow}.{node}.{worker}.{uuid.uuid4().hex[:8]}"


def flow_of(journal: str) -> str:
    return journal.partition(".")[0]


def node_of(journal: str) -> str:
    return journal.rsplit(".", 2)[0].partition(".")[2]


def maker_of(journal: str) -> int:
    """The number of the worker that made the journal; no other writes to it."""
    return int(journal.rsplit(".", 2)[1])


def worker_of(journal: str, workers: int) -> int:
    """The number of the worker that serves the journal: its maker, or 0 with fewer workers now."""
    maker = maker_of(journal)
    return maker if maker < workers else 0
