"""Reads of queues, journals, acks and cursors."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from flumeng.console.api.node_reads import OF_FLOW
from flumeng.console.api.read import MOST_ROWS, Given, Paging, Parameter, Read
from flumeng.console.console import Console
from flumeng.console.shared_answers import KEEP_SECONDS
from flumeng.control.commands.lookup import require_flow
from flumeng.control.queries import acks, cursors, fan_out, journals, lag, queues, unfinished
from flumeng.control.queries.acks import Positions
from flumeng.platform import file_store


def by_flow(key: str) -> tuple[str, ...]:
    """Return the order of lists that are sorted by flow, then by a name in it."""
    return tuple(key.split("/", 1))


def _queues(console: Console, _given: Given) -> list[queues.QueueRow]:
    with console.copy.query() as cache:
        accounts, _ = fan_out.ask_all(cache, console.asking.accounts)
        return queues.overview(cache, lag.newest(accounts))


def _lanes(console: Console, given: Given) -> list[queues.LaneRow]:
    with console.copy.query() as cache:
        require_flow(cache, given["flow"])
        accounts, _ = fan_out.ask_all(cache, console.asking.accounts)
        return queues.lanes_of(cache, [given["flow"]], lag.newest(accounts))


def _items(console: Console, given: Given) -> list[queues.ItemRow]:
    with console.copy.query() as cache:
        require_flow(cache, given["flow"])
        return queues.listed_items(cache, given["flow"], given["limit"])


def _journals(console: Console, _given: Given) -> list[journals.JournalRow]:
    with console.copy.query() as cache:
        return journals.journals(cache, console.asking.accounts, console.clock())


def _journal(console: Console, given: Given) -> journals.JournalRow:
    with console.copy.query() as cache:
        return journals.journal(cache, console.asking.accounts, console.clock(), given["journal"])


def _acks(console: Console, _given: Given) -> list[acks.AckRow]:
    with console.copy.query() as cache:
        return acks.acks_of(cache, acks.positions(cache, console.asking.acks))


def _commits(console: Console, given: Given) -> list[unfinished.CommitRow]:
    with console.copy.query() as cache:
        return unfinished.commits(cache, given.get("flow"), file_store.exists)


def _intents(console: Console, given: Given) -> list[unfinished.BatchRow]:
    with console.copy.query() as cache:
        return unfinished.batches(cache, given.get("flow"))


def _cursors(console: Console, given: Given) -> list[cursors.CursorRow]:
    with console.copy.query() as cache:
        if "flow" in given:
            require_flow(cache, given["flow"])
        accounts, silent = fan_out.ask_all(cache, console.asking.accounts)
        rows = cursors.cursors(
            cache, Positions(accounts, silent), lag.newest(accounts), console.clock()
        )
    return [row.listed() for row in rows if row.flow == given.get("flow", row.flow)]


def _cursor(console: Console, given: Given) -> cursors.CursorDetail:
    with console.copy.query() as cache:
        require_flow(cache, given["flow"])
        accounts, silent = fan_out.ask_all(cache, console.asking.accounts)
        where, key = Positions(accounts, silent), (given["flow"], given["cursor"])
        return cursors.detail(cache, where, lag.newest(accounts), console.clock(), key)


READS = (
    Read(
        "queue-list",
        "/queues",
        "flumeng queue list",
        "The work queues of all flows.",
        list[queues.QueueRow],
        _queues,
        paging=Paging(lambda row: row.flow),
        shared_seconds=KEEP_SECONDS,
    ),
    Read(
        "queue-lanes",
        "/queues/{flow}",
        "flumeng queue list {flow}",
        "The lanes of a flow's queue.",
        list[queues.LaneRow],
        _lanes,
        shared_seconds=KEEP_SECONDS,
    ),
    Read(
        "queue-show",
        "/queues/{flow}/items",
        "flumeng queue show {flow}",
        "The items of a flow's queue: failed, running, then waiting ones.",
        list[queues.ItemRow],
        _items,
        (
            Parameter(
                "limit", "At most this many.", Annotated[int, Meta(ge=1, le=MOST_ROWS)], default=100
            ),
        ),
        shared_seconds=KEEP_SECONDS,
    ),
    Read(
        "journal-list",
        "/journals",
        "flumeng journal list",
        "All journals.",
        list[journals.JournalRow],
        _journals,
        paging=Paging(lambda row: row.journal),
        shared_seconds=KEEP_SECONDS,
    ),
    Read(
        "journal-show",
        "/journals/{journal}",
        "flumeng journal show {journal}",
        "One journal.",
        journals.JournalRow,
        _journal,
        shared_seconds=KEEP_SECONDS,
    ),
    Read(
        "ack-list",
        "/acks",
        "flumeng ack list",
        "How far each flow has delivered, in each partition.",
        list[acks.AckRow],
        _acks,
        paging=Paging(lambda row: f"{row.flow}/{row.partition}", by_flow),
        shared_seconds=KEEP_SECONDS,
    ),
    Read(
        "ack-commits",
        "/commits",
        "flumeng ack commits",
        "Commits that are decided and not finished; their files as this host sees them.",
        list[unfinished.CommitRow],
        _commits,
        (OF_FLOW,),
        Paging(lambda row: f"{row.flow}/{row.name}", by_flow),
        shared_seconds=KEEP_SECONDS,
    ),
    Read(
        "ack-intents",
        "/intents",
        "flumeng ack intents",
        "Batches that are decided and not acked, for targets that identify batches by number.",
        list[unfinished.BatchRow],
        _intents,
        (OF_FLOW,),
        Paging(lambda row: f"{row.flow}/{row.task}", by_flow),
    ),
    Read(
        "cursor-list",
        "/cursors",
        "flumeng cursor list",
        "Cursors of readers that are not flows here, and of flows that read others.",
        list[cursors.CursorRow],
        _cursors,
        (OF_FLOW,),
        Paging(lambda row: f"{row.flow}/{row.cursor}", by_flow),
        shared_seconds=KEEP_SECONDS,
    ),
    Read(
        "cursor-show",
        "/cursors/{flow}/{cursor}",
        "flumeng cursor show {flow} {cursor}",
        "One cursor: its lease, the events that it keeps of each journal, and its lost ones.",
        cursors.CursorDetail,
        _cursor,
        shared_seconds=KEEP_SECONDS,
    ),
)
