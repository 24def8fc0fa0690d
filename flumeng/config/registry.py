"""The installed sources, filters, sinks and journals, found by entry points. Each point names an
option class of ``flumeng.config.component``, which names the implementation. Both are imported when
used, so control processes need no pyarrow or pyspark. A broken plug-in affects only its users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from flumeng.config.component import (
    Declared,
    FilterOptions,
    Kind,
    OutsideJournal,
    SinkOptions,
    SourceOptions,
)
from flumeng.platform.errors import UserError

GROUPS: Mapping[str, Kind] = {
    "flumeng.sources": "source",
    "flumeng.inputs": "source",
    "flumeng.filters": "filter",
    "flumeng.sinks": "sink",
    "flumeng.journals": "journal",
}
"""Groups of entry points. Inputs are sources whose partitions are read in ranges."""


_BASES: Mapping[Kind, type[Declared]] = {
    "source": SourceOptions,
    "filter": FilterOptions,
    "sink": SinkOptions,
    "journal": OutsideJournal,
}
OWN = "flumeng"


@dataclass(frozen=True)
class Entry:
    """An installed component. ``options``: its option class, ``"module:Class"``; ``distribution``:
    its package; ``wrong``: why it cannot be used, if known."""

    kind: Kind
    name: str
    options: str
    distribution: str
    wrong: str = ""

    def options_class(self) -> type[Any]:
        """Import the option class. Raises UserError when the component cannot be loaded."""
        if self.wrong:
            raise UserError(self.wrong)
        return _options_class(self)

    def implementation_class(self) -> type[Any]:
        """Import the implementation. Raises ``ImportError`` for a missing package, or UserError."""
        return self._loaded(self.options_class().implementation)

    def finder_class(self) -> type[Any]:
        """Import the finder of a partitioned source. Raises as ``implementation_class``."""
        cls = self.options_class()
        return self._loaded(cls.finder or cls.implementation)

    def poll_class(self) -> type[Any]:
        """Import the poller of a polling source. Raises as ``implementation_class``."""
        return self._loaded(self.options_class().poll)

    def fault(self) -> str:
        """Return why a component is unusable, or "". Missing packages count for plug-ins only."""
        try:
            self.options_class()
            if self.distribution != OWN:
                self.implementation_class()
        except (ImportError, UserError) as error:
            return str(error)
        return ""

    def _loaded(self, reference: str) -> type[Any]:
        try:
            return _imported(reference)
        except ImportError:
            raise
        except Exception as error:  # a plug-in may raise anything
            raise UserError(self.unloadable(f"{type(error).__name__}: {error}")) from error

    def unloadable(self, reason: str) -> str:
        return (
            f"the {self.kind} {self.name} of the package {self.distribution} cannot be loaded: "
            f"{reason}"
        )


def entries(kind: Kind) -> tuple[Entry, ...]:
    return tuple(entry for entry in all_entries() if entry.kind == kind)


def all_entries() -> tuple[Entry, ...]:
    return tuple(_installed().values())


def plug_ins() -> bool:
    """Return whether another package than flumeng has components."""
    return any(entry.distribution != OWN for entry in all_entries())


def usable(kind: Kind) -> Iterator[tuple[str, type[Any]]]:
    """Yield the names and option classes of components whose option class can be loaded."""
    for entry in entries(kind):
        with suppress(UserError):
            yield entry.name, entry.options_class()


def find(kind: Kind, name: str) -> Entry | None:
    return _installed().get((kind, name))


def get(kind: Kind, name: str) -> Entry:
    """Return a component of a parsed flow, which is known to exist."""
    return _installed()[kind, name]


@cache
def _installed() -> Mapping[tuple[Kind, str], Entry]:
    return read(point for group in GROUPS for point in entry_points(group=group))


def read(points: Iterable[EntryPoint]) -> Mapping[tuple[Kind, str], Entry]:
    """Return all components; a name that two packages define is unusable."""
    by_name: dict[tuple[Kind, str], Entry] = {}
    for entry in sorted(_entries(points), key=lambda entry: (_ORDER[entry.kind], entry.name)):
        key = entry.kind, entry.name
        if key in by_name:
            both = " and ".join(sorted((by_name[key].distribution, entry.distribution)))
            wrong = f"the {entry.kind} {entry.name} is in two packages, {both}: uninstall one"
            by_name[key] = Entry(entry.kind, entry.name, entry.options, both, wrong)
        else:
            by_name[key] = entry
    return by_name


_ORDER = {kind: number for number, kind in enumerate(dict.fromkeys(GROUPS.values()))}


def _entries(points: Iterable[EntryPoint]) -> Iterator[Entry]:
    for point in points:
        distribution = point.dist.name if point.dist is not None else "?"
        yield Entry(GROUPS[point.group], point.name, point.value, distribution)


@cache
def _options_class(entry: Entry) -> type[Any]:
    try:
        cls = _imported(entry.options)
    except Exception as error:  # a plug-in may raise anything
        reason = f"{type(error).__name__}: {error}"
    else:
        if issubclass(cls, _BASES[entry.kind]) and hasattr(cls, "implementation"):
            return cls
        reason = (
            f"{entry.options} is no {_BASES[entry.kind].__name__} that names its implementation"
        )
    raise UserError(entry.unloadable(reason))


def _imported(reference: str) -> type[Any]:
    module, _, name = reference.partition(":")
    cls = getattr(import_module(module), name, None)
    if not isinstance(cls, type):
        raise ImportError(f"{module} has no class {name!r}")
    return cls
