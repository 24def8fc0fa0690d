"""Findings: how each property or component of Flume was mapped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from flumeng.platform.errors import UserError

Outcome = Literal["mapped", "approximately", "not mapped"]
_RANK: dict[Outcome, int] = {"mapped": 0, "approximately": 1, "not mapped": 2}


@dataclass(frozen=True, order=True)
class Location:
    """A position in Flume's files; ``subject`` is the key of a property, or a node's name."""

    file: str
    line: int
    subject: str


@dataclass(frozen=True, order=True)
class Finding:
    """How a property or component was mapped, or why it was not."""

    place: Location
    outcome: Outcome
    message: str

    def __str__(self) -> str:
        where = self.place
        return f"{where.file}:{where.line}: {where.subject}: {self.outcome}: {self.message}"


class Log:
    """Collects findings; equal ones are kept once, even when a component is in several flows."""

    def __init__(self) -> None:
        self._findings: dict[Finding, None] = {}
        self._answered: set[Location] = set()

    def mapped(self, location: Location, to: str) -> None:
        self._add(location, "mapped", to)

    def differs(self, location: Location, why: str) -> None:
        self._add(location, "approximately", why)

    def missing(self, location: Location, why: str) -> None:
        self._add(location, "not mapped", why)

    def has(self, location: Location) -> bool:
        """Whether there is a finding for ``location``."""
        return location in self._answered

    def add(self, other: Log) -> None:
        """Add all findings of another log."""
        self._findings |= other._findings
        self._answered |= other._answered

    def findings(self) -> tuple[Finding, ...]:
        """Return findings in the order of the files, the worst of a location last. ``mapped`` is
        left out where there is a worse one."""
        worst: dict[Location, Outcome] = {}
        for finding in self._findings:
            outcome = worst.get(finding.place, "mapped")
            worst[finding.place] = max(outcome, finding.outcome, key=_RANK.__getitem__)
        return tuple(
            finding
            for finding in sorted(
                self._findings, key=lambda f: (f.place, _RANK[f.outcome], f.message)
            )
            if finding.outcome != "mapped" or worst[finding.place] == "mapped"
        )

    def _add(self, location: Location, outcome: Outcome, message: str) -> None:
        self._answered.add(location)
        self._findings[Finding(location, outcome, message)] = None


@dataclass(frozen=True)
class ImportedFlow:
    """A valid flow file; ``of`` names the agents or nodes of Flume that it replaces."""

    name: str
    of: str
    text: str


@dataclass(frozen=True)
class Imported:
    """The flows and findings of all imported files."""

    flows: tuple[ImportedFlow, ...]
    findings: tuple[Finding, ...]

    def count(self, outcome: Outcome) -> int:
        return sum(finding.outcome == outcome for finding in self.findings)


class NotReadableError(UserError):
    """A file cannot be parsed at all; ``problems`` has the positions and causes."""

    def __init__(self, problems: Iterable[tuple[str, int, int, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "\n".join(f"{file}:{line}:{column}: {why}" for file, line, column, why in self.problems)
        )
