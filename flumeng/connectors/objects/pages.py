"""What a listing asks a store for: one page of one directory at a time, in the order of names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flumeng.connectors.objects.globs import Scope, joined
from flumeng.connectors.objects.listed import Listed

PAGE = 1000


@dataclass(frozen=True, eq=False)
class Request:
    """For what lies in a directory behind the path ``after``, from the store's ``token`` on."""

    scope: Scope
    after: str = ""
    token: Any = None

    @property
    def within(self) -> str:
        """How the paths of all that is below begin."""
        return joined(self.scope.directory, "")

    @property
    def first(self) -> str:
        """The name here at which to begin: that of ``after``, or of the directory that has it."""
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
    """``found`` are objects and directories to look into, in the order of their names; ``unnamed``
    are objects, and directories with all that is in them, that no location can name."""

    found: list[Listed | Request] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    def runs(self) -> Iterable[list[Listed] | Request]:
        run: list[Listed] = []
        for one in self.found:
            if isinstance(one, Listed):
                run.append(one)
                continue
            if run:
                yield run
                run = []
            yield one
        if run:
            yield run


class Tree(Protocol):
    """A store as a tree of directories. Any number of threads ask at once."""

    lasting: bool
    """Whether directories are there without anything in them, so that one that is missing is an
    error."""

    def page(self, request: Request) -> Page:
        """At most some thousand objects; a request at the end of it is for the rest.

        Raises FileNotFoundError or NotADirectoryError where there is no such directory, UserError
        for what a person has to mend, UnavailableError when it is worth trying again.
        """
