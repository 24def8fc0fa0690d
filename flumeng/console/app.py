"""The console as an ASGI application."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from flumeng.console.api import reads
from flumeng.console.api.problems import problem, status_of
from flumeng.console.console import Console
from flumeng.console.pages import (
    first,
    flow,
    flow_dead,
    flow_edit,
    flow_events,
    flow_partitions,
    flow_revisions,
    flow_tap,
    rendering,
)
from flumeng.console.who.viewers import Viewer
from flumeng.platform.errors import FlumengError

log = logging.getLogger(__name__)

PAGES = (first, flow_edit, flow, flow_partitions, flow_events, flow_revisions, flow_dead, flow_tap)
API = "/api/v1"
STATIC = Path(__file__).parent / "static"
HEADERS = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; "
    b"img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    b"frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}
"""Nothing from elsewhere, no inline parts, no frames."""


def make_app(console: Console, identify: Callable[[Request], Viewer]) -> Starlette:
    """Return the application. ``identify`` returns who asks; raises NotAllowedError."""
    app = Starlette(
        routes=[
            Mount(API, routes=reads.routes()),
            Mount("/static", StaticFiles(directory=STATIC)),
            *(route for module in PAGES for route in module.ROUTES),
        ],
        middleware=[
            Middleware(SafeHeaders),
            Middleware(GZipMiddleware, minimum_size=1000),
            Middleware(Identified, identify=identify),
        ],
        exception_handlers={FlumengError: _failed, HTTPException: _refused},
    )
    app.state.console = console
    return app


class Identified:
    """Sets ``request.state.viewer``; answers whoever may not even look with the reason."""

    def __init__(self, app: Any, identify: Callable[[Request], Viewer]) -> None:
        self._app, self._identify = app, identify

    async def __call__(
        self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            try:
                request.state.viewer = self._identify(request)
            except FlumengError as error:
                await _failed(request, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class SafeHeaders:
    """Adds HEADERS to every answer."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(
        self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS.items()]
            await send(message)

        await self._app(scope, receive, sent)


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, FlumengError)
    return _answer(request, status_of(error), str(error))


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(request, HTTPStatus(error.status_code), error.detail)


def _answer(request: Request, status: HTTPStatus, sentence: str) -> Response:
    if request.url.path.startswith(API):
        return problem(status, sentence)
    return rendering.page(request, "problem.html", status, sentence=sentence, title=status.phrase)
