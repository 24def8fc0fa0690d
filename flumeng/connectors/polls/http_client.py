"""Requests over HTTP to servers that may do anything: bounded in time, bytes and servers.

Whatever is answered, or is not, is a Reply or one of three errors. A server other than that of the
source gets no header of the source, and only where the source has named it.
"""

from __future__ import annotations

import email.utils
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException
from math import ceil
from ssl import SSLCertVerificationError
from urllib.parse import urljoin
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, parse_url

from flumeng.config.client_tls import ClientTls
from flumeng.connectors.polls.http_body import unpacked
from flumeng.connectors.polls.wires import Trust, Wires
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from flumeng.platform.scrubbing import SHOWN, excerpt

CONNECT_SECONDS = 10.0
MOST_BODY_BYTES = 64 * 2**20
"""Of an answer, as it comes and decompressed."""
MOST_ERROR_BYTES = 64 * 1024
MOST_REDIRECTS = 5
MOST_URL_BYTES = 8 * 1024
MOST_PAUSE_SECONDS = 3600.0
"""Whatever ``Retry-After`` says, a server is asked again after so long."""
QUOTED_CHARACTERS = 200
GENERAL = {"User-Agent": "flumeng", "Accept-Encoding": "gzip, deflate"}
PORTS = {"http": 80, "https": 443}
PASSING = (408, 425, 429)
"""Beside all from 500 on, and 403 with ``Retry-After``."""
REDIRECTS = (301, 302, 303, 307, 308)
_CONNECTION = re.compile(r"^\w+\(host=[^)]*\): ")
"""How urllib3 begins what it says of one."""
HINTS = {
    400: "look at `query` and `body`",
    401: "look at `auth` and its secrets",
    403: "look at `auth`, and at what it is allowed to",
    404: "look at `url`",
    405: "look at `method`",
    407: "the proxy wants a user and password in its URL",
    410: "look at `url`; or a page was asked for too late",
}


class UnauthorizedError(UserError):
    """The server does not take who asks."""


@dataclass(frozen=True)
class Request:
    """``own``: what only the server of the source may see."""

    method: str
    url: str
    own: Mapping[str, str]
    body: bytes | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.url.partition('?')[0]}"


@dataclass(frozen=True)
class Reply:
    """``url`` is that from which it came in the end."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


class HttpClient:
    """``home`` and what is below ``elsewhere`` may be asked. One thread asks."""

    def __init__(
        self, home: str, elsewhere: Sequence[str], tls: ClientTls | None, timeout_seconds: float
    ) -> None:
        """Raises UserError."""
        self._home = parsed(home)
        self._elsewhere = tuple(map(parsed, elsewhere))
        self._tls = {True: tls, False: tls and replace(tls, certificate=None, key=None)}
        self._trust = {True: Trust.of(tls)} if tls else {}
        self._timeout_seconds = timeout_seconds
        self._wires = Wires()
        self._not_before = 0.0
        self._closed = threading.Event()

    def is_home(self, url: str) -> bool:
        """Whether it is of the source's own server. Raises UserError."""
        return _origin(parsed(url)) == _origin(self._home)

    def ask(self, request: Request) -> Reply:
        """The answer to it, or to where it was redirected: one of 200 to 299, or 304. Nothing is
        asked while ``rest_seconds`` are not over.

        Raises UnavailableError, UserError, CorruptError.
        """
        self._require_allowed_now()
        first = request
        with self._limited(first):
            for _ in range(MOST_REDIRECTS + 1):
                reply = self._checked(first, self._send(request))
                if reply.status not in REDIRECTS:
                    return reply
                request = self._redirected(first, request, reply)
        raise UserError(f"{first}: it redirects more than {MOST_REDIRECTS} times")

    def rest(self) -> None:
        """Nothing is asked for a while."""
        self._wires.drop()

    def close(self) -> None:
        """Ends a request that another thread makes."""
        self._closed.set()
        self._wires.shut()

    def require_allowed(self, url: str, where: str) -> None:
        """Raises UserError when what a server has said leads to where nothing may be asked."""
        target = parsed(url)
        if target.auth is not None:
            raise UserError(f"{where} leads to a URL with a user in it, and is not followed")
        if _origin(target) == _origin(self._home):
            return
        if not any(_is_below(target, place) for place in self._elsewhere):
            raise UserError(
                f"{where} leads to {_shown(url)}, which is of another server than `url`: change "
                "`url`, or allow it in `redirect_to`"
            )

    def wait(self, seconds: float) -> None:
        """Raises UnavailableError, at once, when it is closed."""
        if self._closed.wait(seconds):
            raise UnavailableError("the poll is closed")

    @property
    def rest_seconds(self) -> float:
        """For how long the server is not to be asked, as it has said."""
        return max(0.0, self._not_before - time.monotonic())

    def _require_allowed_now(self) -> None:
        self.wait(0)
        if left := self.rest_seconds:
            raise UnavailableError(
                f"{self._home.host} asks not to be asked again for {ceil(left)} s (Retry-After)"
            )

    def _redirected(self, first: Request, request: Request, reply: Reply) -> Request:
        """What to ask instead."""
        location = reply.headers.get("location", "")
        if not location:
            raise UserError(f"{first}: HTTP {reply.status} without a Location")
        url = joined(request.url, location)
        self.require_allowed(url, f"{first}: HTTP {reply.status}")
        if request.method == "GET":
            return replace(request, url=url)
        if reply.status not in (307, 308) or not self.is_home(url):
            raise UserError(
                f"{first}: HTTP {reply.status} redirects a {request.method} to {_shown(url)}: "
                "change `url`"
            )
        return replace(request, url=url)

    def _checked(self, first: Request, reply: Reply) -> Reply:
        """The same, unless it says that it is no answer."""
        status = reply.status
        if 200 <= status < 300 or status == 304 or status in REDIRECTS:
            return reply
        text = " ".join(reply.body.decode("utf-8", "replace").split())
        for name, value in first.own.items():
            if name.lower() == "authorization":
                text = text.replace(value.rpartition(" ")[2], SHOWN)
        said = excerpt(text, QUOTED_CHARACTERS)
        told = f"{first}: HTTP {status}" + (f": {said}" if said else "")
        retry = reply.headers.get("retry-after", "")
        if status in PASSING or status >= 500 or (status == 403 and retry):
            pause = min(after_seconds(retry), MOST_PAUSE_SECONDS)
            self._not_before = time.monotonic() + pause
            raise UnavailableError(told)
        error = UnauthorizedError if status == 401 else UserError
        raise error(f"{told}: {HINTS[status]}" if status in HINTS else told)

    def _send(self, request: Request) -> Reply:
        home = self.is_home(request.url)
        headers = urllib3.HTTPHeaderDict(GENERAL)
        for name, value in request.own.items() if home else ():
            headers[name] = value
        try:
            response = self._manager(request.url, home=home).request(
                request.method,
                request.url,
                body=request.body,
                headers=headers,
                timeout=urllib3.Timeout(
                    connect=min(CONNECT_SECONDS, self._timeout_seconds),
                    read=self._timeout_seconds,
                ),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            with response:
                found = {name.lower(): text for name, text in response.headers.items()}
                return Reply(response.status, found, _body(response, request), request.url)
        except LocationParseError as error:
            raise UserError(f"{request}: this is no URL that can be asked") from error
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            if _distrusts(error):
                raise UserError(
                    f"{request}: its certificate is not trusted: {excerpt(str(error), 300)}; set "
                    "tls.ca to the authority that it is from"
                ) from error
            said = excerpt(_CONNECTION.sub("", str(error)), 300)
            raise UnavailableError(f"{request}: no answer: {said}") from error

    @contextmanager
    def _limited(self, request: Request) -> Iterator[None]:
        """Ends what is done in it when that takes too long, or when this is closed, by shutting
        the sockets: an answer may come byte by byte, in which no other timeout sees an end."""
        late = threading.Event()
        timer = threading.Timer(self._timeout_seconds, _expire, (late, self._wires))
        timer.daemon = True
        self._wires.open()
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            if self._closed.is_set():
                raise UnavailableError("the poll is closed")
            if late.is_set():
                raise UnavailableError(
                    f"{request}: no end of the answer within {self._timeout_seconds:g} s"
                )

    def _manager(self, url: str, *, home: bool) -> urllib3.PoolManager:
        target = parsed(url)
        proxies = getproxies()
        proxy = proxies.get(target.scheme or "") or proxies.get("all")
        if proxy is not None and proxy_bypass(f"{target.host}:{target.port or ''}".rstrip(":")):
            proxy = None
        if target.scheme == "https" and home not in self._trust:
            self._trust[home] = Trust.of(self._tls[home])
        return self._wires.manager(self._trust.get(home), proxy)


def parsed(url: str) -> Url:
    """As it is asked: what is compared is what is sent. Raises UserError."""
    try:
        found = parse_url(url)
    except (LocationParseError, ValueError) as error:
        raise UserError(f"this is no URL: {_shown(url)}") from error
    if found.scheme not in PORTS or not found.host or len(url.encode()) > MOST_URL_BYTES:
        raise UserError(f"this is no URL to ask: {_shown(url)}")
    return found


def joined(base: str, url: str) -> str:
    """What ``url`` means in an answer from ``base``, without what is behind #. Raises UserError."""
    try:
        whole = urljoin(base, url.strip())
    except ValueError as error:
        raise UserError(f"this is no URL: {_shown(url)}") from error
    return parsed(whole)._replace(fragment=None).url


def after_seconds(text: str) -> float:
    """What ``Retry-After`` says, seconds or a moment; 0 when it says neither."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _shown(url: str) -> str:
    """As errors may have it."""
    return excerpt(url.partition("?")[0], QUOTED_CHARACTERS)


def _expire(late: threading.Event, wires: Wires) -> None:
    late.set()
    wires.shut()


def _origin(url: Url) -> tuple[str | None, str, int]:
    return url.scheme, (url.host or "").rstrip("."), url.port or PORTS[url.scheme or "http"]


def _is_below(url: Url, place: Url) -> bool:
    path, root = url.path or "/", (place.path or "").rstrip("/")
    return _origin(url) == _origin(place) and (path == root or path.startswith(f"{root}/"))


def _body(response: urllib3.BaseHTTPResponse, request: Request) -> bytes:
    """Raises CorruptError, UserError."""
    failed = not 200 <= response.status < 300
    limit = MOST_ERROR_BYTES if failed else MOST_BODY_BYTES
    chunks = response.stream(2**16, decode_content=False)
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in unpacked(chunks, response.headers.get("Content-Encoding", ""), limit):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                break
    except CorruptError as error:
        if not failed:
            raise CorruptError(f"{request}: {error}") from error
    if size > limit:
        response.close()
        if not failed:
            raise UserError(
                f"{request}: the answer is larger than {limit // 2**20} MiB: ask for less at once, "
                "with a parameter for the number of records in `query`"
            )
    return b"".join(pieces)


def _distrusts(error: BaseException | None) -> bool:
    """Whether a certificate is at the bottom of it."""
    while error is not None:
        inner = [error, *(arg for arg in error.args if isinstance(arg, BaseException))]
        if any(isinstance(one, SSLCertVerificationError) for one in inner):
            return True
        error = error.__cause__ or error.__context__
    return False
