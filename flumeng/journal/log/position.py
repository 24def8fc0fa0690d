"""A journal's position, as its server reports it."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.journal.log.contract import Log


@dataclass(frozen=True, slots=True)
class Position:
    """Events of [floor, safe) can be read; ``held`` more lie behind an unaccepted loss. A ``full``
    journal takes no events until some are acked."""

    term: int
    floor: int
    safe: int
    closed: bool
    held: int = 0
    full: bool = False

    @classmethod
    def of(cls, journal: Log) -> Position:
        safe, readable = journal.safe, journal.readable
        return cls(
            journal.term,
            journal.floor,
            readable,
            journal.closed,
            held=max(0, safe - readable),
            full=journal.full,
        )
