"""Objects of a real S3 server that are done go where they are to be, and others stay."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from flumeng.connectors.objects.cleanup import Cleanup
from flumeng.connectors.objects.listing import Lister
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.control.snapshot.items import Item
from flumeng.platform.file_store import FileStore, open_store
from tests.testkit.servers.s3 import RealS3

KINDS = ("move", "delete")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealS3]:
    server = RealS3(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


class Folder:
    """A directory of its own in the bucket."""

    def __init__(self, server: RealS3, after: str) -> None:
        self._server, self._name = server, uuid.uuid4().hex
        self._paths = server.location(f"{self._name}/in/*")
        move_to = server.location(f"{self._name}/done") if after == "move" else None
        source: dict[str, Any] = {"paths": (self._paths,), "after": after, "move_to": move_to}
        self.source = ObjectsSource(**source)
        self.cleanup = Cleanup(self.source)

    def put(self, name: str, data: bytes) -> None:
        path = f"{self._server.bucket}/{self._name}/in/{name}"
        with self._server.files.open_output_stream(path, compression=None) as out:
            out.write(data)

    def items(self) -> list[Item]:
        found = (one for page in Lister(self._paths).listing() for one in page)
        return [
            Item(number, one.location, one.size, one.modified_us, one.tag)
            for number, one in enumerate(found)
        ]

    def there(self, part: str) -> list[str]:
        pages = Lister(self._server.location(f"{self._name}/{part}/*")).listing()
        return [one.name.rpartition("/")[2] for page in pages for one in page]


@pytest.fixture
def environment(server: RealS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("after", KINDS)
def test_object_rewritten_within_the_same_second_stays(server: RealS3, after: str) -> None:
    folder = Folder(server, after)
    folder.put("a", b"first\n")
    folder.put("b", b"first\n")
    done = folder.items()
    folder.put("b", b"other\n")
    assert folder.cleanup.clear(done) == ""
    assert folder.there("in") == ["b"]
    assert folder.there("done") == (["a"] if after == "move" else [])
    assert folder.cleanup.clear(done) == ""
    assert folder.cleanup.clear(folder.items()) == ""
    assert folder.there("in") == []


@pytest.mark.usefixtures("environment")
def test_object_rewritten_while_it_is_copied_stays(server: RealS3) -> None:
    folder = Folder(server, "move")
    folder.put("a", b"first\n")
    done = folder.items()

    def open_slow(location: str) -> tuple[Any, str]:
        store, path = open_store(location)
        return Slow(store, folder), path

    assert Cleanup(folder.source, open_slow).clear(done) == ""
    assert folder.there("in") == ["a"]


class Slow:
    """A store in which a writer rewrites each object right after it was copied."""

    def __init__(self, store: FileStore, folder: Folder) -> None:
        self._store, self._folder = store, folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def rename(self, moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
        missing = self._store.rename(moves)
        self._folder.put("a", b"other\n")
        return missing
