"""A real HTTP server on loopback for polls, with scripted answers and a record of its requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from flumeng.connectors.polls.http_options import HttpPollSource
from flumeng.connectors.polls.http_poll import HttpPoll
from flumeng.connectors.polls.options import Answers, Schedule
from flumeng.platform.errors import FlumengError

DUE = datetime(2026, 11, 26, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Got:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class Said:
    """One answer. ``raw`` replaces all else; ``slowly`` is written byte by byte."""

    body: bytes = b"[]"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    slowly: float = 0.0


def said(content: Any, status: int = 200, **headers: str) -> Said:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Said(json.dumps(content).encode(), status, named)


def always(answer: Said) -> Callable[[Got], Said]:
    return lambda _: answer


class Server:
    """``answer`` is called for each request, in a thread of its own."""

    def __init__(self, answer: Callable[[Got], Said]) -> None:
        self.answer = answer
        self.got: list[Got] = []
        self.stopping = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: texts[-1] for name, texts in parse_qs(parts.query).items()}
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                got = Got(self.command, parts.path, query, dict(self.headers.items()), body)
                server.got.append(got)
                with suppress(OSError):
                    self._write(server.answer(got))

            def do_POST(self) -> None:
                self.do_GET()

            def _write(self, answer: Said) -> None:
                if answer.raw is not None:
                    self._dribble(answer.raw, answer.slowly)
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, text in answer.headers.items():
                    self.send_header(name, text)
                if answer.status != 304:
                    self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self._dribble(answer.body if answer.status != 304 else b"", answer.slowly)

            def _dribble(self, content: bytes, pause: float) -> None:
                if not pause:
                    self.wfile.write(content)
                    return
                for place in range(len(content)):
                    self.wfile.write(content[place : place + 1])
                    if server.stopping.wait(pause):
                        return

            def log_message(self, *_: object) -> None:
                """Nothing is logged."""

        return Handler


@contextmanager
def serving(answer: Callable[[Got], Said]) -> Iterator[Server]:
    server = Server(answer)
    try:
        yield server
    finally:
        server.close()


def source(url: str, **options: Any) -> HttpPollSource:
    shared: dict[str, Any] = {
        "schedule": Schedule(every_seconds=60),
        "answers": Answers(path="/tmp/never-written", shared=True),
    }
    return HttpPollSource(**{"url": url, **shared, **options})


@contextmanager
def polling(options: HttpPollSource) -> Iterator[HttpPoll]:
    poll = HttpPoll(options)
    try:
        yield poll
    finally:
        poll.close()


def answers(poll: HttpPoll, state: str = "", due: datetime = DUE) -> tuple[list[bytes], str, int]:
    """All bodies of a due time, the state after it, and the number of answers."""
    bodies: list[bytes] = []
    count = 0
    while True:
        answer = poll.ask(state, due)
        bodies += answer.bodies.to_pylist()
        state, count = answer.state, count + 1
        if not answer.more:
            return bodies, state, count


def later(minutes: float) -> datetime:
    return DUE + timedelta(minutes=minutes)


def ask_once(url: str, **options: Any) -> list[bytes]:
    with polling(source(url, **options)) as poll:
        return answers(poll)[0]


def error_of(url: str, **options: Any) -> FlumengError:
    """The error of a request that fails."""
    try:
        found = ask_once(url, **options)
    except FlumengError as error:
        return error
    raise AssertionError(f"no error, but {len(found)} records")
