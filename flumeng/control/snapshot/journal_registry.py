"""The registered journals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from flumeng.control.zookeeper import Found, Path, Unreadable, Versioned
from zkschema import paths
from zkschema.records import Journal, Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)


class Source(Protocol):
    """A store, or a copy of a store."""

    def children(self, path: Path) -> list[str]: ...

    def read_each(self, requested: Sequence[ZPath[R]]) -> list[Found[R]]: ...


def journals(store: Source) -> dict[str, Journal]:
    """Return all journals by name but gone ones; unreadable ones are derived from their names."""
    listed = [paths.journal(name) for name in store.children(paths.journals())]
    by_name = {
        path.name: record_or_derived(path, record)
        for path, record in zip(listed, store.read_each(listed), strict=True)
        if record is not None
    }
    return {name: journal for name, journal in by_name.items() if not journal.gone}


def record_or_derived(path: Path, record: Versioned[Journal] | Unreadable) -> Journal:
    """Return the record, or for an unreadable one an open journal derived from its name."""
    return derived_from_name(path.name) if isinstance(record, Unreadable) else record.value


def derived_from_name(name: str) -> Journal:
    """Return an open journal of the flow and node in the name."""
    flow, _, rest = name.partition(".")
    node = rest.rsplit(".", 2)[0]
    return Journal(flow=flow, node=node, primary=node, term=0, in_sync=())
