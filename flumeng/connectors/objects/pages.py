"""Pages of a store's listing: one directory at a time, names in byte order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from flumeng.connectors.objects.globs import Scope, joined
from flumeng.platform.options.patterns import split_query

PAGE = 1000


class Listed(NamedTuple):
    """A listed object. ``location`` opens it; ``modified_us``: microseconds since the epoch by the
    store's clock; ``tag``: the ETag, or empty."""

    location: str
    size: int
    modified_us: int
    tag: str = ""

    @property
    def name(self) -> str:
        """The location without store parameters, which may change. Listings follow this order."""
        return split_query(self.location)[0]


@dataclass(frozen=True, eq=False)
class Request:
    """Request for names in a directory after the path ``after``, from the store's ``token`` on."""

    scope: Scope
    after: str = ""
    token: Any = None

    @property
    def within(self) -> str:
        return joined(self.scope.directory, "")

    @property
    def first(self) -> str:
        """The first name to request: that of ``after``, or of the directory that contains it; empty
        when ``after`` is outside of the directory."""
        if not self.after.startswith(self.within):
            return ""
        return self.after[len(self.within) :].partition("/")[0]

    def wants(self, path: str) -> bool:
        return path > self.after

    def wants_below(self, within: str) -> bool:
        return within > self.after or self.after.startswith(within)

    def into(self, scope: Scope) -> Request:
        return Request(scope, self.after)

    def going_on(self, token: Any) -> Request:
        return replace(self, token=token)


@dataclass
class Page:
    """One page. ``unnamed``: objects and whole directories without a valid location."""

    entries: list[Listed | Request] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    def runs(self) -> Iterable[list[Listed] | Request]:
        run: list[Listed] = []
        for entry in self.entries:
            if isinstance(entry, Listed):
                run.append(entry)
                continue
            if run:
                yield run
                run = []
            yield entry
        if run:
            yield run


class Tree(Protocol):
    """A store as a tree of directories; thread-safe."""

    lasting: bool
    """Whether empty directories exist, so that a missing one is an error."""

    def page(self, request: Request) -> Page:
        """Return matching objects, and requests for matching directories and for more names. Stores
        that list in pages return about a thousand at most. Raises FileNotFoundError,
        NotADirectoryError, UserError, UnavailableError."""
