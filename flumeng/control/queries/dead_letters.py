"""Dead letters as rows, which the room ``connectors`` reads from files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DeadLetterRow:
    """Dead letters of one place, revision and kind of reason. ``reason``: its common part.
    ``first`` and ``last``: times in UTC. ``replayed``: how many of them replays have taken."""

    place: str
    revision: int
    reason: str
    letters: int
    replayed: int
    first: str
    last: str
    example: str


@dataclass(frozen=True)
class DeadLetterTotals:
    """The selected dead letters of a flow below ``path``. ``files`` and ``bytes``: those that have
    any. ``damaged``: reasons by file."""

    flow: str
    path: str
    letters: int
    replayed: int
    files: int
    bytes: int
    kinds: tuple[DeadLetterRow, ...]
    damaged: Mapping[str, str]
