from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A state change of ``who`` (the node, a child or a task). ``seconds`` are those of the
    machine's clock."""

    number: int
    seconds: float
    who: str
    event: str
    before: str
    after: str
    cause: str = ""

    def __str__(self) -> str:
        cause = f": {self.cause}" if self.cause else ""
        return f"{self.who}: {self.before or '-'} -> {self.after or '-'} ({self.event}{cause})"
