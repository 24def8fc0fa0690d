"""Objects of a real S3 server are read as they were listed, in few requests, or not at all."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from flumeng.agent.standalone.embedded import free_port
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.objects.open_item import BLOCK_BYTES
from flumeng.connectors.objects.options import Format, ObjectsSource
from flumeng.connectors.objects.reader import ObjectsReader
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item, offset_of
from flumeng.platform.options.locations import Credentials
from tests.testkit.servers.s3 import RealS3

LANE = "web.objects.0"
KEYS = Credentials(access_key="${secret:lake-id}", secret_key="${secret:lake-key}")
LINES = [b"%d GET /%d" % (n, n * n) for n in range(400_000)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealS3]:
    server = RealS3(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def folder(server: RealS3, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_ID", server.access_key)
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", server.secret_key)
    return uuid.uuid4().hex


def put(server: RealS3, path: str, data: bytes, number: int = 0) -> Item:
    """Put the object; returns its item."""
    files, key = server.files, f"{server.bucket}/{path}"
    with files.open_output_stream(key, compression=None) as out:
        out.write(data)
    (info,) = files.get_file_info([key])
    assert info.type == fs.FileType.File
    return Item(number, server.location(path), info.size, info.mtime_ns // 1000)


def reader(server: RealS3, form: Format = "lines") -> ObjectsReader:
    paths = (server.location("*"),)
    return ObjectsReader.of(ObjectsSource(paths=paths, format=form, credentials=KEYS))


def bodies(of: ObjectsReader, found: list[Item], start: int = 0, end: int = 0) -> list[bytes]:
    piece = Range(LANE, start, end or found[-1].end)
    return [
        body for batch in of.read(piece, items.encode(found)) for body in batch["body"].to_pylist()
    ]


def test_large_object_is_read_in_blocks_for_any_cut(
    server: RealS3, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = reader(server)
    monkeypatch.delenv(
        "FLUMENG_SECRET_LAKE_KEY"
    )  # an executor only has the secrets that it is given
    item = put(server, f"{folder}/a.log", b"\n".join(LINES))
    assert item.size > BLOCK_BYTES
    middle = item.size // 2
    first, second = bodies(of, [item], 0, middle), bodies(of, [item], middle)
    assert first + second == LINES
    assert len(first) == pytest.approx(len(LINES) / 2, rel=0.1)


def test_compressed_objects_and_rows_are_read(server: RealS3, folder: str) -> None:
    item = put(server, f"{folder}/a.gz", gzip.compress(b"\n".join(LINES), 1))
    assert bodies(reader(server), [item]) == LINES
    out = io.BytesIO()
    pq.write_table(pa.table({"n": range(50_000)}), out, row_group_size=20_000)
    item = put(server, f"{folder}/a.parquet", out.getvalue())
    found = bodies(reader(server, "parquet"), [item], 30_000)
    assert found == [b'{"n":%d}' % n for n in range(30_000, 50_000)]


def test_many_small_objects_are_one_batch(server: RealS3, folder: str) -> None:
    found = [put(server, f"{folder}/{n}", b"%d\n" % n, n) for n in range(60)]
    (batch,) = reader(server).read(Range(LANE, 0, found[-1].end), items.encode(found))
    assert batch["body"].to_pylist() == [b"%d" % n for n in range(60)]
    paths = [dict(attrs)["path"] for attrs in batch["attrs"].to_pylist()]
    assert paths == [f"s3a://{server.bucket}/{folder}/{n}" for n in range(60)]


def test_missing_or_rewritten_object_is_unreadable(server: RealS3, folder: str) -> None:
    found = [put(server, f"{folder}/{n}", b"%d\n" % n, n) for n in range(3)]
    read = partial(bodies, reader(server))
    other = replace(found[1], tag="other")
    with pytest.raises(UnreadableError, match="was rewritten after it was listed") as told:
        read([found[0], other, found[2]])
    assert told.value.offset == offset_of(1)
    older = replace(found[1], modified_us=found[1].modified_us - 5_000_000)
    with pytest.raises(UnreadableError, match="was rewritten"):
        read([older])
    server.files.delete_file(f"{server.bucket}/{folder}/1")
    with pytest.raises(UnreadableError, match="deleted after it was listed") as told:
        read(found)
    assert told.value.damaged
    assert told.value.offset == offset_of(1)
    assert str(told.value.why).startswith(f"s3a://{server.bucket}/{folder}/1: ")
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("packed", [False, True])
def test_object_rewritten_while_it_is_read_yields_no_acked_lines(
    server: RealS3, folder: str, packed: bool
) -> None:
    """Else lines of the other object would be read twice, and one would be of both."""
    old = b"".join(b"%d old\n" % n for n in range(3_000_000))
    data = gzip.compress(os.urandom(2 * BLOCK_BYTES), 0) if packed else old
    item = put(server, f"{folder}/a", data)
    with server.files.open_input_file(f"{server.bucket}/{folder}/a") as file:
        item = replace(item, tag=file.metadata()["ETag"].decode().strip('"'))
    assert item.size > 2 * BLOCK_BYTES
    batches = reader(server).read(Range(LANE, 0, item.end), items.encode([item]))
    next(batches)
    put(server, f"{folder}/a", data[::-1])
    with pytest.raises(UnreadableError, match="was rewritten after it was listed") as told:
        list(batches)
    assert told.value.damaged
    assert told.value.offset == 0


def test_unreachable_server_is_not_reported_as_damage(server: RealS3, folder: str) -> None:
    item = put(server, f"{folder}/a", b"a\n")
    location = item.location.replace(server.address, f"127.0.0.1:{free_port()}")
    with pytest.raises(UnreadableError) as told:
        bodies(reader(server), [replace(item, location=location)])
    assert not told.value.damaged
    assert told.value.offset == 0


def test_members_of_archives_are_read_in_few_requests(server: RealS3, folder: str) -> None:
    whole = b"\n".join(LINES) + b"\n"
    tarred, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w:gz", compresslevel=1) as archive:
        info = tarfile.TarInfo("a.log")
        info.size = len(whole)
        archive.addfile(info, io.BytesIO(whole))
    with zipfile.ZipFile(zipped, "w") as directory:
        directory.writestr("a.log", whole)
        directory.writestr("b.log.gz", gzip.compress(b"one\n"))
    item = put(server, f"{folder}/a.tgz", tarred.getvalue())
    assert bodies(reader(server), [item]) == LINES
    item = put(server, f"{folder}/a.zip", zipped.getvalue())
    assert item.size > BLOCK_BYTES
    assert bodies(reader(server), [item]) == [*LINES, b"one"]
    (*_, last) = reader(server).read(Range(LANE, 0, item.end), items.encode([item]))
    (*_, attrs) = last["attrs"].to_pylist()
    assert dict(attrs)["path"] == f"s3a://{server.bucket}/{folder}/a.zip!/b.log.gz"
