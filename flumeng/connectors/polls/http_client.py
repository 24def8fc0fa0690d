"""HTTP client for untrusted servers: limited time, bytes, URLs. Raises UnavailableError, UserError,
CorruptError. Only the source's own server receives the source's headers."""

from __future__ import annotations

import gzip
import io
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from math import ceil
from typing import Any, cast
from urllib.parse import urljoin
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, InvalidHeader, LocationParseError
from urllib3.util import Url, make_headers, parse_url

from flumeng.config.client_tls import ClientTls
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from flumeng.platform.scrubbing import SHOWN, excerpt, without_connection

CONNECT_SECONDS = 10.0
MOST_BODY_BYTES = 64 * 2**20
MOST_ERROR_BYTES = 64 * 1024
READ_BYTES = 2**16
MOST_REDIRECTS = 5
MOST_URL_BYTES = 8 * 1024
MOST_PAUSE_SECONDS = 3600.0
"""Upper limit for ``Retry-After``."""
MOST_SOCKETS = 8
QUOTED_CHARACTERS = 200
GENERAL = {"User-Agent": "flumeng", "Accept-Encoding": "gzip, deflate"}
PORTS = {"http": 80, "https": 443}
PASSING = (408, 425, 429)
"""Status codes to retry, like 500 and above, and 403 with ``Retry-After``."""
REDIRECTS = (301, 302, 303, 307, 308)
HINTS = {
    400: "check `query` and `body`",
    401: "check `auth` and its secrets",
    403: "check `auth` and its permissions",
    404: "check `url`",
    405: "check `method`",
    407: "the proxy needs a user and password in its URL",
    410: "check `url`; or a page was requested too late",
}


class UnauthorizedError(UserError):
    """HTTP 401."""


@dataclass(frozen=True)
class Request:
    """A request. ``own``: headers for the source's server only."""

    method: str
    url: str
    own: Mapping[str, str]
    body: bytes | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.url.partition('?')[0]}"


@dataclass(frozen=True)
class Reply:
    """A reply. ``url``: after all redirects. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


class HttpClient:
    """Client for ``home`` and URLs below ``elsewhere``, used by a single thread."""

    def __init__(
        self, home: str, elsewhere: Sequence[str], tls: ClientTls | None, timeout_seconds: float
    ) -> None:
        """Prepare the client. Raises UserError for an invalid URL or unusable certificate files."""
        self._home = parsed(home)
        self._elsewhere = tuple(map(parsed, elsewhere))
        self._timeout_seconds = timeout_seconds
        self._connections = _Connections(tls)
        self._not_before = 0.0
        self._closed = threading.Event()

    def is_home(self, url: str) -> bool:
        """Return whether ``url`` is on the source's server. Raises UserError for an invalid URL."""
        return _origin(parsed(url)) == _origin(self._home)

    def ask(self, request: Request) -> Reply:
        """Return the final reply, 2xx or 304. Raises UserError, CorruptError, UnavailableError."""
        self.wait(0)
        if left := self.rest_seconds:
            raise UnavailableError(
                f"{self._home.host} allows no request for {ceil(left)} s (Retry-After)"
            )
        first = request
        with self._limited(first):
            for _ in range(MOST_REDIRECTS + 1):
                reply = self._checked(first, self._send(request))
                if reply.status not in REDIRECTS:
                    return reply
                request = self._redirected(first, request, reply)
        raise UserError(f"{first}: the server redirects more than {MOST_REDIRECTS} times")

    def rest(self) -> None:
        """Close idle connections."""
        self._connections.drop()

    def close(self) -> None:
        """Abort the request of another thread, and refuse later ones."""
        self._closed.set()
        self._connections.abort()

    def require_allowed(self, url: str, where: str) -> None:
        """Raise UserError when a URL given by a server may not be requested."""
        target = parsed(url)
        if target.auth is not None:
            raise UserError(f"{where} leads to a URL with a user in it, which is not allowed")
        if _origin(target) == _origin(self._home):
            return
        if not any(_is_below(target, allowed) for allowed in self._elsewhere):
            raise UserError(
                f"{where} leads to {_shown(url)} on another server than `url`: change `url`, or "
                "allow it in `redirect_to`"
            )

    def wait(self, seconds: float) -> None:
        """Sleep. Raises UnavailableError as soon as the client is closed."""
        if self._closed.wait(seconds):
            raise UnavailableError("the poll is closed")

    @property
    def rest_seconds(self) -> float:
        """Remaining seconds of the server's ``Retry-After``."""
        return max(0.0, self._not_before - time.monotonic())

    def _redirected(self, first: Request, request: Request, reply: Reply) -> Request:
        location = reply.headers.get("location", "")
        if not location:
            raise UserError(f"{first}: HTTP {reply.status} without a Location")
        url = joined(request.url, location)
        self.require_allowed(url, f"{first}: HTTP {reply.status}")
        keeps_method = reply.status in (307, 308) and self.is_home(url)
        if request.method != "GET" and not keeps_method:
            raise UserError(
                f"{first}: HTTP {reply.status} redirects a {request.method} to {_shown(url)}: "
                "change `url`"
            )
        return replace(request, url=url)

    def _checked(self, first: Request, reply: Reply) -> Reply:
        status = reply.status
        if 200 <= status < 300 or status == 304 or status in REDIRECTS:
            return reply
        text = " ".join(reply.body.decode("utf-8", "replace").split())
        for name, value in first.own.items():
            if name.lower() == "authorization":
                text = text.replace(value.rpartition(" ")[2], SHOWN)
        text = excerpt(text, QUOTED_CHARACTERS)
        why = f"{first}: HTTP {status}" + (f": {text}" if text else "")
        retry = reply.headers.get("retry-after", "")
        if status in PASSING or status >= 500 or (status == 403 and retry):
            self._not_before = time.monotonic() + after_seconds(retry)
            raise UnavailableError(why)
        error = UnauthorizedError if status == 401 else UserError
        raise error(f"{why}: {HINTS[status]}" if status in HINTS else why)

    def _send(self, request: Request) -> Reply:
        url, home = parsed(request.url), self.is_home(request.url)
        headers = urllib3.HTTPHeaderDict(GENERAL)
        for name, value in request.own.items() if home else ():
            headers[name] = value
        try:
            response = self._connections.manager(url, home=home).request(
                request.method,
                request.url,
                body=request.body,
                headers=headers,
                timeout=urllib3.Timeout(
                    connect=min(CONNECT_SECONDS, self._timeout_seconds), read=self._timeout_seconds
                ),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            with response:
                given = {name.lower(): text for name, text in response.headers.items()}
                return Reply(response.status, given, _body(response, request), request.url)
        except LocationParseError as error:
            raise UserError(f"{request}: invalid URL") from error
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            if _distrusts(error):
                raise UserError(
                    f"{request}: its certificate is not trusted: {excerpt(str(error), 300)}; set "
                    "tls.ca to the certificate's authority"
                ) from error
            why = excerpt(without_connection(error), 300)
            raise UnavailableError(f"{request}: no answer: {why}") from error

    @contextmanager
    def _limited(self, request: Request) -> Iterator[None]:
        """Abort connections after ``timeout_seconds``: socket time-outs restart with each byte."""
        late = threading.Event()

        def expire() -> None:
            late.set()
            self._connections.abort()

        timer = threading.Timer(self._timeout_seconds, expire)
        timer.daemon = True
        self._connections.aborted = False
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self.wait(0)
            if late.is_set():
                raise UnavailableError(
                    f"{request}: no complete answer within {self._timeout_seconds:g} s"
                )


class _Connections:
    """Pools that a thread can abort, even in TLS handshakes, by shutting duplicated sockets."""

    def __init__(self, tls: ClientTls | None) -> None:
        self._tls = tls
        self._contexts = {True: tls.context()} if tls else {}
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._managers: dict[tuple[ssl.SSLContext | None, str | None], urllib3.PoolManager] = {}
        self.aborted = False

    def manager(self, url: Url, *, home: bool) -> urllib3.PoolManager:
        """Return a connection pool. Only ``home`` gets the client certificate. Raises UserError for
        unusable certificates or an invalid proxy."""
        if len(self._sockets) > MOST_SOCKETS:
            self.drop()
        if url.scheme == "https" and home not in self._contexts:
            tls = replace(self._tls, certificate=None, key=None) if self._tls else ClientTls()
            self._contexts[home] = tls.context()
        key = self._contexts.get(home), _proxy(url)
        with self._lock:
            if key not in self._managers:
                self._managers[key] = _manager(*key)
                self._managers[key].pool_classes_by_scheme = self._pool_classes()
            return self._managers[key]

    def abort(self) -> None:
        """Close all connections, and new ones until ``aborted`` is reset."""
        self.aborted = True
        self.drop()

    def drop(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, []
            managers, self._managers = self._managers, {}
        for held in sockets:
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()
        for manager in managers.values():
            manager.clear()

    def _hold(self, connected: socket.socket) -> socket.socket:
        with self._lock:
            self._sockets.append(connected.dup())
        if self.aborted:
            self.drop()
        return connected

    def _pool_classes(self) -> dict[str, Any]:
        hold = self._hold

        class Plain(HTTPConnection):
            def _new_conn(self) -> socket.socket:
                return hold(super()._new_conn())

        class Secured(HTTPSConnection):
            def _new_conn(self) -> socket.socket:
                return hold(super()._new_conn())

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecuredPool(HTTPSConnectionPool):
            ConnectionCls = Secured

        return {"http": PlainPool, "https": SecuredPool}


def parsed(url: str) -> Url:
    """Return the URL normalized by urllib3. Raises UserError when it is invalid or unsupported."""
    try:
        normalized = parse_url(url)
    except (LocationParseError, ValueError) as error:
        raise UserError(f"invalid URL: {_shown(url)}") from error
    if normalized.scheme not in PORTS or not normalized.host or len(url.encode()) > MOST_URL_BYTES:
        raise UserError(f"unsupported URL: {_shown(url)}")
    return normalized


def joined(base: str, url: str) -> str:
    """Return ``url`` resolved against ``base``, without a fragment. Raises UserError."""
    try:
        whole = urljoin(base, url.strip())
    except ValueError as error:
        raise UserError(f"invalid URL: {_shown(url)}") from error
    return parsed(whole)._replace(fragment=None).url


def after_seconds(text: str) -> float:
    """Return the seconds of a ``Retry-After`` (number or date), bounded; 0 when it is neither."""
    try:
        return min(urllib3.Retry().parse_retry_after(text), MOST_PAUSE_SECONDS)
    except (InvalidHeader, ValueError, TypeError, OverflowError):
        return 0.0


def decoded(raw: urllib3.BaseHTTPResponse | io.BytesIO, encoding: str, limit: int) -> bytes:
    """Return the decompressed body, up to about ``limit``. Raises CorruptError if undecodable."""
    name = encoding.strip().lower()
    if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise CorruptError(f"unsupported Content-Encoding {excerpt(name, 40)}")
    stream: Any = gzip.GzipFile(fileobj=cast("io.BytesIO", raw)) if "gzip" in name else raw
    content = io.BytesIO()
    try:
        while content.tell() <= limit and (piece := stream.read(READ_BYTES)):
            content.write(piece)
        whole = content.getvalue()
        return _inflated(whole, limit + 1) if name == "deflate" and whole else whole
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorruptError(f"the body is not {name}, as Content-Encoding says: {error}") from error


def _inflated(packed: bytes, most: int) -> bytes:
    """Decompress ``deflate`` with or without a zlib header. Raises EOFError, zlib.error."""
    is_zlib = packed[0] & 0x0F == 8 and packed[0] >> 4 <= 7
    stream = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
    content = stream.decompress(packed, most)
    if stream.unused_data or (len(content) < most and not stream.eof):
        raise EOFError("the data ends too early or too late")
    return content


def _body(response: urllib3.BaseHTTPResponse, request: Request) -> bytes:
    """Return the decoded body. Raises CorruptError, UserError, except for an error's body."""
    failed = not 200 <= response.status < 300
    limit = MOST_ERROR_BYTES if failed else MOST_BODY_BYTES
    try:
        body = decoded(response, response.headers.get("Content-Encoding", ""), limit)
    except CorruptError as error:
        if failed:
            return b""
        raise CorruptError(f"{request}: {error}") from error
    if len(body) > limit:
        response.close()
        if not failed:
            raise UserError(
                f"{request}: the answer is larger than {limit // 2**20} MiB: request fewer records "
                "at once, with a parameter in `query`"
            )
    return body


def _shown(url: str) -> str:
    return excerpt(url.partition("?")[0], QUOTED_CHARACTERS)


def _origin(url: Url) -> tuple[str | None, str, int]:
    return url.scheme, (url.host or "").rstrip("."), url.port or PORTS[url.scheme or "http"]


def _is_below(url: Url, allowed: Url) -> bool:
    path, root = url.path or "/", (allowed.path or "").rstrip("/")
    return _origin(url) == _origin(allowed) and (path == root or path.startswith(f"{root}/"))


def _proxy(url: Url) -> str | None:
    proxies = getproxies()
    proxy = proxies.get(url.scheme or "") or proxies.get("all")
    bypassed = proxy and proxy_bypass(f"{url.host}:{url.port}" if url.port else url.host or "")
    return None if bypassed else proxy


def _manager(context: ssl.SSLContext | None, proxy: str | None) -> urllib3.PoolManager:
    """Return a connection pool. Raises UserError for an invalid proxy, without the proxy's URL,
    which may contain a password."""
    if proxy is None:
        return urllib3.PoolManager(maxsize=1, ssl_context=context)
    try:
        user = parse_url(proxy).auth
        headers = make_headers(proxy_basic_auth=user) if user else None
        return urllib3.ProxyManager(proxy, proxy_headers=headers, maxsize=1, ssl_context=context)
    except (ValueError, HTTPError) as error:
        raise UserError("the proxy in the environment is not an http:// or https:// URL") from error


def _distrusts(error: BaseException | None) -> bool:
    """Return whether the cause is an untrusted certificate."""
    while error is not None:
        inner = [error, *(arg for arg in error.args if isinstance(arg, BaseException))]
        if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in inner):
            return True
        error = error.__cause__ or error.__context__
    return False
