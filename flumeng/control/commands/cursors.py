"""Cursors of readers that are not flows, such as Spark jobs: see ``/leases``."""

from __future__ import annotations

from flumeng.control.commands.flow_records import require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.tree_needs import why_too_old
from flumeng.control.zookeeper import ANY, Check, ReadableStore, Remove, Write
from flumeng.control.zookeeper.transaction import singly
from flumeng.platform.errors import ConflictError, UserError
from flumeng.platform.options.problems import nearest
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN


def require_leases(store: ReadableStore) -> None:
    """Raises ``UserError`` while the tree is too old for leases."""
    if why := why_too_old(store, paths.lease.since):
        raise UserError(f"a reader that is no flow has a cursor with a lease: {why}")


def delete_cursor(operator: Operator, flow: str, cursor: str) -> None:
    """Delete a cursor; its reader fails at its next step. Raises ``UserError`` for an unknown
    cursor and that of a flow."""
    store = operator.store
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
    folder = paths.cursor(flow, cursor)
    acks = [paths.ack(flow, cursor, name) for name in store.children(folder)]
    each = [Check(paths.lease(flow, cursor), lease.version)] if lease else []
    last: list[Write] = [Remove(folder, ANY)] if store.exists(folder) else []
    if lease:  # it goes last, so that what is interrupted can be repeated
        last.append(Remove(paths.lease(flow, cursor), lease.version))
    try:
        for part in singly(store.scale, (Remove(path, ANY) for path in acks), each=each):
            store.commit([*each, *part])
        operator.commit(last, command)
    except ConflictError as error:
        raise ConflictError(
            f"a reader goes on with the cursor {cursor} just now: end it first, then try again"
        ) from error
