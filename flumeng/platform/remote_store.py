"""Remote file stores: any file system of pyarrow, with credentials; S3 has time-outs. Object stores
have no rename: a copy shows a file at once, and may be repeated while its staged source exists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import fs

from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.options.locations import NAMES, parameters, store_of
from flumeng.platform.options.patterns import SECRET, split_query

OBJECT_STORES = ("s3", "gcs", "abfs")
RENAMES_AT_ONCE = 8
CONNECT_SECONDS = 5
SILENT_SECONDS = 5
"""The longest silence of a server in the middle of a request."""
ATTEMPTS = 3
S3_PARAMETERS = {"region": "region", "scheme": "scheme", "endpoint_override": "endpoint_override"}
S3_CREDENTIALS = {
    "access_key": "access_key",
    "secret_key": "secret_key",
    "session_token": "session_token",
    "role": "role_arn",
    "ca": "tls_ca_file_path",
}
_AWS = re.compile(r"AWS Error (\w+)(?: \(HTTP status (\d+)\))?")
_TO_BE_MENDED = {
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "INVALID_CLIENT_TOKEN_ID",
    "MISSING_AUTHENTICATION_TOKEN",
    "NO_SUCH_BUCKET",
    "NO_SUCH_KEY",
    "RESOURCE_NOT_FOUND",
    "SIGNATURE_DOES_NOT_MATCH",
    "UNRECOGNIZED_CLIENT",
}
_WORTH_WAITING = {408, 425, 429}

Resolve = Callable[[str], str]
"""Returns the secret for a reference, or raises UserError."""


def open_remote(location: str, resolve: Resolve) -> tuple[RemoteFileStore, str]:
    """Return the store of a URL and the path in it. Raises UserError, UnavailableError."""
    url, query = split_query(location)
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    values = tuple(sorted(revealed(query, resolve).items()))
    files, root = _connected(store_of(location), scheme, host, values)
    return files, (root + slash + path).rstrip("/")


def revealed(query: str, resolve: Resolve) -> dict[str, str]:
    """Return the parameters of a location's query, with secrets in place of references."""
    return {
        name: resolve(value) if SECRET.fullmatch(value) else value
        for name, value in parameters(query).items()
    }


@lru_cache(maxsize=32)
def _connected(
    store: str, scheme: str, host: str, values: tuple[tuple[str, str], ...]
) -> tuple[RemoteFileStore, str]:
    given = dict(values)
    name = f"{scheme}://{host}"
    try:
        if store == "s3":
            return RemoteFileStore(_s3(host, given), name), host
        if store == "abfs" and given.keys() & set(NAMES):
            files, root = _azure(host, given)
        else:
            query = "&".join(f"{key}={value}" for key, value in values)
            files, root = fs.FileSystem.from_uri(f"{name}?{query}" if query else name)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _explained(error, name) from error
    return RemoteFileStore(files, name), root


def _s3(bucket: str, given: Mapping[str, str]) -> fs.S3FileSystem:
    names = S3_PARAMETERS | S3_CREDENTIALS
    if unknown := sorted(given.keys() - names.keys()):
        raise ValueError(f"unknown parameters in the query: {', '.join(unknown)}")
    arguments = {names[name]: value for name, value in given.items()}
    if "region" not in arguments and "endpoint_override" not in arguments:
        arguments["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        **arguments,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=SILENT_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        allow_delayed_open=True,  # a small file then takes one request, not three
    )


def _azure(host: str, given: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    """Open ``CONTAINER@ACCOUNT.dfs.core.windows.net``; a query may name another endpoint."""
    container, _, server = host.rpartition("@")
    arguments: dict[str, Any] = dict(given)
    if "enable_tls" in arguments:
        scheme = "https" if arguments.pop("enable_tls") == "true" else "http"
        arguments |= {"blob_storage_scheme": scheme, "dfs_storage_scheme": scheme}
    return fs.AzureFileSystem(server.partition(".")[0], **arguments), container


class RemoteFileStore:
    """A remote ``FileStore``. ``name``: the store in messages, a URL without a path."""

    def __init__(self, filesystem: fs.FileSystem, name: str = "") -> None:
        self.files = filesystem
        self._name = name
        self._has_objects = filesystem.type_name in OBJECT_STORES

    def make_directory(self, path: str) -> None:
        if not self._has_objects:
            with self._reached():
                self.files.create_dir(path, recursive=True)

    def open_output(self, path: str) -> pa.NativeFile:
        with self._reached():
            return self.files.open_output_stream(path, compression=None)

    def sync(self, path: str) -> None:
        """Do nothing: closing a file makes it durable."""

    def rename(self, moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        for directory in sorted({target.rpartition("/")[0] for _, target in moves}):
            self.make_directory(directory)
        missing = []
        with ThreadPoolExecutor(RENAMES_AT_ONCE) as pool:
            for last in (False, True):
                some = [move for move in moves if is_marker(move) == last]
                done = list(pool.map(self._rename, some))
                missing += [move for move, there in zip(some, done, strict=True) if not there]
        return missing

    def exists(self, path: str) -> bool:
        with self._reached():
            (info,) = self.files.get_file_info([path])
        return bool(info.type != fs.FileType.NotFound)

    def directories(self, path: str) -> list[str]:
        with self._reached():
            infos = self.files.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def remove_tree(self, path: str) -> None:
        with suppress(FileNotFoundError), self._reached():
            self.files.delete_dir(path)

    def explained(self, error: OSError) -> Exception:
        return _explained(error, self._name)

    def _rename(self, move: tuple[str, str]) -> bool:
        source, target = move
        show = self.files.copy_file if self._has_objects else self.files.move
        try:
            show(source, target)
        except OSError as error:
            explained = self.explained(error)
            silent = self._has_objects and isinstance(explained, UnavailableError)
            if silent or self.exists(source):
                raise explained from error
            return self.exists(target)
        return True

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self.explained(error) from error


def is_marker(move: tuple[str, str]) -> bool:
    """Return whether a move is that of a marker: a file that announces other files."""
    return move[1].rpartition("/")[2].startswith("_")


def _explained(error: Exception, name: str) -> FlumengError:
    message = f"{name}: {str(error).partition(' (Request ID')[0]}"
    if not isinstance(error, OSError):
        return UserError(message)
    answer = _AWS.search(message)
    if answer is None:
        return UnavailableError(message)
    status = int(answer[2] or 0)
    refused = 400 <= status < 500 and status not in _WORTH_WAITING
    return (UserError if refused or answer[1] in _TO_BE_MENDED else UnavailableError)(message)
