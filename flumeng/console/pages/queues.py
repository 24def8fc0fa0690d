"""The work queues of flows, and the lanes and items of one."""

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
from flumeng.control.commands.lookup import require_flow
from flumeng.control.queries import queues
from flumeng.control.queries.causes import Cause
from flumeng.control.queries.flow_health import UNREADABLE
from flumeng.control.queries.queues import ItemRow, LaneRow, QueueRow
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import Unreadable
from zkschema import paths

MOST_ITEMS = 1000
"""Items that are read for a page; a longer queue is shown by ``flumeng queue show``."""
KINDS = (paths.queue, paths.queue_segment, paths.queue_failure, paths.ack)

KEYS: Keys[QueueRow] = {
    "failed": lambda row: (not row.problem, -row.failed, -row.waiting, row.flow),
    "waiting": lambda row: (-row.waiting, row.flow),
    "age": lambda row: (row.oldest is None, row.oldest, row.flow),
    "end": lambda row: (most_first(row.end_seconds), row.flow),
    "name": lambda row: row.flow,
}


@dataclass(frozen=True)
class Lanes:
    """One queue. ``problem``: why its head cannot be read, or that it does not exist."""

    state: str
    total: QueueRow | None
    lanes: Sequence[LaneRow]
    items: Sequence[ItemRow]
    damaged: Sequence[Cause]
    problem: str


def _queues(console: Console) -> tuple[list[QueueRow], list[Cause]]:
    def make() -> tuple[list[QueueRow], list[Cause]]:
        with console.copy.query() as cache:
            _, accounts = ask_nodes(cache, console.pictures.look().accounts_at)
            return queues.overview(cache, accounts), damaged(cache, *KINDS)

    return console.shared.answer("queues", make)


def _queue(console: Console, flow: str) -> Lanes:
    with console.copy.query() as cache:
        state = _state(cache, flow)
        (head,) = cache.read_each([paths.queue(flow)])
        if head is None or isinstance(head, Unreadable):
            why = str(head) if head else "no source of it that finds items has run yet"
            return Lanes(state, None, (), (), damaged(cache, *KINDS), why)
        _, accounts = ask_nodes(cache, console.pictures.look().accounts_at)
        lanes = queues.lanes_of(cache, [flow], accounts)
        return Lanes(
            state=state,
            total=queues.totals(lanes, state) if lanes else None,
            lanes=lanes,
            items=queues.listed_items(cache, flow, MOST_ITEMS),
            damaged=damaged(cache, *KINDS),
            problem="",
        )


def _state(cache: ReadCache, flow: str) -> str:
    (found,) = cache.read_each([paths.flow(flow)])
    if isinstance(found, Unreadable):
        return UNREADABLE
    return (found or require_flow(cache, flow)).value.state


def page(request: Request) -> Response:
    console: Console = request.app.state.console
    rows, broken = _queues(console)
    return rendering.page(
        request,
        "queues.html",
        list=listing(request, rows, words=lambda row: (row.flow, row.state), keys=KEYS),
        damaged=broken,
        silent=silent(console.pictures.look()),
    )


def one(request: Request) -> Response:
    console: Console = request.app.state.console
    flow = request.path_params["flow"]
    queue = console.shared.answer(("queue", flow), lambda: _queue(console, flow))
    return rendering.page(
        request,
        "queue.html",
        flow=flow,
        queue=queue,
        list=listing(
            request,
            queue.items,
            words=lambda item: (item.item, item.state, item.location, item.why),
        ),
        most=MOST_ITEMS,
        shown=PAGE_ROWS,
        silent=silent(console.pictures.look()),
    )


ROUTES = [Route("/queues", page), Route("/queues/{flow}", one)]
