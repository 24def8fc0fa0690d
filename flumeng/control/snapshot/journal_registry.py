"""The journals that are registered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from flumeng.control.zookeeper import Found, Path, Unreadable, Versioned
from zkschema import paths
from zkschema.records import Journal, Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)


class Source(Protocol):
    """What a store, or a look at one, can list and read."""

    def children(self, path: Path) -> list[str]: ...

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]: ...


def journals(store: Source) -> dict[str, Journal]:
    """All of them by name, in order, but for those that are gone. One that cannot be read is what
    its name says of it."""
    listed = [paths.journal(name) for name in store.children(paths.journals())]
    found = store.read_each(listed)
    known = {
        path.name: as_known(path, journal)
        for path, journal in zip(listed, found, strict=True)
        if journal is not None
    }
    return {name: journal for name, journal in known.items() if not journal.gone}


def as_known(path: Path, found: Versioned[Journal] | Unreadable) -> Journal:
    """The registration; when it cannot be read, what its name says: so it is neither drained nor
    forgotten."""
    return as_named(path.name) if isinstance(found, Unreadable) else found.value


def as_named(name: str) -> Journal:
    """That of an open journal of the flow and the node in the name (see
    ``flumeng.events.journal_names``)."""
    flow, _, rest = name.partition(".")
    node = rest.rsplit(".", 2)[0]
    return Journal(flow=flow, node=node, primary=node, term=0, in_sync=())
