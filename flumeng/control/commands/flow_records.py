"""Reads the record of a flow, or says why a command cannot go on."""

from __future__ import annotations

from collections.abc import Mapping

from flumeng.control.zookeeper import Found, ReadableStore, Versioned, tree
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths, records


def require_flow(store: ReadableStore, flow: str) -> Versioned[records.Flow]:
    """The flow's record. Raises ``UserError`` with the nearest name when there is none."""
    tree.require(store)
    known = store.children(paths.flows())
    found = store.read(paths.flow(flow)) if flow in known else None
    if found is None:
        hint = nearest(flow, known) if known else "there are no flows yet"
        raise UserError(f'there is no flow "{flow}"; {hint}')
    return found


def require_revision(store: ReadableStore, flow: str, number: int) -> records.Revision:
    """A kept revision. Raises ``UserError`` that names those kept."""
    found = store.read(paths.revision(flow, str(number)))
    if found is None:
        kept = kept_revisions(store, flow)
        those = f"those from {kept[0]} to {kept[-1]} are" if kept else "none is"
        hint = "" if kept else ": see `flumeng schema verify`"
        raise UserError(f"flow {flow} has no revision {number}: {those} kept{hint}")
    return found.value


def current_revisions(
    store: ReadableStore, flows: Mapping[str, Found[records.Flow]]
) -> dict[str, Found[records.Revision]]:
    """The current revision of each of these flows whose record can be read."""
    wanted = {
        flow: paths.revision(flow, str(found.value.revision))
        for flow, found in flows.items()
        if isinstance(found, Versioned)
    }
    return dict(zip(wanted, store.read_each([*wanted.values()]), strict=True))


def kept_revisions(store: ReadableStore, flow: str) -> list[int]:
    return sorted(int(name) for name in store.children(paths.revisions(flow)))


def expect_current(
    flow: str, current: Versioned[records.Flow] | None, expected: int | None
) -> None:
    """Raises ``ConflictError`` when the flow is not at this revision; 0 stands for absent."""
    actual = current.value.revision if current else 0
    if expected is not None and expected != actual:
        state = f"is at revision {actual}" if current else "does not exist"
        raise ConflictError(f"flow {flow} {state}, not at revision {expected}: look at it again")


def refuse_deleted(flow: str, record: records.Flow, advice: str) -> None:
    """Raises ``ConflictError`` for a flow that is being deleted."""
    if record.state == "deleted":
        raise ConflictError(f"flow {flow} is being deleted: {advice}")
