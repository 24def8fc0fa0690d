"""The live nodes and masters, and the schema version that each can use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flumeng.control.zookeeper import ReadableStore
from flumeng.platform.errors import CorruptError, UserError
from zkschema import paths
from zkschema.table import ZPath


@dataclass(frozen=True)
class LiveProcess:
    """A node or master with a session. ``schema``: the newest schema version that it can use;
    ``identity``: ``ROLE`` or ``ROLE:NAME`` of its certificate."""

    kind: str
    name: str
    version: str
    schema: int
    identity: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name} (flumeng {self.version})"


def live_processes(store: ReadableStore) -> list[LiveProcess]:
    """Return all live processes; an unreadable one counts as of schema version 0."""
    masters = [paths.live_master(name) for name in store.children(paths.live_masters())]
    nodes = [paths.live_node(name) for name in store.children(paths.live_nodes())]
    processes = [
        *(_process(store, "master", path) for path in masters),
        *(_process(store, "node", path) for path in nodes),
    ]
    return [process for process in processes if process is not None]


def _process(store: ReadableStore, kind: str, path: ZPath[Any]) -> LiveProcess | None:
    try:
        live = store.read(path)
    except (CorruptError, UserError):
        return LiveProcess(kind, path.name, "unknown", 0)
    if live is None:
        return None
    record = live.value
    return LiveProcess(kind, path.name, record.version, record.schema, record.identity)
