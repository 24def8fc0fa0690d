"""The gate before pages and the API: bounds, the host, sessions, and requests of other sites.

A page of another site can make a browser send requests with the console's cookies, the viewer's
certificate, or from loopback. So each change needs a proof that a page of the console has made it,
unless it carries a token, which browsers never add by themselves. Another site may also let its
name point at the console's address (DNS rebinding); the header ``Host`` shows it.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from flumeng.console.who.proofs import SAFE, Who, address
from flumeng.console.who.refusals import (
    CrossSiteError,
    LongHeadersError,
    MisdirectedError,
    TooLargeError,
    TooManyError,
    TooSlowError,
)
from flumeng.console.who.sessions import SECONDS, Session
from flumeng.platform.errors import FlumengError

API = "/api/"
STATIC = "/static/"
HEAD_BYTES = 16 << 10
BODY_BYTES = 4 << 20
BODY_SECONDS = 30.0
FORM_FIELDS = 1000
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-csrf-token"
FORM = "application/x-www-form-urlencoded"
SIMPLE_TYPES = (FORM, "multipart/form-data", "text/plain")
"""Types of bodies that a page may send to another site without its consent."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Gate:
    """Sets ``request.state.session`` and ``request.state.form``. ``refuse``: the answer for an
    error."""

    def __init__(
        self, app: Any, who: Who, refuse: Callable[[Request, FlumengError], Response]
    ) -> None:
        self._app, self._who, self._refuse = app, who, refuse

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            is_new = await self._pass(request, receive)
        except FlumengError as error:
            await self._refuse(request, error)(scope, receive, send)
            return
        await self._app(scope, self._again(request, receive), self._sending(request, is_new, send))

    async def _pass(self, request: Request, receive: Receive) -> bool:
        """Return whether the browser gets a new session. Raises the errors of ``refusals``."""
        head = sum(len(name) + len(value) + 4 for name, value in request.headers.raw)
        if head + len(request.scope.get("raw_path") or b"") > HEAD_BYTES:
            raise LongHeadersError(f"more than {HEAD_BYTES} bytes of headers")
        self._require_host(request)
        wait = self._who.bounds.address.take(address(request))
        if wait:
            raise TooManyError("too many requests from your address", wait)
        session = self._session(request)
        request.state.session = session or self._who.sessions.begin()
        request.state.body = await _body(request, receive)
        request.state.form = _form(request)
        self._require_own(request, has_session=session is not None)
        return session is None

    def _session(self, request: Request) -> Session | None:
        cookie = request.cookies.get(self._who.cookie_name(request))
        return self._who.sessions.read(cookie) if cookie else None

    def _require_host(self, request: Request) -> None:
        if len(request.headers.getlist("host")) != 1:
            raise MisdirectedError("expected one header Host")
        try:
            name = urlsplit(f"//{request.headers['host']}").hostname or ""
        except ValueError:
            name = ""
        if name in self._who.hosts or _is_address(name):
            return
        raise MisdirectedError(
            "this console does not go by the host name of this request: name it with --url"
        )

    def _require_own(self, request: Request, *, has_session: bool) -> None:
        """Raise CrossSiteError when another site may have made the browser ask."""
        headers = request.headers
        if "authorization" in headers:
            return
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        own_site = site in (None, "same-origin", "none")
        if request.method in SAFE:
            if not own_site and headers.get("sec-fetch-mode") != "navigate":
                raise CrossSiteError("another site may not load this: open it in a tab")
            return
        if not own_site or (origin is not None and origin not in self._who.origins(request)):
            raise CrossSiteError("this change comes from a page of another site")
        token = headers.get(CSRF_HEADER) or request.state.form.get(CSRF_FIELD)
        if token is not None:
            if not self._who.sessions.is_csrf(request.state.session, token):
                raise CrossSiteError("this page is of an earlier session: load it again")
            return
        is_program = site is None and not has_session
        is_simple = not request.url.path.startswith(API) or _type(request) in SIMPLE_TYPES
        if not is_simple and (origin is not None or is_program):
            return
        raise CrossSiteError(
            f"this change carries no proof of a page of this console: field {CSRF_FIELD} or header "
            f"{CSRF_HEADER}"
        )

    def _again(self, request: Request, receive: Receive) -> Receive:
        """Return a ``receive`` that begins with the body that was read."""
        messages = [{"type": "http.request", "body": request.state.body, "more_body": False}]

        async def received() -> Message:
            return messages.pop() if messages else await receive()

        return received

    def _sending(self, request: Request, is_new: bool, send: Send) -> Send:
        path = request.url.path
        cookies = is_new and not path.startswith((API, STATIC))

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and not path.startswith(STATIC):
                headers = list(message["headers"])
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                named = f"{self._who.cookie_name(request)}=".encode()
                if cookies and not any(value.startswith(named) for _, value in headers):
                    cookie = self.cookie_of(self._who, request, request.state.session)
                    headers.append((b"set-cookie", cookie.encode()))
                message["headers"] = headers
            await send(message)

        return sent

    @staticmethod
    def cookie_of(who: Who, request: Request, session: Session) -> str:
        return cookie(who, request, "", who.sessions.sealed(session), SECONDS)


def cookie(who: Who, request: Request, suffix: str, value: str, seconds: float) -> str:
    """Return the value of ``Set-Cookie``. ``suffix``: after the session cookie's name."""
    secure = "; Secure" if who.is_secure(request) else ""
    return (
        f"{who.cookie_name(request)}{suffix}={value}; Path=/; Max-Age={seconds:.0f}; HttpOnly; "
        f"SameSite=Lax{secure}"
    )


async def _body(request: Request, receive: Receive) -> bytes:
    """Read the whole body: a part of it is never passed on. Raises TooLargeError, TooSlowError."""
    headers = request.headers
    if "content-length" not in headers and "transfer-encoding" not in headers:
        return b""
    if int(headers.get("content-length", "0")) > BODY_BYTES:
        raise TooLargeError(f"a request has at most {BODY_BYTES} bytes")
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise TooSlowError("the request was not sent to its end")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > BODY_BYTES:
                    raise TooLargeError(f"a request has at most {BODY_BYTES} bytes")
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise TooSlowError(f"the request was not sent within {BODY_SECONDS:.0f} s") from None


def _form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form; of several with one name the last."""
    if _type(request) != FORM:
        return {}
    try:
        text = request.state.body.decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FORM_FIELDS))
    except ValueError:
        return {}


def _type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_address(name: str) -> bool:
    """An address in ``Host`` cannot be that of another site: the browser has connected to it."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
