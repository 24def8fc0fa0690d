"""Cursors of readers that are not the flow itself, with their leases and what they have lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.asking import ask_nodes
from flumeng.console.console import Console
from flumeng.console.pages import rendering
from flumeng.console.pages.listing import PAGE_ROWS, Keys, damaged, listing, most_first
from flumeng.console.pages.silence import silent
from flumeng.control.commands import lease_breaks
from flumeng.control.queries import cursors
from flumeng.control.queries.causes import Cause
from flumeng.control.queries.cursors import CursorDetail, CursorRow, HeldJournal
from zkschema import paths
from zkschema.records import Break

SHARE = 0.5
"""A lease is marked from this used share on."""


@dataclass(frozen=True)
class Row:
    """A cursor that is there, that has lost events, or both."""

    flow: str
    name: str
    cursor: CursorRow | None
    broke: Break | None

    @property
    def is_unwell(self) -> bool:
        used = max(self.share("time"), self.share("room"))
        problem = self.cursor is not None and self.cursor.problem
        return bool(problem or self.broke or used >= SHARE)

    def share(self, of: str) -> float:
        value: float | None = getattr(self.cursor, of, None)
        return value or 0.0

    @property
    def words(self) -> list[str]:
        return [self.flow, self.name, self.cursor.reader if self.cursor else ""]


KEYS: Keys[Row] = {
    "used": lambda row: (
        not row.is_unwell,
        -max(row.share("time"), row.share("room")),
        row.flow,
        row.name,
    ),
    "lag": lambda row: (most_first(row.cursor.lag if row.cursor else None), row.flow, row.name),
    "flow": lambda row: (row.flow, row.name),
    "name": lambda row: (row.name, row.flow),
}


def rows(console: Console) -> tuple[Sequence[Row], Sequence[Cause]]:
    """Return all cursors, which viewers share, and what cannot be read."""

    def make() -> tuple[Sequence[Row], Sequence[Cause]]:
        with console.copy.query() as cache:
            where, accounts = ask_nodes(cache, console.pictures.look().accounts_at)
            there = {
                (row.flow, row.cursor): row
                for row in cursors.cursors(cache, where, accounts, console.clock())
            }
            flows = cache.children(paths.flows())
            cache.read_each([paths.breaks(flow) for flow in flows])
            broke = {
                (flow, name): lost
                for flow in flows
                for name, lost in lease_breaks.of_flow(cache, flow).items()
            }
            keys = sorted(there.keys() | broke.keys())
            return (
                [Row(*key, there.get(key), broke.get(key)) for key in keys],
                damaged(cache, paths.lease, paths.breaks, paths.ack, paths.journal),
            )

    return console.shared.answer("cursors", make)


def _detail(console: Console, flow: str, name: str) -> CursorDetail:
    with console.copy.query() as cache:
        where, accounts = ask_nodes(cache, console.pictures.look().accounts_at)
        return cursors.detail(cache, where, accounts, console.clock(), (flow, name))


def _largest_first(held: HeldJournal) -> tuple[tuple[bool, float], str]:
    return most_first(held.events), held.journal


def page(request: Request) -> Response:
    console: Console = request.app.state.console
    every, broken = rows(console)
    return rendering.page(
        request,
        "cursors.html",
        list=listing(request, every, words=lambda row: row.words, keys=KEYS),
        damaged=broken,
        silent=silent(console.pictures.look()),
    )


def one(request: Request) -> Response:
    console: Console = request.app.state.console
    flow, name = request.path_params["flow"], request.path_params["cursor"]
    detail = console.shared.answer(("cursor", flow, name), lambda: _detail(console, flow, name))
    return rendering.page(
        request,
        "cursor.html",
        flow=flow,
        name=name,
        row=detail.cursor,
        held=sorted(detail.cursor.held, key=_largest_first) if detail.cursor else (),
        broke=detail.broke,
        shown=PAGE_ROWS,
        silent=silent(console.pictures.look()),
    )


ROUTES = [Route("/cursors", page), Route("/cursors/{flow}/{cursor}", one)]
