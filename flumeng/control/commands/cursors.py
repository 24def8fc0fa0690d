"""The end of cursors of readers that are no flows, such as Spark jobs: see ``/leases``."""

from __future__ import annotations

from flumeng.control.commands import audit
from flumeng.control.commands.flow_records import require_flow
from flumeng.control.commands.tree_needs import why_too_old
from flumeng.control.zookeeper import ANY, Check, ReadableStore, Remove, Store, Version, Write
from flumeng.control.zookeeper.transaction import singly
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths, records
from zkschema.bootstrap import CURSOR_MAIN


def require_leases(store: ReadableStore) -> None:
    """Raises ``UserError`` while the tree has no place for leases."""
    if why := why_too_old(store, paths.lease.since):
        raise UserError(f"a reader that is no flow has a cursor with a lease: {why}")


def remove_cursor(
    store: Store,
    flow: str,
    cursor: str,
    expect: Version | None,
    entry: records.Audit | None = None,
) -> None:
    """The cursor with its acks and its lease, as long as the lease is what it was at ``expect``;
    None when it has none, because its making was interrupted.

    The lease goes last, so that what is interrupted is gone on with. Raises ``ConflictError`` when
    its reader has renewed it meanwhile, ``UnavailableError``.
    """
    lease, folder = paths.lease(flow, cursor), paths.cursor(flow, cursor)
    acks = [paths.ack(flow, cursor, name) for name in store.children(folder)]
    each = [Check(lease, expect)] if expect else []
    for part in singly(store.scale, (Remove(path, ANY) for path in acks), each=each):
        store.commit([*each, *part])
    last: list[Write] = [Remove(lease, expect)] if expect else []
    if store.exists(folder):
        last.insert(0, Remove(folder, ANY))
    if entry is None:
        store.commit(last)
    else:
        audit.commit(store, last, entry)


def delete_cursor(
    store: Store, flow: str, cursor: str, *, author: str, reason: str, now: float
) -> None:
    """Keep nothing more for the cursor; its reader fails when it goes on.

    Raises ``UserError`` when there is no such cursor, or a flow has it, ``ConflictError``,
    ``UnavailableError``.
    """
    require_flow(store, flow)
    cursors = [name for name in store.children(paths.acks(flow)) if name != CURSOR_MAIN]
    if cursor == CURSOR_MAIN:
        raise UserError(f"{CURSOR_MAIN} is the flow's own cursor: it goes with the flow")
    if cursor not in cursors:
        hint = nearest(cursor, cursors) if cursors else "nobody else reads it"
        raise UserError(f'flow {flow} has no cursor "{cursor}"; {hint}')
    lease = store.read(paths.lease(flow, cursor))
    if lease is None and store.exists(paths.flow(cursor)):
        raise UserError(f"it is the flow {cursor} that reads it: `flumeng flow delete {cursor}`")
    command = f"cursor delete {flow} {cursor}"
    entry = records.Audit(who=author, command=command, reason=reason, time=now)
    try:
        remove_cursor(store, flow, cursor, lease.version if lease else None, entry)
    except ConflictError as error:
        raise ConflictError(
            f"a reader goes on with the cursor {cursor} just now: end it first, then try again"
        ) from error
