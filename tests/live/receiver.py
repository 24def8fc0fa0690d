"""A receiver of requests that takes each key once, as a file, and gives scripted answers.

    python -m tests.live.receiver FOLDER PORT

runs one as a process, to be stopped and killed.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Reply:
    """The reply to one request instead of taking it. ``lost``: it is taken without an answer."""

    status: int = 503
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    lost: bool = False


class Receiver(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.folder = folder
        self.replies: list[Reply] = []
        self.keys: list[str] = []
        """The keys of all requests, in order."""
        self.headers: list[dict[str, str]] = []
        self.most_bytes = 1 << 30
        self.url = f"http://127.0.0.1:{self.server_port}/events"
        folder.mkdir(exist_ok=True)

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def take(self, key: str, body: bytes) -> None:
        """Store the events durably, once for each key."""
        file = self.folder / key
        if not file.exists():
            scratch = self.folder / f".{uuid.uuid4().hex}"
            scratch.write_bytes(body)
            scratch.rename(file)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Idempotency-Key"]
        self.server.keys.append(key)
        self.server.headers.append(dict(self.headers))
        reply = self.server.replies.pop(0) if self.server.replies else Reply(200)
        if len(body) > self.server.most_bytes:
            reply = Reply(413)
        if reply.lost or reply.status == 200:
            self.server.take(key, self._plain(body))
        if reply.lost:
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(reply.status)
        for name, value in (*reply.headers, ("Content-Length", str(len(reply.body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    do_PUT = do_POST  # noqa: N815  as the base class calls it

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _plain(self, body: bytes) -> bytes:
        match self.headers["Content-Encoding"]:
            case "gzip":
                return gzip.decompress(body)
            case "zstd":
                with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
                    return bytes(stream.read())
            case _:
                return body


def taken(folder: Path) -> list[dict[str, Any]]:
    """The events of all requests that were taken."""
    found: list[dict[str, Any]] = []
    for file in folder.iterdir():
        if file.name.startswith("."):  # one that is being written
            continue
        text = file.read_bytes()
        found += json.loads(text) if text.startswith(b"[") else map(json.loads, text.splitlines())
    return found


if __name__ == "__main__":
    print(os.getpid(), flush=True)
    Receiver(Path(sys.argv[1]), int(sys.argv[2])).serve_forever()
