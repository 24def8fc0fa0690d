"""Record lookup by name, and the errors for missing or outdated records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from flumeng.control.zookeeper import Found, Path, ReadableStore, Versioned, tree
from flumeng.platform.errors import ConflictError, UnknownNameError
from flumeng.platform.options.problems import nearest
from zkschema import paths, records
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)


def found_by_name(
    store: ReadableStore, row: Callable[[str], ZPath[R]], names: Iterable[str]
) -> dict[str, Found[R]]:
    listed = list(names)
    return dict(zip(listed, store.read_each([row(name) for name in listed]), strict=True))


def readable_by_name(
    store: ReadableStore, row: Callable[[str], ZPath[R]], names: Iterable[str]
) -> dict[str, Versioned[R]]:
    """Return the records by name, without missing and unreadable ones."""
    by_name = found_by_name(store, row, names)
    return {name: record for name, record in by_name.items() if isinstance(record, Versioned)}


def require_flow(store: ReadableStore, flow: str) -> Versioned[records.Flow]:
    """Return the flow's record. Raises ``UserError`` with the nearest name for an unknown flow."""
    return _require(store, "flow", paths.flows(), paths.flow, flow, none="there are no flows yet")


def require_node(store: ReadableStore, node: str) -> Versioned[records.Node]:
    """Return the node's record. Raises ``UserError`` with the nearest name for an unknown node."""
    return _require(
        store, "node", paths.nodes(), paths.node, node, none="no node has registered yet"
    )


def _require(
    store: ReadableStore,
    kind: str,
    folder: Path,
    row: Callable[[str], ZPath[R]],
    name: str,
    *,
    none: str,
) -> Versioned[R]:
    tree.require(store)
    names = store.children(folder)
    record = store.read(row(name)) if name in names else None
    if record is None:
        hint = nearest(name, names) if names else none
        raise UnknownNameError(f'there is no {kind} "{name}"; {hint}')
    return record


def require_revision(store: ReadableStore, flow: str, number: int) -> records.Revision:
    """Return a revision. Raises ``UserError`` with the kept revisions for an unknown one."""
    revision = store.read(paths.revision(flow, str(number)))
    if revision is None:
        kept = kept_revisions(store, flow)
        those = f"those from {kept[0]} to {kept[-1]} are" if kept else "none is"
        hint = "" if kept else ": see `flumeng schema verify`"
        raise UnknownNameError(f"flow {flow} has no revision {number}: {those} kept{hint}")
    return revision.value


def current_revisions(
    store: ReadableStore, flows: Mapping[str, Found[records.Flow]]
) -> dict[str, Found[records.Revision]]:
    """Return the current revision of each flow that has a readable record."""
    revision_paths = {
        flow: paths.revision(flow, str(record.value.revision))
        for flow, record in flows.items()
        if isinstance(record, Versioned)
    }
    return dict(zip(revision_paths, store.read_each([*revision_paths.values()]), strict=True))


def kept_revisions(store: ReadableStore, flow: str) -> list[int]:
    return sorted(int(name) for name in store.children(paths.revisions(flow)))


def expect_current(
    flow: str, current: Versioned[records.Flow] | None, expected: int | None
) -> None:
    """Raises ``ConflictError`` unless the flow is at this revision; 0: no such flow; None: any."""
    actual = current.value.revision if current else 0
    if expected is not None and expected != actual:
        state = f"is at revision {actual}" if current else "does not exist"
        raise ConflictError(f"flow {flow} {state}, not at revision {expected}: look at it again")


def refuse_deleted(flow: str, record: records.Flow, advice: str) -> None:
    if record.state == "deleted":
        raise ConflictError(f"flow {flow} is being deleted: {advice}")
