"""Buckets of seen objects as files, each written once under a new name. A file is durable before
ZooKeeper has its name. Unnamed files are removed later."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyarrow import fs

from flumeng.platform.file_store import below, open_store, store_errors
from flumeng.platform.options.patterns import split_query

AT_ONCE = 8


class SeenFiles:
    """The files of one queue, below ``location``. Methods raise UserError, UnavailableError."""

    def __init__(self, location: str, flow: str, queue: str) -> None:
        directory = below(location, f"_seen.{flow}.{queue}")  # hidden: it may lie among objects
        self._store, self._directory = open_store(directory)
        self._name = split_query(directory)[0]
        self._made = False

    def write(self, buckets: Mapping[str, bytes]) -> dict[str, str]:
        """Write buckets. Returns the name of each bucket's durable file."""
        names = {bucket: f"{bucket}.{uuid.uuid4().hex}" for bucket in buckets}
        if not buckets:
            return names
        with store_errors(self._store, self._name):
            if not self._made:
                self._store.make_directory(self._directory)
                self._made = True
            with ThreadPoolExecutor(AT_ONCE, "seen") as pool:
                list(pool.map(self._write, names.values(), buckets.values()))
            self._store.sync(self._directory)
        return names

    def read(self, names: Collection[str]) -> dict[str, bytes]:
        """Return the contents by name; omits missing files."""
        with ThreadPoolExecutor(AT_ONCE, "seen") as pool:
            contents = dict(zip(names, pool.map(self._read, names), strict=True))
        return {name: data for name, data in contents.items() if data is not None}

    def names(self) -> set[str]:
        selector = fs.FileSelector(self._directory, allow_not_found=True)
        with store_errors(self._store, self._name):
            return {info.base_name for info in self._store.files.get_file_info(selector)}

    def remove(self, names: Iterable[str]) -> None:
        with store_errors(self._store, self._name):
            for name in names:
                with suppress(FileNotFoundError):
                    self._store.files.delete_file(self.path(name))

    def path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _write(self, name: str, data: bytes) -> None:
        with self._store.open_output(self.path(name)) as file:
            file.write(data)
        self._store.sync(self.path(name))

    def _read(self, name: str) -> bytes | None:
        with store_errors(self._store, self._name), suppress(FileNotFoundError):
            return bytes(self._store.files.open_input_file(self.path(name)).readall())
        return None
