"""All journals, and one journal. Nodes are asked in the background, never for a page."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.console import Console
from flumeng.console.pages import rendering
from flumeng.console.pages.listing import Keys, damaged_in, least_first, listing, most_first
from flumeng.console.pages.silence import silent
from flumeng.control.queries import journals
from flumeng.control.queries.journals import JournalRow
from zkschema import paths

SOON_SECONDS = 3600.0
"""A journal that is full sooner is marked."""


def words(row: JournalRow) -> list[str]:
    return [row.journal, row.flow, row.node, *row.replicas, "closed" if row.closed else "open"]


def is_unwell(row: JournalRow) -> bool:
    soon = row.full_seconds is not None and row.full_seconds < SOON_SECONDS
    return bool(row.problem) or soon or row.waits_at is not None or lacks_replicas(row)


def lacks_replicas(row: JournalRow) -> bool:
    return len(row.in_sync) < len(row.replicas) and not row.closed


KEYS: Keys[JournalRow] = {
    "full": lambda row: (least_first(row.full_seconds), not is_unwell(row), row.journal),
    "unacked": lambda row: (most_first(row.unacked), row.journal),
    "age": lambda row: (most_first(row.oldest_unacked_seconds), row.journal),
    "size": lambda row: (most_first(row.bytes), row.journal),
    "name": lambda row: row.journal,
    "problems": lambda row: (not is_unwell(row), row.journal),
}


def journal_rows(console: Console) -> Sequence[JournalRow]:
    """Return the rows of all journals, which viewers share."""

    def make() -> Sequence[JournalRow]:
        with console.copy.query() as cache:
            return journals.journals(cache, console.pictures.look().accounts_at, console.clock())

    return console.shared.answer("journals", make)


def page(request: Request) -> Response:
    console: Console = request.app.state.console
    rows, picture = journal_rows(console), console.pictures.look()
    return rendering.page(
        request,
        "journals.html",
        list=listing(request, rows, words=words, keys=KEYS),
        damaged=damaged_in(picture, paths.journal),
        silent=silent(picture),
        is_unwell=is_unwell,
    )


def one(request: Request) -> Response:
    console: Console = request.app.state.console
    rows = journal_rows(console)
    row = journals.pick(rows, request.path_params["journal"])
    away = row.node in silent(console.pictures.look())
    return rendering.page(
        request, "journal.html", row=row, silent=[row.node] if away else [], unwell=is_unwell(row)
    )


ROUTES = [Route("/journals", page), Route("/journals/{journal}", one)]
