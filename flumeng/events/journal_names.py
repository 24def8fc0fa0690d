"""The parts of a journal's id, ``flow.node.worker.suffix``: flow names have no dots, and the worker
is the number of the ingest worker that made the journal. Imports little."""

from __future__ import annotations

import re
import uuid

NODE_CHARACTERS = 100
_JOURNAL = re.compile(r"[^.]+\..+\.[0-9]+\.[^.]+")
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def is_id(text: str) -> bool:
    """Return whether the text is a valid name of a journal, and so of a directory."""
    return _ID.fullmatch(text) is not None


def is_journal(text: str) -> bool:
    """Return whether the text is an id as ``new_id`` makes it, with flow, node and worker."""
    return is_id(text) and _JOURNAL.fullmatch(text) is not None


def is_node(text: str) -> bool:
    """Return whether a node may have that name, which is part of its journals' ids."""
    return len(text) <= NODE_CHARACTERS and is_id(text)


def new_id(flow: str, node: str, worker: int) -> str:
    return f"{flow}.{node}.{worker}.{uuid.uuid4().hex[:8]}"


def flow_of(journal: str) -> str:
    return journal.partition(".")[0]


def node_of(journal: str) -> str:
    return journal.rsplit(".", 2)[0].partition(".")[2]


def maker_of(journal: str) -> int:
    """Return the number of the worker that made the journal; no other worker writes to it."""
    return int(journal.rsplit(".", 2)[1])


def worker_of(journal: str, workers: int) -> int:
    """Return the worker that serves the journal: its maker, or worker 0 if that does not run."""
    maker = maker_of(journal)
    return maker if maker < workers else 0
