"""The modules of the daemons, for tests that start them or look for their processes."""

from __future__ import annotations


def module_of(kind: str) -> str:
    """``master``, ``node``, or a child of a node: ``ingest``, ``collector``, ``discovery``."""
    return f"flumeng.{'control' if kind == 'master' else 'agent'}.{kind}"
