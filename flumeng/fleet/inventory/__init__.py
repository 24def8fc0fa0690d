"""An inventory's sites and problems; ``files`` reads an inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flumeng.fleet.inventory.layers import Layer
from flumeng.fleet.waves import Wave
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class Site:
    """One data centre. ``zookeeper``: connect string with chroot. ``groups``: in overlay order.
    ``credential``: ``${secret:NAME}`` of ``user:password`` for ZooKeeper's digest scheme, or empty.
    ``connect_seconds`` and ``turn_seconds`` limit a connection and each read or change."""

    name: str
    zookeeper: str
    groups: tuple[str, ...] = ()
    zone: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    time_zone: str = "UTC"
    credential: str = ""
    connect_seconds: float = 10.0
    turn_seconds: float = 60.0


@dataclass(frozen=True)
class Inventory:
    """An inventory. ``digest``: of all files; ``revision``: git commit, with ``+`` for uncommitted
    changes, or empty. Each site is in one wave. ``layers``: by name (``base``, ``groups/eu``)."""

    name: str
    directory: Path
    sites: Mapping[str, Site]
    waves: tuple[Wave, ...]
    digest: str
    revision: str = ""
    layers: Mapping[str, Layer] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, order=True)
class InventoryProblem:
    """A problem. ``line`` from 1, or 0 for the whole file; ``path``: the place in the file."""

    file: str
    line: int
    path: str
    message: str
    sites: tuple[str, ...] = ()


class InventoryError(UserError):
    """An inventory is invalid; ``problems``: those of all files and sites, sorted."""

    def __init__(self, problems: Sequence[InventoryProblem]) -> None:
        self.problems = tuple(sorted(problems))
        assert self.problems
        super().__init__("\n".join(map(sentence, self.problems)))


def sentence(problem: InventoryProblem) -> str:
    """Return text like ``base/flows/web.yaml:3: sinks[0].files.path: ... (sites fra, lon)``."""
    where = f"{problem.file}:{problem.line}" if problem.line else problem.file
    text = ": ".join(part for part in (where, problem.path, problem.message) if part)
    if not problem.sites:
        return text
    first, more = problem.sites[:5], len(problem.sites) - 5
    names = ", ".join(first) + (f" and {more} more" if more > 0 else "")
    return f"{text} (site{'' if len(problem.sites) == 1 else 's'} {names})"
