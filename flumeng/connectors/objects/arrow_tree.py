"""Stores listed through pyarrow: GCS, Azure, HDFS. pyarrow gives whole directories, about 300 bytes
an object in memory, and no ETags.
"""

from __future__ import annotations

from pyarrow import fs

from flumeng.connectors.objects.pages import Listed, Page, Request
from flumeng.platform.file_store import FileStore
from flumeng.platform.remote_store import OBJECT_STORES


class ArrowTree:
    """Locations are ``head``, the path below ``root``, and ``tail``."""

    def __init__(self, store: FileStore, root: str, head: str, tail: str) -> None:
        self._store = store
        self._root = root
        self._head = head
        self._tail = tail
        self.lasting = store.files.type_name not in OBJECT_STORES

    def page(self, request: Request) -> Page:
        scope = request.scope
        page = Page()
        for name, info in self._infos(request):
            path = request.within + name
            one: Listed | Request
            if info.type == fs.FileType.Directory:
                below = scope.below(info.base_name)
                if below is None or not request.wants_below(path):
                    continue
                one = request.into(below)
            elif scope.takes(name) and request.wants(path):
                location = f"{self._head}{path}{self._tail}"
                one = Listed(location, info.size or 0, (info.mtime_ns or 0) // 1000)
            else:
                continue
            if "?" in name:
                page.unnamed.append(ascii(self._head + path))
            else:
                page.found.append(one)
        return page

    def _infos(self, request: Request) -> list[tuple[str, fs.FileInfo]]:
        """The names in the directory, sorted; those of directories end in a slash."""
        directory = f"{self._root}/{request.scope.directory}"
        selector = fs.FileSelector(directory if request.scope.directory else self._root or "/")
        try:
            infos = self._store.files.get_file_info(selector)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise self._store.explained(error) from error
        slash = {fs.FileType.Directory: "/"}
        named = [
            (info.base_name + slash.get(info.type, ""), info)
            for info in infos
            if info.type != fs.FileType.NotFound
        ]
        return sorted(named, key=lambda one: one[0])
