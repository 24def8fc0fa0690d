"""The sites of an inventory, as they last answered in the background."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.console import Console
from flumeng.console.pages import rendering
from flumeng.console.pages.listing import Keys, listing

OK = "ok"
Row = Mapping[str, Any]


def is_unwell(row: Row) -> bool:
    health = row["asked"] is not None and row["health"] != OK
    return bool(row["error"] or row["unproven"] or health)


KEYS: Keys[Row] = {
    "problems": lambda row: (not is_unwell(row), row["site"]),
    "name": lambda row: row["site"],
    "lag": lambda row: (-row["lag"], row["site"]),
    "wave": lambda row: (row["wave"], row["site"]),
}


def words(row: Row) -> list[str]:
    return [row["site"], row["wave"], row["health"], row["error"], *row["versions"]]


def page(request: Request) -> Response:
    console: Console = request.app.state.console
    rows = console.sites.rows() if console.sites else ()
    links = [(row["site"], link) for row in rows for link in row["reads"]]
    leases = [(row["site"], lease) for row in rows for lease in row["leases"]]
    return rendering.page(
        request,
        "sites.html",
        sites=console.sites,
        list=listing(request, rows, words=words, keys=KEYS),
        is_unwell=is_unwell,
        links=sorted(links, key=lambda it: (it[1]["state"] == "up", it[0], it[1]["flow"])),
        leases=sorted(leases, key=lambda it: -max(it[1]["time"] or 0.0, it[1]["room"] or 0.0)),
        shown=100,
    )


ROUTES = [Route("/sites", page)]
