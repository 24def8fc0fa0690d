"""A real OpenID provider: ``oidc-provider`` of npm, fetched once into the cache of the tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from flumeng.platform.errors import UnavailableError, UserError
from tests.testkit.servers.maven import cache
from tests.testkit.servers.server_process import ServerProcess, listens

PACKAGE = "oidc-provider@9"
FETCH_SECONDS = 300
PROGRAM = Path(__file__).with_name("oidc_provider.mjs")


def modules() -> Path:
    """A directory with the package. Raises UserError without npm, UnavailableError when the
    package cannot be fetched."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise UserError("node and npm are needed to run oidc-provider")
    target = cache() / "npm" / PACKAGE
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                _fetch(npm, Path(scratch))
                Path(scratch).rename(target)
                Path(scratch).mkdir()  # for its removal
    return target


def _fetch(npm: str, scratch: Path) -> None:
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", PACKAGE]
    try:
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{PACKAGE} was not fetched in {FETCH_SECONDS} s") from error
    if done.returncode:
        raise UnavailableError(f"{PACKAGE} cannot be fetched: {done.stderr[-500:]}")


class RealOidc(ServerProcess):
    """A provider with one client. ``people``: their groups by e-mail address; each logs in by
    writing the address."""

    name = "oidc-provider"
    variable = "FLUMENG_TEST_OIDC"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "oidc.log")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.issuer = f"http://127.0.0.1:{self.port}"
        self.client_id, self.secret = "console", "the client's secret & more"

    def start(self, redirect: str, people: str) -> None:
        """Start it. ``redirect``: the console's callback; ``people``: JSON."""
        node = shutil.which("node")
        assert node is not None
        environment = {
            **os.environ,
            "MODULES": str(modules() / "node_modules"),
            "ISSUER": self.issuer,
            "PORT": str(self.port),
            "CLIENT_ID": self.client_id,
            "CLIENT_SECRET": self.secret,
            "REDIRECT": redirect,
            "PEOPLE": people,
        }
        self._launch([node, str(PROGRAM)], env=environment)
        self._wait(lambda: listens(f"127.0.0.1:{self.port}"), 30)
