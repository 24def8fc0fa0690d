"""Where tests put objects that a flow reads: a directory of this host, or a real S3 server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.testkit.servers.s3 import REGION, RealS3

CONNECTIONS = 32
ATTEMPTS = 10
"""Wait for a server that is frozen for half a minute."""


class Place(Protocol):
    """A store with the folder ``in``, which flows read, and ``done``, to which they move objects.

    Object names have a directory. Thread-safe.
    """

    paths: str
    """The glob that flows read."""
    move_to: str

    def put(self, name: str, data: bytes) -> None:
        """Write the object into ``in`` at once and whole, also over an existing one."""

    def remove(self, name: str) -> None:
        """Remove it from ``in``; a missing one is ignored."""

    def has(self, name: str) -> bool:
        """Whether it is in ``in``."""

    def get(self, part: str, name: str) -> bytes: ...

    def names(self, part: str) -> set[str]: ...


class Directory:
    """See ``Place``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "in").mkdir(parents=True)
        self.paths = f"{folder}/in/*/*"
        self.move_to = f"{folder}/done"

    def put(self, name: str, data: bytes) -> None:
        directory, _, last = name.partition("/")
        (self._folder / "in" / directory).mkdir(exist_ok=True)
        hidden = self._folder / "in" / directory / f".{last}"
        hidden.write_bytes(data)
        hidden.rename(self._folder / "in" / name)

    def remove(self, name: str) -> None:
        (self._folder / "in" / name).unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        return (self._folder / "in" / name).exists()

    def get(self, part: str, name: str) -> bytes:
        return (self._folder / part / name).read_bytes()

    def names(self, part: str) -> set[str]:
        return {"/".join(path.parts[-2:]) for path in (self._folder / part).glob("*/*")}


class Bucket:
    """See ``Place``. The server is the test's to freeze."""

    def __init__(self, server: RealS3) -> None:
        self.server = server
        self.paths, self.move_to = server.location("in/*/*"), server.location("done")
        self._client: Any = botocore.session.Session().create_client(
            "s3",
            region_name=REGION,
            endpoint_url=server.endpoint,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
            config=Config(
                s3={"addressing_style": "path"},
                max_pool_connections=CONNECTIONS,
                read_timeout=60,
                retries={"total_max_attempts": ATTEMPTS},
            ),
        )

    def put(self, name: str, data: bytes) -> None:
        self._client.put_object(Bucket=self.server.bucket, Key=f"in/{name}", Body=data)

    def remove(self, name: str) -> None:
        self._client.delete_object(Bucket=self.server.bucket, Key=f"in/{name}")

    def has(self, name: str) -> bool:
        try:
            self._client.head_object(Bucket=self.server.bucket, Key=f"in/{name}")
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return False
            raise
        return True

    def get(self, part: str, name: str) -> bytes:
        found = self._client.get_object(Bucket=self.server.bucket, Key=f"{part}/{name}")
        data: bytes = found["Body"].read()
        return data

    def names(self, part: str) -> set[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.server.bucket, Prefix=f"{part}/"
        )
        keys = (one["Key"] for page in pages for one in page.get("Contents", ()))
        return {key.removeprefix(f"{part}/") for key in keys if not key.endswith("/")}
