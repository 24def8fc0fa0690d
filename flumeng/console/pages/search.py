"""Search for flows, nodes, tasks, journals, cursors and sites by a part of their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote as quote_text

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from flumeng.console.console import Console
from flumeng.console.pages import cursors, journals, rendering
from flumeng.console.pages.listing import parameters

SHOWN = 20
"""Hits of a kind that a page shows."""

quote = partial(quote_text, errors=rendering.NO_TEXT)


@dataclass(frozen=True)
class Hits:
    """The ``first`` hits of a kind, as name and URL, of ``found``."""

    kind: str
    first: Sequence[tuple[str, str]]
    found: int


def _names(console: Console) -> Iterator[tuple[str, Iterable[tuple[str, str]]]]:
    """Yield the names of each kind with their URLs."""
    picture = console.pictures.look()
    yield "flows", ((flow.flow, f"/flows/{quote(flow.flow)}") for flow in picture.flows)
    yield "nodes", ((node.node, f"/nodes/{quote(node.node)}") for node in picture.nodes)
    tasks = (task for flow in picture.flows for task in flow.tasks)
    yield "tasks", ((task.key, f"/flows/{quote(task.flow)}") for task in tasks)
    held = journals.journal_rows(console)
    yield "journals", ((row.journal, f"/journals/{quote(row.journal)}") for row in held)
    readers, _ = cursors.rows(console)
    yield (
        "cursors",
        (
            (f"{row.flow} {row.name}", f"/cursors/{quote(row.flow)}/{quote(row.name)}")
            for row in readers
        ),
    )
    sites = console.sites.rows() if console.sites else ()
    yield "sites", ((row["site"], f"/sites#{quote(row['site'])}") for row in sites)


def search(console: Console, asked: str) -> list[Hits]:
    """Return the hits of each kind: names that contain each word of ``asked``, in any case."""
    words = asked.casefold().split()
    found = []
    for kind, names in _names(console):
        hits = [hit for hit in names if all(word in hit[0].casefold() for word in words)]
        hits.sort(key=lambda hit: (hit[0].casefold() != asked.casefold(), len(hit[0]), hit[0]))
        if hits:
            found.append(Hits(kind, hits[:SHOWN], len(hits)))
    return found


def page(request: Request) -> Response:
    console: Console = request.app.state.console
    asked = parameters(request, "q").get("q", "")
    hits = search(console, asked) if asked else []
    if len(hits) == 1 and hits[0].found == 1:
        return RedirectResponse(hits[0].first[0][1], 303)
    return rendering.page(request, "search.html", asked=asked, hits=hits)


ROUTES = [Route("/search", page)]
