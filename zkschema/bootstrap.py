"""The znodes of an empty cluster, and the folders that a new flow needs."""

from __future__ import annotations

from zkschema import records, table
from zkschema.records import Record
from zkschema.table import ZPath

CURSOR_MAIN = "main"


def initial(
    cluster: str = "", version: int = table.VERSION
) -> tuple[tuple[ZPath[Record], Record | None], ...]:
    """Return path and record (None for a folder) of every znode of an empty cluster with the id
    ``cluster``, in a tree of ``version``."""
    fixed = tuple(
        row()
        for row in table.ROWS
        if row.record is None and "{" not in row.pattern and row.since <= version
    )
    return (
        *((path, None) for path in fixed),
        (table.moves(), records.Moves()),
        (table.cluster(), records.Cluster()),
        (table.schema(), records.Schema(version=version, cluster=cluster)),
    )


def flow_folders(flow: str, version: int = table.VERSION) -> tuple[ZPath[Record], ...]:
    """Return the folders that every flow has in a tree of this version, parents first."""
    folders = (
        table.revisions(flow),
        table.acks(flow),
        table.cursor(flow, CURSOR_MAIN),
        table.commits(flow),
        table.intents(flow),
    )
    return tuple(folder for folder in folders if folder.row.since <= version)


def flow_tops(flow: str) -> tuple[ZPath[Record], ...]:
    """Return the top znodes of a flow, its own last. Journals and leases are not below them."""
    tops = (table.acks(flow), table.commits(flow), table.intents(flow), table.queue(flow))
    return (*tops, table.breaks(flow), table.flow(flow))
