"""The console as an ASGI application."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from flumeng.console.api import changes, events, openapi, reads
from flumeng.console.api.problems import problem, problem_of, status_of
from flumeng.console.console import Console
from flumeng.console.pages import (
    api,
    audit,
    cursors,
    do,
    first,
    flow,
    flow_dead,
    flow_edit,
    flow_events,
    flow_history,
    flow_partitions,
    flow_revisions,
    flow_tap,
    flows,
    journals,
    login,
    nodes,
    queues,
    rendering,
    search,
    settings,
    sites,
)
from flumeng.console.who.gate import Gate
from flumeng.console.who.proofs import Who
from flumeng.console.who.refusals import LogInError, TooManyError
from flumeng.console.who.viewers import Viewer
from flumeng.platform.errors import FlumengError
from zkschema.table import ZnodeNameError

log = logging.getLogger(__name__)

PAGES = (
    first,
    do,
    flow_edit,
    flow,
    flow_partitions,
    flow_events,
    flow_history,
    flow_revisions,
    flow_dead,
    flow_tap,
    flows,
    nodes,
    queues,
    journals,
    cursors,
    audit,
    settings,
    sites,
    search,
    api,
)
API = "/api/v1"
EVENTS = Route("/events", events.endpoint, methods=["GET"])
AWAY = b"flumeng-zookeeper-away-since"
"""Header of the API while ZooKeeper does not answer: since when, in seconds since the epoch."""
STATIC = Path(__file__).parent / "static"
HEADERS = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; "
    b"img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    b"frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
"""Nothing from elsewhere, no inline parts, no frames."""
OPEN_PATHS = ("/static/", login.LOGIN)
"""Shown to everybody."""
ADMIT_THREADS = 8
"""Threads of their own, so that slow pages do not delay the proof of a name."""
AGAIN_SECONDS = 5.0
"""A long answer ends so long after the viewer lost the right to it."""


def make_app(
    console: Console, identify: Callable[[Request], Viewer], who: Who | None = None
) -> Starlette:
    """Return the application. ``identify`` returns the viewer; may block; raises NotAllowedError.
    ``who``: the gate before it and the pages to log in, which tests of pages do without."""
    app = Starlette(
        routes=[
            Mount(API, routes=[*reads.routes(), *changes.routes(), *openapi.routes(), EVENTS]),
            Mount("/static", StaticFiles(directory=STATIC)),
            *(login.routes(who) if who is not None else ()),
            *(route for module in PAGES for route in module.ROUTES),
        ],
        middleware=[
            Middleware(SafeHeaders),
            *([Middleware(Gate, who=who, refuse=_failed)] if who is not None else []),
            Middleware(Unbroken),
            Middleware(GZipMiddleware, minimum_size=1000),
            Middleware(Identified, identify=identify),
        ],
        exception_handlers={
            FlumengError: _failed,
            HTTPException: _refused,
            ZnodeNameError: _unnamed,
        },
    )
    app.state.console, app.state.who = console, who
    return app


class Identified:
    """Sets ``request.state.viewer``; answers others with the reason."""

    def __init__(
        self, app: Any, identify: Callable[[Request], Viewer], again_seconds: float = AGAIN_SECONDS
    ) -> None:
        self._app, self._identify, self._pause = app, identify, again_seconds
        self._threads = CapacityLimiter(ADMIT_THREADS)

    async def __call__(
        self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http" or scope["path"].startswith(OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            request.state.viewer = await self._viewer(request)
        except FlumengError as error:
            await _failed(request, error)(scope, receive, send)
            return
        await self._app(scope, receive, self._while_admitted(request, send))

    async def _viewer(self, request: Request) -> Viewer:
        return await to_thread.run_sync(self._identify, request, limiter=self._threads)

    def _while_admitted(
        self, request: Request, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Any], Awaitable[None]]:
        """Return ``send``, which ends a long answer once its viewer may no longer look."""
        again, ended = time.monotonic() + self._pause, False

        async def sent(message: Any) -> None:
            nonlocal again, ended
            if ended:
                return
            if message.get("more_body") and time.monotonic() >= again:
                again = time.monotonic() + self._pause
                try:
                    await self._viewer(request)
                except FlumengError as error:
                    log.info("an answer to %s ends: %s", request.state.viewer.name, error)
                    message, ended = {"type": "http.response.body", "body": b""}, True
            await send(message)

        return sent


class Unbroken:
    """Answers an unforeseen error with 500 and without its details, and logs it once."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(
        self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        begun = False

        async def sent(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except Exception:  # whatever it is, the console goes on
            log.exception("a request failed: %s %s", scope.get("method"), scope.get("path"))
            if not begun:
                answer = _answer(
                    Request(scope),
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    "the console failed: its log has the details",
                )
                await answer(scope, receive, send)


class SafeHeaders:
    """Adds HEADERS to every answer, and AWAY to those of the API."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(
        self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS.items(), *_away(scope)]
            await send(message)

        await self._app(scope, receive, sent)


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, FlumengError)
    is_api = request.url.path.startswith(API)
    who: Who | None = request.app.state.who
    status = status_of(error)
    if isinstance(error, LogInError) and not is_api and who is not None:
        return login.page(who, request, status, str(error))
    response = (
        problem_of(error, request.app.state.console.away_since)
        if is_api
        else _answer(request, status, str(error))
    )
    if isinstance(error, LogInError):
        response.headers["www-authenticate"] = "Bearer"
    if isinstance(error, TooManyError):
        response.headers["retry-after"] = str(math.ceil(error.seconds))
    return response


def _unnamed(request: Request, error: Exception) -> Response:
    return _answer(request, HTTPStatus.NOT_FOUND, str(error))


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, path = HTTPStatus(error.status_code), request.url.path
    if not path.startswith(API):
        return _answer(request, status, error.detail)
    if status == HTTPStatus.NOT_FOUND:
        return problem(status, f"there is nothing at {path}: see {API}/openapi.json")
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        allow = ", ".join(_methods(request))
        if request.method == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers={"allow": allow})
        refused = problem(status, f"{path} knows {allow}, not {request.method}")
        refused.headers["allow"] = allow
        return refused
    return problem(status, error.detail)


def _methods(request: Request) -> list[str]:
    """Return the methods that the path knows."""
    (mount,) = (route for route in request.app.routes if getattr(route, "path", "") == API)
    path = request.url.path.removeprefix(API)
    known = [route.methods for route in mount.routes if route.path_regex.match(path)]
    return sorted({"OPTIONS", *(method for methods in known for method in methods)})


def _away(scope: Any) -> list[tuple[bytes, bytes]]:
    if not scope["path"].startswith(API):
        return []
    since = scope["app"].state.console.away_since
    return [] if since is None else [(AWAY, f"{since:.3f}".encode())]


def _answer(request: Request, status: HTTPStatus, sentence: str) -> Response:
    if request.url.path.startswith(API):
        return problem(status, sentence)
    if getattr(request.state, "viewer", None) is None:
        return rendering.bare("refused.html", status, sentence=sentence, title=status.phrase)
    return rendering.page(request, "problem.html", status, sentence=sentence, title=status.phrase)
