"""Shows events of a running flow as they arrive, at a step of the viewer's choice.

Each tap has a thread of its own, apart from those of other pages; ``Trials`` bounds their number.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from flumeng.config import SpecError, parse_written
from flumeng.console.console import Console, lent
from flumeng.console.drawing.graph import shortened
from flumeng.console.pages.flow import tap_step
from flumeng.console.pages.flow_seen import FlowSeen, given, page, see, whole
from flumeng.console.pages.forms import form_of
from flumeng.control.queries.flow_graph import graph_of
from flumeng.platform.errors import FlumengError

MOST_SECONDS, MOST_EVENTS = 60, 200
STILL_SECONDS, STILL_EVENTS = 5, 50
"""Of a tap without scripts, which shows its events at its end."""
BODY_CHARACTERS, EVENT_CHARACTERS = 2000, 8000
OTHER_SITES = ("cross-site", "same-site")

Event = Mapping[str, Any]


def steps_of(seen: FlowSeen) -> list[tuple[str, str]]:
    """Return the steps of a tap, each with its description."""
    if seen.detail is None:
        return []
    try:
        graph = graph_of(parse_written(seen.detail.text))
    except SpecError:
        return []
    steps = {"sources": "as received"}
    for node in graph.nodes:
        step = tap_step(node)
        if step and step not in steps:
            steps[step] = "before the sinks" if step.endswith("sinks") else f"after {node.label}"
    return [(step, f"{step} ({shortened(text, 60)})") for step, text in steps.items()]


def _asked(values: Mapping[str, str]) -> tuple[str | None, str | None]:
    return given(values, "at", 500) or None, given(values, "where") or None


async def show(request: Request) -> Response:
    """The form; with POST, which needs no scripts, also the events of some seconds."""
    seen = await run_in_threadpool(see, request)
    values: Mapping[str, str] = request.query_params
    events: list[Event] = []
    problem = ""
    ran = request.method == "POST"
    if ran:
        values = await form_of(request)
        at, where = _asked(values)
        try:
            tap = _tap(request, seen.name, at, where, seconds=STILL_SECONDS, most=STILL_EVENTS)
            async for event in _each(tap):
                events += [shown(event)] if event is not None else []
        except FlumengError as error:
            problem = str(error)
    at, where = _asked(values)
    return await run_in_threadpool(
        page,
        request,
        "flow_tap.html",
        seen,
        "tap",
        steps=steps_of(seen),
        at=at or "sources",
        where=where or "",
        events=events,
        problem=problem,
        ran=ran,
        seconds=STILL_SECONDS,
        most_seconds=MOST_SECONDS,
        most_events=MOST_EVENTS,
    )


async def stream(request: Request) -> Response:
    """Server-sent events: each event of the flow as JSON text, then ``end`` with a sentence."""
    if request.headers.get("sec-fetch-site") in OTHER_SITES:
        raise HTTPException(HTTPStatus.FORBIDDEN, "a page of another site may not tap")
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=headers)
    seen = await run_in_threadpool(see, request)
    at, where = _asked(request.query_params)
    seconds = min(whole(request, "seconds", MOST_SECONDS, least=1), MOST_SECONDS)
    tap = _tap(request, seen.name, at, where, seconds=seconds, most=MOST_EVENTS)
    return StreamingResponse(_sent(tap), media_type="text/event-stream", headers=headers)


async def _sent(tap: Iterator[Event | None]) -> AsyncIterator[bytes]:
    count = 0
    try:
        async for event in _each(tap):
            if event is None:
                yield b": waiting\n\n"
                continue
            count += 1
            yield f"data: {json.dumps(shown(event))}\n\n".encode()
        why = f"{count} events; the tap has ended"
    except FlumengError as error:
        why = str(error)
    yield f"event: end\ndata: {json.dumps(why)}\n\n".encode()


def _tap(
    request: Request, flow: str, at: str | None, where: str | None, *, seconds: int, most: int
) -> Iterator[Event | None]:
    console: Console = request.app.state.console
    trials = lent(console.trials, "flow tap")
    operator = console.operator(request.state.viewer, "")
    return trials.tap(operator, flow, at=at, where=where, seconds=float(seconds), most=most)


async def _each(tap: Iterator[Event | None]) -> AsyncIterator[Event | None]:
    limiter = CapacityLimiter(1)
    run = partial(to_thread.run_sync, limiter=limiter)
    try:
        while True:
            event = await run(next, tap, _END)
            if event is _END:
                return
            yield event
    finally:
        close = getattr(tap, "close", None)
        if close is not None:
            with suppress(ValueError):
                close()


_END: Any = object()


def shown(event: Event) -> Event:
    """Return an event for a page: its body first, and the whole, both bounded."""
    if "@lost" in event:
        return {"lost": str(event["@lost"])[:BODY_CHARACTERS]}
    body = event.get("body")
    return {
        "lost": "",
        "end": str(event.get("@end", "")),
        "time": str(event.get("ts", ""))[:40],
        "host": str(event.get("host", ""))[:200],
        "body": "" if body is None else str(body)[:BODY_CHARACTERS],
        "whole": json.dumps(event, ensure_ascii=False, indent=1)[:EVENT_CHARACTERS],
        "line": json.dumps(event, ensure_ascii=False)[:EVENT_CHARACTERS],
    }


ROUTES = [
    Route("/flows/{flow}/tap", show, methods=["GET", "POST"]),
    Route("/flows/{flow}/tap/events", stream),
]
