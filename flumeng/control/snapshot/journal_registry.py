"""Registered journals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from flumeng.control.zookeeper import Found, Path, Unreadable, Versioned
from zkschema import paths
from zkschema.records import Journal, Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)


class Source(Protocol):
    """A store or a copy of one."""

    def children(self, path: Path) -> list[str]: ...

    def read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]: ...


def journals(store: Source) -> dict[str, Journal]:
    """All journals by name that are not gone; an unreadable one is derived from its name."""
    listed = [paths.journal(name) for name in store.children(paths.journals())]
    found = store.read_each(listed)
    known = {
        path.name: as_known(path, journal)
        for path, journal in zip(listed, found, strict=True)
        if journal is not None
    }
    return {name: journal for name, journal in known.items() if not journal.gone}


def as_known(path: Path, found: Versioned[Journal] | Unreadable) -> Journal:
    """The record, else one derived from its name, which is neither drained nor forgotten."""
    return as_named(path.name) if isinstance(found, Unreadable) else found.value


def as_named(name: str) -> Journal:
    """An open journal of the flow and node in the name."""
    flow, _, rest = name.partition(".")
    node = rest.rsplit(".", 2)[0]
    return Journal(flow=flow, node=node, primary=node, term=0, in_sync=())
