"""What an inventory says of its sites and waves; ``files`` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flumeng.fleet.inventory.layers import Layer
from flumeng.fleet.inventory.windows import Window
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class Site:
    """One data centre.

    ``zookeeper`` is a connect string with a chroot. ``groups`` are in the order in which their
    overlays apply. ``variables`` has those of the inventory and of the groups too. ``credential``
    refers to a secret, as ``${secret:NAME}``, that holds ``user:password`` for the digest scheme of
    ZooKeeper; empty: none. ``connect_seconds`` bounds the wait for a connection,
    ``turn_seconds`` each look at the site and each change of it.
    """

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
class Wave:
    """Sites that are changed together, so many at once.

    A wave has failed when more of its sites than ``max_failures`` have. A site has
    ``settle_seconds`` to run what it got, and must then be no worse than before for
    ``soak_seconds``. A site is only begun within one of the ``windows``, in its own time zone;
    without any, at any time.
    """

    name: str
    sites: tuple[str, ...]
    parallel: int = 1
    max_failures: int = 0
    settle_seconds: float = 300.0
    soak_seconds: float = 0.0
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """``digest`` is that of all its files; ``revision`` that of the git checkout they are in, with
    ``+`` behind it when they differ from it, empty without one. Each site is in one wave.
    ``layers`` has what was in the files below it, by the layer's name (``base``, ``groups/eu``)."""

    name: str
    directory: Path
    sites: Mapping[str, Site]
    waves: tuple[Wave, ...]
    digest: str
    revision: str = ""
    layers: Mapping[str, Layer] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, order=True)
class InventoryProblem:
    """One thing to change: ``line`` from 1, or 0 for the file as a whole. ``path`` is the place in
    the flow or file. ``sites`` are those that have it, empty when it is of no site's."""

    file: str
    line: int
    path: str
    message: str
    sites: tuple[str, ...] = ()


class InventoryError(UserError):
    """An inventory that cannot be used; ``problems`` has all of all its files and sites, sorted."""

    def __init__(self, problems: Sequence[InventoryProblem]) -> None:
        self.problems = tuple(sorted(problems))
        assert self.problems
        super().__init__("\n".join(map(sentence, self.problems)))


def sentence(problem: InventoryProblem) -> str:
    """``base/flows/web.yaml:3: sinks[0].files.path: ... (sites fra, lon)``."""
    where = f"{problem.file}:{problem.line}" if problem.line else problem.file
    said = ": ".join(part for part in (where, problem.path, problem.message) if part)
    if not problem.sites:
        return said
    first, more = problem.sites[:5], len(problem.sites) - 5
    names = ", ".join(first) + (f" and {more} more" if more > 0 else "")
    return f"{said} (site{'' if len(problem.sites) == 1 else 's'} {names})"
