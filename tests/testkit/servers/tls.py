"""An authority and certificates of its own, and a TLS front before a server that has none."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

HOST = "127.0.0.1"
KEY = "-newkey rsa:2048 -nodes"


class Authority:
    """A CA in a directory: ``ca`` is its certificate."""

    def __init__(self, folder: Path, name: str = "flumeng test") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.ca = folder / "ca.pem"
        usage = "-addext keyUsage=critical,keyCertSign"
        make = f"req -x509 {KEY} {usage} -days 2 -keyout ca.key -out ca.pem -subj"
        _openssl(folder, *make.split(), f"/CN={name}")

    def issue(self, name: str) -> tuple[Path, Path]:
        """The files of a certificate for 127.0.0.1, with the common name ``name``, and its key."""
        names = f"-addext subjectAltName=IP:{HOST}"
        ask = f"req {KEY} {names} -subj /CN={name} -keyout {name}.key -out {name}.csr"
        _openssl(self._folder, *ask.split())
        sign = f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
        sign += f" -copy_extensions copy -out {name}.pem"
        _openssl(self._folder, *sign.split())
        return self._folder / f"{name}.pem", self._folder / f"{name}.key"


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


class TlsFront:
    """Takes TLS connections and forwards their bytes to ``port``."""

    def __init__(self, port: int, certificate: Path, key: Path) -> None:
        self._port = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="TLS front", daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            suppress(OSError),
            plain,
            self._context.wrap_socket(plain, server_side=True) as client,
            socket.create_connection((HOST, self._port)) as server,
        ):
            passed = threading.Thread(target=_pass, args=(client, server), daemon=True)
            passed.start()
            _pass(server, client)
            passed.join()


def _pass(source: socket.socket, target: socket.socket) -> None:
    """Forward bytes until one side ends."""
    with suppress(OSError):
        while content := source.recv(1 << 16):
            target.sendall(content)
    for side in (source, target):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
