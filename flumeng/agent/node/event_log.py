"""What happened on a node: an entry for each change of a state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One entry of the story: what changed of ``who`` (the node, a child or a task), and why.

    ``number`` grows by one with each; ``seconds`` are those of the machine's clock.
    """

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
