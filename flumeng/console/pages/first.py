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
from flumeng.console.pictures import Picture, Since, oldest, total
from flumeng.control.queries.causes import grouped

FLOWS_SHOWN = 50
NAMES_SHOWN = 10
CAUSES_SHOWN = 5
CAUSES_LISTED = 50
FLOWS_NAMED = 3
MINUTE = 60.0


@dataclass(frozen=True)
class Verdict:
    """The first true cause, with since when and what to do. ``waiting``: what waits. ``more``:
    further causes with advice. ``level``: ``ok``, ``bad``, or ``unknown`` without a picture."""

    level: str
    sentence: str
    advice: str = ""
    since: Since | None = None
    waiting: str = ""
    more: Sequence[tuple[str, str]] = ()


def verdict(picture: Picture) -> Verdict:
    status = picture.status
    if picture.problem:
        return Verdict("unknown", picture.problem, "this page shows what was seen before")
    causes = grouped(status["causes"])
    if not causes:
        behind = sum(flow["lag"] for flow in status["flows"])
        way = f"{behind:,} events are on their way" if behind else "all events are delivered"
        return Verdict("ok", f"Nothing is wrong: {way}.")
    sentence, advice = causes[0]
    since = picture.since.get(status["causes"][0]["about"])
    return Verdict("bad", sentence, advice, since, waiting(status["flows"]), causes[1:])


def waiting(flows: Sequence[Mapping[str, Any]]) -> str:
    """Return the events of flows that are unwell or late; empty when there are none."""
    late = [flow for flow in flows if flow["lag"] and is_late(flow)]
    if not late:
        return ""
    late.sort(key=lambda flow: -flow["lag"])
    named = ", ".join(f"{flow['lag']:,} of {flow['flow']}" for flow in late[:FLOWS_NAMED])
    rest = len(late) - FLOWS_NAMED
    return f"Events that wait: {named}" + (
        f", and those of {rest} more flows." if rest > 0 else "."
    )


def is_late(flow: Mapping[str, Any]) -> bool:
    """Return whether a flow is unwell, or its oldest event is older than its limit."""
    age = flow["lag_seconds"]
    return bool(flow["health"]["cause"]) or (age is not None and age > flow["lag_limit_seconds"])


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
    picture = request.app.state.console.pictures.look()
    flows = worst_first(picture.status["flows"])
    return rendering.page(
        request,
        "first.html",
        verdict=verdict(picture),
        numbers=numbers(picture),
        zones=zones(picture),
        flows=flows[:FLOWS_SHOWN],
        found=len(flows),
        causes_shown=CAUSES_SHOWN,
        causes_listed=CAUSES_LISTED,
        names_shown=NAMES_SHOWN,
    )


ROUTES = [Route("/", page)]
