"""Detects filters that call users' functions."""

from __future__ import annotations

from flumeng.config import FlowSpec


def calls_users_code(spec: FlowSpec) -> bool:
    """Return whether a filter calls users' functions, which need one thread and may use pandas."""
    return any(part.name == "python" for part in spec.all_filters)
