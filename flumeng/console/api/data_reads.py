"""Reads of queues, journals, acks and cursors."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from flumeng.console.api.node_reads import OF_FLOW
from flumeng.console.api.read import MOST_ROWS, Given, Paging, Parameter, Reads, in_flow
from flumeng.console.asking import ask_nodes
from flumeng.console.console import Console
from flumeng.console.shared_answers import KEEP_SECONDS
from flumeng.control.commands.lookup import require_flow
from flumeng.control.queries import acks, cursors, journals, queues, unfinished
from flumeng.platform import file_store

READS = Reads()


@READS.get(
    "queue-list", "/queues", paging=Paging(lambda row: row.flow), shared_seconds=KEEP_SECONDS
)
def _queues(console: Console, _given: Given) -> list[queues.QueueRow]:
    """The work queues of all flows."""
    with console.copy.query() as cache:
        _, accounts = ask_nodes(cache, console.asking.accounts)
        return queues.overview(cache, accounts)


@READS.get(
    "queue-lanes", "/queues/{flow}", command="queue list {flow}", shared_seconds=KEEP_SECONDS
)
def _lanes(console: Console, given: Given) -> list[queues.LaneRow]:
    """The lanes of a flow's queue."""
    with console.copy.query() as cache:
        require_flow(cache, given["flow"])
        _, accounts = ask_nodes(cache, console.asking.accounts)
        return queues.lanes_of(cache, [given["flow"]], accounts)


@READS.get(
    "queue-show",
    "/queues/{flow}/items",
    Parameter("limit", "At most this many.", Annotated[int, Meta(ge=1, le=MOST_ROWS)], default=100),
    shared_seconds=KEEP_SECONDS,
)
def _items(console: Console, given: Given) -> list[queues.ItemRow]:
    """The items of a flow's queue: failed, running, then waiting ones."""
    with console.copy.query() as cache:
        require_flow(cache, given["flow"])
        return queues.listed_items(cache, given["flow"], given["limit"])


@READS.get(
    "journal-list", "/journals", paging=Paging(lambda row: row.journal), shared_seconds=KEEP_SECONDS
)
def _journals(console: Console, _given: Given) -> list[journals.JournalRow]:
    """All journals."""
    with console.copy.query() as cache:
        return journals.journals(cache, console.asking.accounts, console.clock())


@READS.get("journal-show", "/journals/{journal}", shared_seconds=KEEP_SECONDS)
def _journal(console: Console, given: Given) -> journals.JournalRow:
    """One journal."""
    with console.copy.query() as cache:
        return journals.journal(cache, console.asking.accounts, console.clock(), given["journal"])


@READS.get("ack-list", "/acks", paging=in_flow("partition"), shared_seconds=KEEP_SECONDS)
def _acks(console: Console, _given: Given) -> list[acks.AckRow]:
    """How far each flow has delivered, in each partition."""
    with console.copy.query() as cache:
        return acks.acks_of(cache, acks.positions(cache, console.asking.acks))


@READS.get("ack-commits", "/commits", OF_FLOW, paging=in_flow("name"), shared_seconds=KEEP_SECONDS)
def _commits(console: Console, given: Given) -> list[unfinished.CommitRow]:
    """Commits that are decided and not finished; their files as this host sees them."""
    with console.copy.query() as cache:
        return unfinished.commits(cache, given.get("flow"), file_store.exists)


@READS.get("ack-intents", "/intents", OF_FLOW, paging=in_flow("task"))
def _intents(console: Console, given: Given) -> list[unfinished.BatchRow]:
    """Batches that are decided and not acked, for targets that identify batches by number."""
    with console.copy.query() as cache:
        return unfinished.batches(cache, given.get("flow"))


@READS.get(
    "cursor-list", "/cursors", OF_FLOW, paging=in_flow("cursor"), shared_seconds=KEEP_SECONDS
)
def _cursors(console: Console, given: Given) -> list[cursors.CursorRow]:
    """Cursors of readers that are not flows here, and of flows that read others."""
    with console.copy.query() as cache:
        if "flow" in given:
            require_flow(cache, given["flow"])
        where, accounts = ask_nodes(cache, console.asking.accounts)
        rows = cursors.cursors(cache, where, accounts, console.clock())
    return [row.listed() for row in rows if row.flow == given.get("flow", row.flow)]


@READS.get("cursor-show", "/cursors/{flow}/{cursor}", shared_seconds=KEEP_SECONDS)
def _cursor(console: Console, given: Given) -> cursors.CursorDetail:
    """One cursor: its lease, the events that it keeps of each journal, and its lost ones."""
    with console.copy.query() as cache:
        require_flow(cache, given["flow"])
        where, accounts = ask_nodes(cache, console.asking.accounts)
        key = given["flow"], given["cursor"]
        return cursors.detail(cache, where, accounts, console.clock(), key)
