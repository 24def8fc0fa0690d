"""A TCP proxy in front of an HTTP server that loses answers: requests arrive and are carried out,
and the client only sees its connection end."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress

HOST = "127.0.0.1"
CHUNK_BYTES = 256 * 1024


class LossyProxy:
    """``losing`` is the chance of each answer to be lost; it may be set from any thread."""

    def __init__(self, port: int, chance: random.Random | None = None) -> None:
        self.losing = 0.0
        self.lost = 0
        self._port = port
        self._chance = chance or random.Random()
        self._listener = socket.create_server((HOST, 0))
        self.address = f"http://{HOST}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="lossy proxy", daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection((HOST, self._port)) as server:
            asked = threading.Event()
            requests = threading.Thread(
                target=self._requests, args=(client, server, asked), daemon=True
            )
            requests.start()
            self._answers(server, client, asked)
            for side in (client, server):
                with suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)
            requests.join()

    def _requests(
        self, client: socket.socket, server: socket.socket, asked: threading.Event
    ) -> None:
        with suppress(OSError):
            while content := client.recv(CHUNK_BYTES):
                asked.set()
                server.sendall(content)
            server.shutdown(socket.SHUT_WR)

    def _answers(
        self, server: socket.socket, client: socket.socket, asked: threading.Event
    ) -> None:
        """Forward answers until one is lost."""
        while content := server.recv(CHUNK_BYTES):
            if asked.is_set():
                asked.clear()
                if self._chance.random() < self.losing:
                    self.lost += 1
                    return
            client.sendall(content)
