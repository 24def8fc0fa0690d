"""What became of each thing in a configuration of Flume."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from flumeng.platform.errors import UserError

Outcome = Literal["mapped", "approximately", "not mapped"]
_RANK: dict[Outcome, int] = {"mapped": 0, "approximately": 1, "not mapped": 2}


@dataclass(frozen=True, order=True)
class Place:
    """Where something stands: ``subject`` is the key of a property, or a node's name."""

    file: str
    line: int
    subject: str


@dataclass(frozen=True, order=True)
class Finding:
    """What one thing became, or why it did not."""

    place: Place
    outcome: Outcome
    message: str

    def __str__(self) -> str:
        place = self.place
        return f"{place.file}:{place.line}: {place.subject}: {self.outcome}: {self.message}"


class Log:
    """Collects findings; the same one is there once, however many flows a thing is part of."""

    def __init__(self) -> None:
        self._findings: dict[Finding, None] = {}
        self._answered: set[Place] = set()

    def mapped(self, place: Place, to: str) -> None:
        self._add(place, "mapped", to)

    def differs(self, place: Place, why: str) -> None:
        self._add(place, "approximately", why)

    def missing(self, place: Place, why: str) -> None:
        self._add(place, "not mapped", why)

    def has(self, place: Place) -> bool:
        """Whether anything was said of it."""
        return place in self._answered

    def add(self, other: Log) -> None:
        """Take over what another one has."""
        self._findings |= other._findings
        self._answered |= other._answered

    def findings(self) -> tuple[Finding, ...]:
        """In the order of the files, and of each place what is worst of it last: that something
        was mapped is left out where more is to be said."""
        worst: dict[Place, Outcome] = {}
        for found in self._findings:
            outcome = worst.get(found.place, "mapped")
            worst[found.place] = max(outcome, found.outcome, key=_RANK.__getitem__)
        return tuple(
            found
            for found in sorted(
                self._findings, key=lambda one: (one.place, _RANK[one.outcome], one.message)
            )
            if found.outcome != "mapped" or worst[found.place] == "mapped"
        )

    def _add(self, place: Place, outcome: Outcome, message: str) -> None:
        self._answered.add(place)
        self._findings[Finding(place, outcome, message)] = None


@dataclass(frozen=True)
class ImportedFlow:
    """A flow file, valid as it is; ``of`` says what of Flume it was."""

    name: str
    of: str
    text: str


@dataclass(frozen=True)
class Imported:
    """All that came of some files."""

    flows: tuple[ImportedFlow, ...]
    findings: tuple[Finding, ...]

    def count(self, outcome: Outcome) -> int:
        return sum(found.outcome == outcome for found in self.findings)


class NotReadableError(UserError):
    """A file that cannot be understood at all; ``problems`` says where and why."""

    def __init__(self, problems: Iterable[tuple[str, int, int, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "\n".join(f"{file}:{line}:{column}: {why}" for file, line, column, why in self.problems)
        )
