"""The pages to log in and out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from flumeng.console.pages import rendering
from flumeng.console.who.gate import Gate, cookie
from flumeng.console.who.oidc import CALLBACK, LOGIN_SECONDS
from flumeng.console.who.proofs import Who
from flumeng.console.who.refusals import LogInError
from flumeng.console.who.tokens import digest
from flumeng.platform.errors import UnavailableError

LOGIN, LOGOUT, OIDC = "/login", "/logout", "/login/oidc"
SUFFIX = "-login"
MOST_AT_PROVIDER = 4
"""Logins that wait for the provider at once; each holds a thread."""


def routes(who: Who) -> Sequence[Route]:
    pages = _Pages(who)
    return (
        Route(LOGIN, pages.show, methods=["GET"]),
        Route(LOGIN, pages.with_token, methods=["POST"]),
        Route(OIDC, pages.to_provider, methods=["GET"]),
        Route(CALLBACK, pages.from_provider, methods=["GET"]),
        Route(LOGOUT, pages.leave, methods=["POST"]),
    )


def page(
    who: Who, request: Request, status: HTTPStatus, sentence: str, *, left: bool = False
) -> Response:
    """Return the page to log in, which leads back. ``left``: after a logout."""
    return rendering.bare(
        "login.html",
        status,
        sentence=sentence,
        then=_path(request),
        csrf=who.sessions.csrf(request.state.session),
        oidc=who.oidc.options.issuer if who.oidc is not None else "",
        provider_leave=who.oidc.leave_url() if left and who.oidc is not None else "",
        tokens=who.tokens is not None,
        certificates=who.certificates,
        anonymous=who.anonymous is not None,
    )


class _Pages:
    def __init__(self, who: Who) -> None:
        self._who = who
        self._at_provider = threading.BoundedSemaphore(MOST_AT_PROVIDER)

    def show(self, request: Request) -> Response:
        return self._page(request, HTTPStatus.OK, "")

    def with_token(self, request: Request) -> Response:
        self._who.count_login(request)
        token = request.state.form.get("token", "").strip()
        if self._who.tokens is None or self._who.tokens.of(token) is None:
            return self._page(request, HTTPStatus.UNAUTHORIZED, "This token is not valid here.")
        return self._begin(request, _path(request), proof="token", digest=digest(token))

    def to_provider(self, request: Request) -> Response:
        self._who.count_login(request)
        if self._who.oidc is None:
            raise LogInError("this console has no login provider: see --oidc")
        with self._turn():
            url, sealed = self._who.oidc.start(_path(request))
        response = RedirectResponse(url, HTTPStatus.SEE_OTHER)
        text = cookie(self._who, request, SUFFIX, sealed, LOGIN_SECONDS)
        response.headers.append("set-cookie", text)
        return response

    def from_provider(self, request: Request) -> Response:
        self._who.count_login(request)
        if self._who.oidc is None:
            raise LogInError("this console has no login provider: see --oidc")
        sealed = request.cookies.get(self._who.cookie_name(request) + SUFFIX, "")
        try:
            with self._turn():
                person, then = self._who.oidc.finish(sealed, request.query_params)
        except LogInError as error:
            response = self._page(request, HTTPStatus.UNAUTHORIZED, str(error))
        else:
            response = self._begin(
                request, then, proof="oidc", name=person.name, groups=person.groups
            )
        response.headers.append("set-cookie", cookie(self._who, request, SUFFIX, "", 0))
        return response

    def leave(self, request: Request) -> Response:
        self._who.sessions.end(request.state.session)
        request.state.session = self._who.sessions.begin()
        response = self._page(request, HTTPStatus.OK, "You have logged out.", left=True)
        self._set(request, response)
        return response

    def _begin(self, request: Request, then: str, **values: object) -> Response:
        """Begin a session, and end that of before: its number was known before the login."""
        self._who.sessions.end(request.state.session)
        request.state.session = self._who.sessions.begin(**values)
        response = RedirectResponse(then, HTTPStatus.SEE_OTHER)
        self._set(request, response)
        return response

    def _set(self, request: Request, response: Response) -> None:
        text = Gate.cookie_of(self._who, request, request.state.session)
        response.headers.append("set-cookie", text)

    def _page(
        self, request: Request, status: HTTPStatus, sentence: str, *, left: bool = False
    ) -> Response:
        return page(self._who, request, status, sentence, left=left)

    def _turn(self) -> _Turn:
        return _Turn(self._at_provider)


class _Turn:
    """Raises UnavailableError instead of waiting for a place."""

    def __init__(self, places: threading.BoundedSemaphore) -> None:
        self._places = places

    def __enter__(self) -> None:
        if not self._places.acquire(blocking=False):
            raise UnavailableError("many people log in now: try again")

    def __exit__(self, *_exception: object) -> None:
        self._places.release()


def _path(request: Request) -> str:
    """Return the path to show after the login, never another site's."""
    query = f"?{request.url.query}" if request.url.query else ""
    asked = request.url.path + query
    if request.url.path.startswith((LOGIN, LOGOUT)):
        asked = request.state.form.get("then") or request.query_params.get("then", "/")
    inside = asked.startswith("/") and not asked.startswith(("//", "/\\")) and asked.isprintable()
    return asked if inside and not asked.startswith((LOGIN, LOGOUT)) else "/"
