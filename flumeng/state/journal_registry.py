"""The journals that are registered, and when one of them is done."""

from __future__ import annotations

from flumeng.store import Store, Versioned
from zkschema import paths
from zkschema.records import Ack, Journal


def journals(store: Store) -> dict[str, Journal]:
    """All of them by name, in order."""
    names = store.children(paths.journals())
    found = store.read_many([paths.journal(name) for name in names])
    return {name: journal.value for name, journal in zip(names, found, strict=True) if journal}


def is_drained(journal: Journal, ack: Versioned[Ack] | None) -> bool:
    """Whether it takes no more events, and all that it has are acked."""
    return journal.closed and (ack.value.offset if ack else 0) >= (journal.end or 0)
