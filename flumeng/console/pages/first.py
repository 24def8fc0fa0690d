"""The first page: one sentence of verdict, four numbers, flows, nodes, and the last changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.pages import rendering
from flumeng.console.pictures import Picture, oldest, total
from flumeng.console.verdict import verdict

FLOWS_SHOWN = 50
NAMES_SHOWN = 10
CAUSES_SHOWN = 5
CAUSES_LISTED = 50
MINUTE = 60.0


@dataclass(frozen=True)
class Zone:
    """The nodes of a zone: how many are live, and the names of those that are not."""

    name: str
    live: int
    down: Sequence[str]


def zones(picture: Picture) -> list[Zone]:
    live: Counter[str] = Counter()
    down: dict[str, list[str]] = {}
    for node in picture.nodes:
        live[node.zone] += node.live
        down.setdefault(node.zone, [])
        if not node.live:
            down[node.zone].append(node.node)
    return [Zone(name, live[name], down[name]) for name in sorted(down)]


def numbers(picture: Picture) -> Mapping[str, float | None]:
    """Return events per second in and out, the oldest event's age, and dead letters a minute."""
    rates = picture.rates.values()
    dead = total(rate.dead_letters for rate in rates)
    return {
        "in": total(rate.incoming for rate in rates),
        "out": total(rate.delivered for rate in rates),
        "oldest": oldest(picture.status["flows"]),
        "dead": None if dead is None else dead * MINUTE,
    }


def worst_first(flows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort flows: unwell ones first, then those that are furthest behind."""
    return sorted(
        flows,
        key=lambda flow: (
            not flow["health"]["cause"],
            -(flow["lag_seconds"] or 0.0),
            -flow["lag"],
            flow["flow"],
        ),
    )


def page(request: Request) -> Response:
    return rendering.shared_page(request, "first.html", _values)


def _values(picture: Picture) -> dict[str, Any]:
    flows = worst_first(picture.status["flows"])
    return {
        "verdict": verdict(picture),
        "numbers": numbers(picture),
        "zones": zones(picture),
        "flows": flows[:FLOWS_SHOWN],
        "found": len(flows),
        "causes_shown": CAUSES_SHOWN,
        "causes_listed": CAUSES_LISTED,
        "names_shown": NAMES_SHOWN,
    }


ROUTES = [Route("/", page)]
