"""Server-sent events: each new picture of the cluster, to any number of listeners up to a bound.

One thread waits for pictures, however many listen. A listener has no buffer: one that is slow gets
the next event with all changes since its last one.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from flumeng.console.api.problems import problem
from flumeng.console.console import Console
from flumeng.console.pictures import Picture, Pictures
from flumeng.console.verdict import verdict

MOST_LISTENERS = 500
HEARTBEAT_SECONDS = 10.0
KEPT = 100
"""A listener that returns after more pictures gets an event without names."""


@dataclass(frozen=True)
class Change:
    """The flows and nodes that picture ``number`` shows otherwise than picture ``before``."""

    before: int
    number: int
    flows: frozenset[str]
    nodes: frozenset[str]


class Listeners:
    """Waits for pictures while anybody listens. Lives in one event loop."""

    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures
        self._changes: deque[Change] = deque(maxlen=KEPT)
        self._last = pictures.latest
        self._new = asyncio.Condition()
        self._waiting: asyncio.Task[None] | None = None
        self.count = 0

    async def listen(self, seen: int) -> AsyncGenerator[Picture | None]:
        """Yield pictures newer than number ``seen``, and None every HEARTBEAT_SECONDS without one.
        Ends when no more pictures will be taken."""
        self.count += 1
        try:
            if self._waiting is None:
                self._last = self._pictures.latest
                self._changes.clear()
                self._waiting = asyncio.create_task(self._wait())
            while not self._pictures.stopping:
                if self._last.number > seen:
                    seen = self._last.number
                    yield self._last
                    continue
                if not await self._newer_than(seen):
                    yield None
        finally:
            self.count -= 1

    async def _newer_than(self, seen: int) -> bool:
        """Wait for a newer picture or the end; False after HEARTBEAT_SECONDS."""
        try:
            async with self._new, asyncio.timeout(HEARTBEAT_SECONDS):
                await self._new.wait_for(
                    lambda: self._last.number > seen or self._pictures.stopping
                )
        except TimeoutError:
            return False
        return True

    def changed(self, since: int, until: int) -> tuple[set[str], set[str]] | None:
        """Return the flows and nodes that changed after picture ``since``; None if unknown."""
        known = [change for change in self._changes if since < change.number <= until]
        if not known or known[0].before > since:
            return None
        flows = {name for change in known for name in change.flows}
        return flows, {name for change in known for name in change.nodes}

    async def _wait(self) -> None:
        try:
            while self.count and not self._pictures.stopping:
                self._pictures.look()
                newer = await asyncio.to_thread(
                    self._pictures.newer_than, self._last.number, HEARTBEAT_SECONDS
                )
                if newer is not None:
                    self._changes.append(change_between(self._last, newer))
                    self._last = newer
                    async with self._new:
                        self._new.notify_all()
        finally:
            self._waiting = None
            async with self._new:
                self._new.notify_all()


def change_between(before: Picture, after: Picture) -> Change:
    return Change(
        before.number,
        after.number,
        _changed(
            {flow["flow"]: flow for flow in before.status["flows"]},
            {flow["flow"]: flow for flow in after.status["flows"]},
        ),
        _changed(
            {node.node: node for node in before.nodes}, {node.node: node for node in after.nodes}
        ),
    )


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )


def event(picture: Picture, changed: tuple[Iterable[str], Iterable[str]] | None) -> str:
    """Return the text of an event. ``flows`` and ``nodes`` are None when all may have changed."""
    flows, nodes = changed or (None, None)
    shown = verdict(picture)
    data = {
        "number": picture.number,
        "time": picture.at,
        "verdict": {
            "level": shown.level,
            "sentence": shown.sentence,
            "advice": shown.advice,
            "since": shown.since.at if shown.since else None,
        },
        "flows": None if flows is None else sorted(flows),
        "nodes": None if nodes is None else sorted(nodes),
        "zookeeper_away_since": picture.away_since,
    }
    return f"id: {picture.number}\nevent: picture\ndata: {json.dumps(data)}\n\n"


async def endpoint(request: Request) -> Response:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=headers)
    console: Console = request.app.state.console
    listeners = _listeners(request)
    if listeners.count >= MOST_LISTENERS:
        return problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"{MOST_LISTENERS} clients listen already: the most for one console",
        )
    last = request.headers.get("last-event-id", "")
    latest = console.pictures.look().number
    seen = int(last) if last.isdecimal() and len(last) < 16 else 0
    return StreamingResponse(
        _texts(listeners, seen if seen <= latest else 0),
        media_type="text/event-stream",
        headers=headers,
    )


async def _texts(listeners: Listeners, seen: int) -> AsyncIterator[str]:
    yield "retry: 2000\n\n"
    async with aclosing(listeners.listen(seen)) as pictures:
        async for picture in pictures:
            if picture is None:
                yield ": still here\n\n"
                continue
            changed = listeners.changed(seen, picture.number) if seen else None
            yield event(picture, changed)
            seen = picture.number


def _listeners(request: Request) -> Listeners:
    state = request.app.state
    if not hasattr(state, "listeners"):
        state.listeners = Listeners(state.console.pictures)
    listeners: Listeners = state.listeners
    return listeners
