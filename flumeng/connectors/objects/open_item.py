"""An open item: its bytes while the object is unchanged since it was listed. Small items take one
request for identity and one for bytes, large ones are read in blocks. As stores may return a newer
object's bytes, identity is checked again afterwards, unless the tag is the bytes' MD5."""

from __future__ import annotations

import lzma
import os
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import md5
from pathlib import Path

import pyarrow as pa

from flumeng.connectors.objects.content import BEGINNING_BYTES
from flumeng.control.snapshot.items import Item
from flumeng.platform.errors import CorruptError, UnavailableError, UserError
from flumeng.platform.file_store import LOCAL, FileStore, open_store
from flumeng.platform.memory import require_memory
from flumeng.platform.options.patterns import split_query
from flumeng.platform.remote_store import Resolve

SMALL_BYTES = 1 << 20
BLOCK_BYTES = 4 << 20
_DAMAGE = (
    ValueError, TypeError, LookupError, ArithmeticError, AttributeError, EOFError, RecursionError,
    struct.error, zlib.error, lzma.LZMAError, pa.ArrowException,
)  # fmt: skip


class ChangedError(CorruptError):
    """The item is gone or rewritten; bytes read may be another object's."""


class OpenItem:
    """``Content`` of an item. Reading raises CorruptError for a missing, rewritten or damaged item,
    UserError without permission, UnavailableError when the store does not answer."""

    seekable = True

    def __init__(self, item: Item, store: FileStore, path: str, file: pa.NativeFile) -> None:
        self.item = item
        self._store = store
        self._path = path
        self._file = file
        self._whole: bytes | None = None
        self._beginning: bytes | None = None

    @classmethod
    def of(cls, item: Item, location: str, resolve: Resolve) -> OpenItem:
        """Open the item. ``location``: the item's, with references to its credentials."""
        store, path = open_store(location, resolve)
        with _explained(store):
            if store is LOCAL:
                return cls._local(item, store, path)
            file = store.files.open_input_file(path)
            _check_remote(item, store, path, file)
        opened = cls(item, store, path, file)
        if item.size <= SMALL_BYTES:
            data = opened.read_at(0, item.size) if item.size else b""
            if item.tag.strip('"') != md5(data, usedforsecurity=False).hexdigest():
                opened.check()
            opened._whole = data
            opened.close()
        return opened

    @classmethod
    def _local(cls, item: Item, store: FileStore, path: str) -> OpenItem:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check_local(item, os.fstat(descriptor))
            if item.size > SMALL_BYTES:
                return cls(item, store, path, pa.OSFile(path))
            opened = cls(item, store, path, None)
            opened._whole = os.read(descriptor, item.size)
            _check(item, len(opened._whole))
            _check_local(item, os.fstat(descriptor))
            return opened
        finally:
            os.close(descriptor)

    @property
    def name(self) -> str:
        return name_of(self.item)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def check(self) -> None:
        """Raise ChangedError when bytes read may be another object's. Call it after reading."""
        if self._whole is not None:
            return
        if self._store is LOCAL:
            _check_local(self.item, os.fstat(self._file.fileno()))
        else:
            check_there(self.item, self._store, self._path)

    def beginning(self, size: int) -> bytes:
        if self._beginning is None:
            self._beginning = self.read_at(0, min(BEGINNING_BYTES, self.item.size))
        return self._beginning[:size]

    def file(self) -> pa.NativeFile:
        return self._file if self._whole is None else pa.BufferReader(self._whole)

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        if self._whole is not None:
            if start < len(self._whole):
                yield self._whole[start:] if start else self._whole
            return
        with ThreadPoolExecutor(1, "objects") as pool:
            following = pool.submit(self._block, start)
            while block := following.result():
                start += len(block)
                following = pool.submit(self._block, start)
                yield block

    def _block(self, start: int) -> bytes:
        size = min(BLOCK_BYTES, self.item.size - start)
        return self.read_at(start, size) if size > 0 else b""

    def read_at(self, start: int, size: int) -> bytes:
        if self._whole is not None:
            return self._whole[start : start + size]
        with _explained(self._store):
            data: bytes = self._file.read_at(size, start)
        if len(data) < size:
            raise CorruptError("the object was truncated after it was listed")
        return data

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Convert errors; those that do not come from the store mean damage."""
        try:
            yield
        except OSError as error:
            if error.errno is None and "AWS Error" not in str(error):
                require_memory(error)
                raise CorruptError(f"the content is damaged: {error}") from error
            with _explained(self._store):
                raise
        except MemoryError:  # also one of Arrow's exceptions
            raise
        except _DAMAGE as error:
            raise CorruptError(f"the content is damaged: {error}") from error


def name_of(item: Item) -> str:
    """Return the location without store parameters, for people and the attribute ``path``."""
    return split_query(item.location)[0]


def check_there(item: Item, store: FileStore, path: str) -> None:
    """Raise ChangedError when the item changed since it was listed; other errors as by reading."""
    with _explained(store):
        if store is LOCAL:
            _check_local(item, Path(path).stat())
            return
        with store.files.open_input_file(path) as file:
            _check_remote(item, store, path, file)


@contextmanager
def _explained(store: FileStore) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ChangedError("the object was deleted after it was listed") from error
    except PermissionError as error:
        raise UserError(f"no permission to read the file: {error.strerror or error}") from error
    except OSError as error:
        explained = store.explained(error)
        if isinstance(explained, OSError):
            raise UnavailableError(str(error)) from error
        raise explained from error


def _check_remote(item: Item, store: FileStore, path: str, file: pa.NativeFile) -> None:
    metadata: dict[str, bytes] = file.metadata() or {}
    headers = {name.lower(): value.decode("utf-8", "replace") for name, value in metadata.items()}
    tag = headers.get("etag", "").strip('"')
    if item.tag and tag:
        _check(item, file.size(), tag=tag)
        return
    with suppress(KeyError, ValueError):
        seconds = int(datetime.fromisoformat(headers["last-modified"]).timestamp())
        _check(item, file.size(), item.modified_us % 1_000_000 + seconds * 1_000_000)
        return
    (info,) = store.files.get_file_info([path])
    _check(item, file.size(), None if info.mtime_ns is None else info.mtime_ns // 1000)


def _check_local(item: Item, status: os.stat_result) -> None:
    _check(item, status.st_size, status.st_mtime_ns // 1000)


def _check(item: Item, size: int, modified_us: int | None = None, tag: str | None = None) -> None:
    modified = item.modified_us if modified_us is None else modified_us
    etag = item.tag.strip('"') if tag is None else tag
    if (size, modified, etag) != (item.size, item.modified_us, item.tag.strip('"')):
        raise ChangedError("the object was rewritten after it was listed")
