"""A real S3 server on a free port: versitygw where it is to be had, else moto's.

versitygw is a compiled gateway to files; it checks signatures, is fast and keeps its objects over a
kill. It is taken from the path or from the cache; ``build`` brings it there where Go is. moto keeps
all in memory and believes any credentials. ``FLUMENG_TEST_S3=http://HOST:PORT`` names a server that
runs already, with the credentials of the environment (``AWS_ACCESS_KEY_ID`` and so on).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

from pyarrow import fs

from flumeng.agent.standalone.embedded import free_port
from tests.testkit.servers.maven import cache
from tests.testkit.servers.server_process import ServerProcess, listens

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
ACCESS_KEY, SECRET_KEY = "flumeng-test", "never-a-secret"
REGION = "us-east-1"


class RealS3(ServerProcess):
    """One server with one bucket of its own."""

    name = "the S3 server"
    variable = "FLUMENG_TEST_S3"

    def __init__(self, data: Path) -> None:
        super().__init__(data / "server.log")
        self.address = (self.given or f"http://127.0.0.1:{free_port()}").partition("://")[2]
        self.access_key = os.environ["AWS_ACCESS_KEY_ID"] if self.given else ACCESS_KEY
        self.secret_key = os.environ["AWS_SECRET_ACCESS_KEY"] if self.given else SECRET_KEY
        self.bucket = f"lake-{uuid.uuid4().hex[:12]}"
        self._data = data
        self._versitygw = find()

    @property
    def keeps(self) -> bool:
        """Whether objects survive ``kill`` and ``start``."""
        return self.given is None and self._versitygw is not None

    @property
    def environment(self) -> dict[str, str]:
        """The credentials in the variables that clients read."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}

    @property
    def endpoint(self) -> str:
        return f"{self._scheme}://{self.address}"

    @property
    def files(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            region=REGION,
            endpoint_override=self.address,
            scheme=self._scheme,
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )

    def location(self, path: str) -> str:
        """The URL of ``path`` in the bucket, for a flow."""
        query = f"endpoint_override={self.address}&scheme={self._scheme}&region={REGION}"
        return f"s3a://{self.bucket}/{path}?{query}"

    def start(self, *, wait_seconds: float = 30.0) -> None:
        """Start, and return when the server answers and has the bucket."""
        if self.given is None:
            self._launch(self._command())
            self._wait(lambda: listens(self.address), wait_seconds)
        self.files.create_dir(self.bucket)

    def stop(self) -> None:
        if self.given is not None:
            self.files.delete_dir(self.bucket)
        super().stop()

    @property
    def _scheme(self) -> str:
        return (self.given or "http").partition("://")[0]

    def _command(self) -> list[str]:
        objects = self._data / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        host, _, port = self.address.partition(":")
        if self._versitygw is None:
            return [sys.executable, "-m", "moto.server", "-H", host, "-p", port]
        keys = ["--access", self.access_key, "--secret", self.secret_key]
        return [self._versitygw, *keys, "--port", self.address, "posix", str(objects)]


def find() -> str | None:
    """versitygw, on the path or in the cache."""
    return shutil.which("versitygw") or shutil.which("versitygw", path=str(cache() / "bin"))


def build() -> str | None:
    """The same; built by Go where that is installed, once, in about two minutes."""
    if find() is None and shutil.which("go"):
        environment = {**os.environ, "GOBIN": str((cache() / "bin").resolve())}
        subprocess.run(["go", "install", VERSITYGW], env=environment, check=True)
    return find()
