"""Members of archives: each line of each once, however ranges are cut, and no archive does harm."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import struct
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.objects import lines
from flumeng.connectors.objects.archives import parts_of_members
from flumeng.connectors.objects.compression import content_of
from flumeng.connectors.objects.content import Allowance, Content
from flumeng.connectors.objects.formats import Part, Segment, cuttable
from flumeng.connectors.objects.open_item import OpenItem
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.objects.reader import ObjectsReader
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import MOST_POSITION, Item, position_of
from flumeng.platform.errors import CorruptError

LANE = "web.objects.0"
SOURCE = ObjectsSource(paths=("/in/*",))
WRITTEN = 1_700_000_000
Event = tuple[int, str, bytes]
"""Offset, member and body."""


def listed(path: Path, number: int = 0) -> Item:
    status = path.stat()
    return Item(number, str(path), status.st_size, status.st_mtime_ns // 1000)


def written(path: Path, data: bytes, number: int = 0) -> Item:
    path.write_bytes(data)
    return listed(path, number)


def tar(files: Mapping[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), WRITTEN
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


PACK: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "tar": tar,
    "tar.gz": lambda files: gzip.compress(tar(files)),
    "tgz": lambda files: gzip.compress(tar(files, tarfile.GNU_FORMAT)),
    "tar.bz2": lambda files: bz2.compress(tar(files, tarfile.USTAR_FORMAT)),
    "tar.xz": lambda files: lzma.compress(tar(files)),
    "tar.zst": lambda files: zstd(tar(files)),
    "zip": zipped,
    "jar": lambda files: zipped(files, zipfile.ZIP_STORED),
    "bin": lambda files: gzip.compress(tar(files)),
}


def reading(
    found: list[Item], start: int = 0, end: int | None = None, **options: Any
) -> Iterator[dict[str, Any]]:
    reader = ObjectsReader.of(ObjectsSource(paths=("/in/*",), **options))
    piece = Range(LANE, start, found[-1].end if end is None else end)
    for batch in reader.read(piece, items.encode(found)):
        batch.validate(full=True)
        yield from batch.to_pylist()


def events(
    found: list[Item], start: int = 0, end: int | None = None, **options: Any
) -> list[Event]:
    return [
        (event["seq"], dict(event["attrs"])["path"].partition("!/")[2], event["body"])
        for event in reading(found, start, end, **options)
    ]


def until_damage(item: Item, start: int = 0, **options: Any) -> tuple[list[Event], UnreadableError]:
    got: list[Event] = []
    with pytest.raises(UnreadableError) as told:
        for event in reading([item], start, **options):
            member = dict(event["attrs"])["path"].partition("!/")[2]
            got.append((event["seq"], member, event["body"]))
    assert told.value.damaged
    return got, told.value


def lines_of(files: Mapping[str, bytes], start: int = 0) -> list[Event]:
    """The expected events, computed in the simplest way."""
    found = []
    for name, data in files.items():
        for line in data.splitlines(keepends=True):
            found.append((start, name, line.rstrip(b"\n")))
            start += len(line)
    return found


FILES = {
    "a.log": b"".join(b"a %d\n" % n for n in range(3_000)),
    "sub/empty.log": b"",
    "sub/no end.log": b"one\ntwo",
    "x/" * 80 + "long name \xfc.log": b"long\n",
    "sub/b.log": os.urandom(1 << 20).replace(b"\n", b"-").replace(b"\r", b"-") + b"\nlast\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACK)
def test_lines_of_all_members_follow_each_other(tmp_path: Path, kind: str) -> None:
    item = written(tmp_path / f"a.{kind}", PACK[kind](FILES))
    expected = lines_of(FILES)
    assert events([item]) == expected
    assert cuttable(ObjectsSource(paths=("/in/*",)))(item.location) == (kind in ("bin", "jar"))
    cuts = sorted({0, item.end, *(expected[n][0] for n in (1500, 2999, 3000, -2))})
    assert [each for cut in pairwise(cuts) for each in events([item], *cut)] == expected


names = st.text("ab/ü-", max_size=6).map("f{}x.log".format)
text = st.lists(st.sampled_from([b"", b"a", b"bc", "ü".encode()]), max_size=5).map(b"\n".join)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_each_archive_line_is_read_once_for_any_ranges(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cuts")
    found, expected = [], []
    for number in range(data.draw(st.integers(1, 3))):
        files = data.draw(st.dictionaries(names, text, min_size=1, max_size=4))
        kind = data.draw(st.sampled_from([kind for kind in PACK if "xz" not in kind]))
        item = written(path / f"{number}.{kind}", PACK[kind](files), number)
        found.append(item)
        expected += [(seq, body) for seq, _, body in lines_of(files, item.start)]
    places = [(seq, position_of(seq)) for seq, _ in expected]
    near = st.builds(
        lambda place, by: max(0, place[0] + by), st.sampled_from([(0, 0), *places]),
        st.integers(-2, 3),
    )  # fmt: skip
    cuts = sorted({0, found[-1].end, *data.draw(st.lists(near, max_size=6))})
    got = [(seq, body) for cut in pairwise(cuts) for seq, _, body in events(found, *cut)]
    assert got == expected


def test_event_has_the_path_and_time_of_its_archive_member(tmp_path: Path) -> None:
    item = written(tmp_path / "a.tar.gz", PACK["tar.gz"]({"./in/a.log": b"1\n"}))
    (event,) = reading([item])
    assert dict(event["attrs"]) == {"path": f"{item.location}!/in/a.log"}
    assert event["ts"].timestamp() == WRITTEN
    item = written(tmp_path / "a.zip", zipped({"../../etc/passwd": b"1\n", "/abs": b"2\n"}))
    found = list(reading([item]))
    inside = [dict(event["attrs"])["path"].partition("!")[2] for event in found]
    assert inside == ["/../../etc/passwd", "/abs"]
    assert {event["ts"].timestamp() for event in found} == {item.modified_us / 1e6}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.tar.gz", "a.zip"]


TOOLS = {
    "gnu.tar": "tar --format=gnu -cf {out} -C {src} .",
    "pax.tar.gz": "tar --format=pax -czf {out} -C {src} .",
    "sparse-gnu.tar": "tar --format=gnu -cSf {out} -C {src} .",
    "sparse-oldgnu.tar": "tar --format=oldgnu -cSf {out} -C {src} .",
    "sparse-1.0.tar.xz": "tar --format=pax -cSJf {out} -C {src} .",
    "sparse-0.1.tar": "tar --format=pax --sparse-version=0.1 -cSf {out} -C {src} .",
    "sparse-0.0.tar": "tar --format=pax --sparse-version=0.0 -cSf {out} -C {src} .",
    "ustar.tar.bz2": "tar --format=ustar --exclude='long*' -cjf {out} -C {src} .",
    "old.tar": "tar --format=v7 --exclude='long*' --exclude=pipe -cf {out} -C {src} .",
    "info.zip": "cd {src} && rm pipe && zip -qry {out} .",
    "stored.zip": "cd {src} && rm pipe && zip -q0ry {out} .",
    "64.zip": "cd {src} && rm pipe && zip -qry -fz {out} .",
    "streamed.zip": "cd {src} && rm pipe link && zip -qr - . | cat > {out}",
    "java.jar": "cd {src} && rm pipe link && jar cf {out} .",
}


@pytest.mark.slow
@pytest.mark.parametrize("archive", TOOLS)
def test_archives_of_common_tools_are_read(tmp_path: Path, archive: str) -> None:
    source, out = tmp_path / "source", tmp_path / archive
    (source / "sub").mkdir(parents=True)
    files = {
        "a.log": b"a1\na2\n", "sub/b.log": b"b1\nb2", "c.log.gz": b"c\n" * 100, "none.log": b"",
        "long" * 50 + ".log": b"long\n", "sparse.log": b"\0" * (3 << 20) + b"\nend\n",
    }  # fmt: skip
    for name, data in files.items():
        packed = gzip.compress(data) if name.endswith(".gz") else data
        (source / name).write_bytes(packed)
    with (source / "sparse.log").open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 4096)
        file.truncate(0)
        file.seek(3 << 20)
        file.write(b"\nend\n")
    (source / "link").symlink_to("a.log")
    os.mkfifo(source / "pipe")
    (source / "._a.log").write_bytes(b"of a Mac")
    (source / "sub" / "_temporary").mkdir()
    (source / "sub" / "_temporary" / "x.log").write_bytes(b"in progress")
    (source / "sub._COPYING_").mkdir()
    (source / "sub._COPYING_" / "x.log").write_bytes(b"in progress")
    subprocess.run(TOOLS[archive].format(src=source, out=out), shell=True, check=True)
    found = events([listed(out)])
    assert len({seq for seq, _, _ in found}) == len(found)
    got: dict[str, list[bytes]] = {}
    for _, name, body in found:
        got.setdefault(name, []).append(body)
    got.pop("META-INF/MANIFEST.MF", None)
    expected = {name: data.splitlines() for name, data in files.items() if data}
    if "long*" in TOOLS[archive]:
        del expected["long" * 50 + ".log"]
    assert got == expected


def rows(n: int) -> list[dict[str, Any]]:
    return [{"n": each, "text": f"row {each}"} for each in range(n)]


def as_csv(found: list[dict[str, Any]]) -> bytes:
    return b"n,text\n" + b"".join(b"%d,%s\n" % (r["n"], r["text"].encode()) for r in found)


def as_parquet(found: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(found), out, row_group_size=7)
    return out.getvalue()


def as_avro(found: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    fields = [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]
    fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, found)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
@pytest.mark.parametrize(
    ("form", "write"),
    [
        ("csv", as_csv), ("parquet", as_parquet), ("avro", as_avro),
        ("json", lambda found: json.dumps(found).encode()),
        ("ndjson", lambda found: b"".join(json.dumps(r).encode() + b"\n" for r in found)),
    ],
)  # fmt: skip
def test_archive_members_of_all_formats_are_read(
    tmp_path: Path, kind: str, form: Any, write: Callable[[list[dict[str, Any]]], bytes]
) -> None:
    files = {"a": write(rows(20)), "none": b"", "b.gz": gzip.compress(write(rows(15)))}
    item = written(tmp_path / f"a.{kind}", PACK[kind](files))
    found = events([item], format=form)
    told = [(name, int(json.loads(body)["n"])) for _, name, body in found]
    assert told == [*(("a", n) for n in range(20)), *(("b.gz", n) for n in range(15))]
    places = [seq for seq, _, _ in found]
    if form != "ndjson":
        assert places == list(range(35))
    for cut in (1, 19, 20, 21, 34):
        assert events([item], places[cut], format=form) == found[cut:]
        assert events([item], 0, places[cut], format=form) == found[:cut]


def test_file_that_only_looks_like_an_archive_is_read_as_plain(tmp_path: Path) -> None:
    ustar = b"x" * 257 + b"ustar\x0000" + b"y" * 400 + b"\n"
    for number, data in enumerate([b"PK is a name\n", b"PK\n\x03\x04\n", ustar, ustar * 3]):
        item = written(tmp_path / str(number), data)
        assert [body for _, _, body in events([item])] == data.splitlines()
    table = pa.table({"n": [1], "x": ["ustar\x0000" * 200]})
    pq.write_table(table, tmp_path / "p", compression="none")
    assert len(events([listed(tmp_path / "p")], format="parquet")) == 1


def test_archives_are_read_as_plain_with_archives_off(tmp_path: Path) -> None:
    item = written(tmp_path / "a.tar", tar({"a": b"one\n"}))
    (event, *_) = reading([item], archives=False)
    assert dict(event["attrs"]) == {"path": item.location}
    assert event["body"].startswith(b"a\0")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.zip"])
def test_file_named_as_an_archive_that_is_none_is_reported(tmp_path: Path, name: str) -> None:
    data = b"a line\n" * 200
    item = written(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)
    got, error = until_damage(item)
    assert not got
    assert f"the content is not a {'zip' if name == 'a.zip' else 'tar'}" in error.why
    assert events([written(tmp_path / f"empty{name}", b"")]) == []


def test_nested_archive_is_reported_after_the_other_members(tmp_path: Path) -> None:
    files = {"a": b"one\n", "inner.zip": zipped({"x": b"no\n"}), "b.tgz": PACK["tgz"]({"x": b"no"})}
    item = written(tmp_path / "a.tar", tar({**files, "c": b"two\n"}))
    got, error = until_damage(item)
    assert got == [(0, "a", b"one"), (4, "c", b"two")]
    assert "archives in an archive are not read: inner.zip, and 1 more" in error.why
    assert error.offset == 8
    assert until_damage(item, 8)[1].offset == 8
    item = written(tmp_path / "a.zip.gz", gzip.compress(zipped({"a": b"one\n"})))
    assert "a zip file that is compressed again is not read" in until_damage(item)[1].why


def test_empty_archives_have_no_events(tmp_path: Path) -> None:
    for kind in ("tar", "tar.gz", "zip"):
        assert events([written(tmp_path / f"a.{kind}", PACK[kind]({}))]) == []


def test_archives_one_after_the_other_are_read_to_the_end(tmp_path: Path) -> None:
    data = tar({"a": b"one\n"}) + tar({"b": b"two\n"})
    expected = [(0, "a", b"one"), (4, "b", b"two")]
    assert events([written(tmp_path / "a.tar", data)]) == expected
    got, error = until_damage(written(tmp_path / "b.tar", data + b"something else" * 100))
    assert (got, error.offset) == (expected, 8)


def test_zip_that_cannot_be_unpacked_is_reported_with_the_reason(tmp_path: Path) -> None:
    methods = {"a": zipfile.ZIP_BZIP2, "b": zipfile.ZIP_LZMA}
    for name, method in methods.items():
        item = written(tmp_path / f"{name}.zip", zipped({"x": b"one\n"}, method))
        assert "only deflate is read" in until_damage(item)[1].why
    (tmp_path / "plain").write_bytes(b"one\n")
    command = ["zip", "-qj", "-P", "word", str(tmp_path / "c.zip"), str(tmp_path / "plain")]
    subprocess.run(command, check=True)
    got, error = until_damage(listed(tmp_path / "c.zip"))
    assert not got
    assert "member plain: the zip member is encrypted" in error.why


@pytest.mark.long
@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.bz2", "tar.xz", "tar.zst"])
def test_truncated_tar_is_read_up_to_its_end(tmp_path: Path, kind: str) -> None:
    packed = PACK[kind](FILES)
    for part in (0.05, 0.5, 0.9):
        item = written(tmp_path / f"a.{kind}", packed[: int(len(packed) * part)])
        got, error = until_damage(item)
        assert got == lines_of(FILES)[: len(got)]
        assert error.offset == sum(len(body) + 1 for _, _, body in got) - any(
            body == b"two" for _, _, body in got
        )
        assert len(got) > (9 if kind != "tar.bz2" and part > 0.3 else -1)
        again, same = until_damage(item, error.offset)
        assert (again, same.offset) == ([], error.offset)


def test_damaged_tar_header_is_reported_and_not_taken_for_the_end(tmp_path: Path) -> None:
    packed = bytearray(tar({"a": b"one\n", "b": b"two\n", "c": b"three\n"}))
    packed[1024 + 5] ^= 1
    got, error = until_damage(written(tmp_path / "a.tar", bytes(packed)))
    assert got == [(0, "a", b"one")]
    assert "the tar is damaged: at byte 1024: bad checksum" in error.why


@pytest.mark.slow
def test_a_damaged_member_ends_the_reading_behind_its_last_line(tmp_path: Path) -> None:
    content = b"".join(b"%d %d\n" % (n, n * n) for n in range(20_000))
    for kind in ("zip", "tar"):
        inner = {"a": b"one\n", "b.gz": gzip.compress(content), "c": b"three\n"}
        files = {"a": b"one\n", "b": content, "c": b"3\n"} if kind == "zip" else inner
        packed = bytearray(PACK[kind](files))
        packed[len(packed) // 2] ^= 0xFF
        item = written(tmp_path / f"a.{kind}", bytes(packed))
        got, error = until_damage(item)
        assert [body for _, _, body in got[1:4001]] == content.splitlines()[:4000]
        assert "member b" in error.why
        assert error.offset >= got[-1][0]
        assert until_damage(item, error.offset)[0] == []


def test_zip_that_contradicts_its_directory_is_damage(tmp_path: Path) -> None:
    packed = zipped({"a": b"one\n", "b": b"two\n"}, zipfile.ZIP_STORED)
    item = written(tmp_path / "a.zip", packed.replace(b"two\n", b"TWO\n"))
    got, error = until_damage(item)
    assert [body for _, _, body in got] == [b"one", b"TWO"]
    assert "wrong size or checksum" in error.why
    got, error = until_damage(written(tmp_path / "b.zip", packed[:-30]))
    assert (got, "the zip is damaged" in error.why) == ([], True)


def find_lines(content: Content, start: int, end: int) -> Iterator[Part]:
    return lines.parts(content, SOURCE, start, end)


def unpacked(item: Item, allowance: Allowance) -> tuple[bytes, str]:
    """The lines of the members until the allowance ends, and the error."""
    opened = OpenItem.of(item, item.location, str)
    content = content_of(opened)
    found = parts_of_members(opened, content, find_lines, allowance, start=0, end=MOST_POSITION)
    data = b""
    with pytest.raises(CorruptError) as told:
        for _, part in found:
            assert isinstance(part, Segment)
            data += part.data
    return data, str(told.value)


@pytest.mark.slow
def test_decompression_bombs_are_refused(tmp_path: Path) -> None:
    zeros = (b"0" * (1 << 20) + b"\n") * 16
    bomb = {"a": b"one\n", "bomb": zeros}
    for kind in ("zip", "tar.gz", "tar.zst"):
        item = written(tmp_path / f"a.{kind}", PACK[kind](bomb))
        data, why = unpacked(item, Allowance(1, free=4 << 20))
        assert data.startswith(b"one\n0")
        assert len(data) <= 4 << 20
        assert "unpack to more than" in why
    inner = written(tmp_path / "b.tar", tar({"a.gz": gzip.compress(zeros)}))
    assert "unpack to more than" in unpacked(inner, Allowance(1, free=4 << 20))[1]
    info = tarfile.TarInfo("holes")
    info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 60)}
    info.size = 1
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(b"x"))
    assert "unpack to more" in until_damage(written(tmp_path / "c.tar", out.getvalue()))[1].why


def test_overlapping_members_are_refused(tmp_path: Path) -> None:
    packed = zipped({"a": os.urandom(5000)}, zipfile.ZIP_STORED)
    directory = packed.index(b"PK\x01\x02")
    entry = packed[directory : packed.index(b"PK\x05\x06")]
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 9, 9, len(entry) * 9, directory, 0)
    got, error = until_damage(written(tmp_path / "a.zip", packed[:directory] + entry * 9 + end))
    assert not got
    assert "members overlap" in error.why


def test_the_number_of_members_is_bounded(tmp_path: Path) -> None:
    files = {str(n): b"%d\n" % n for n in range(12)}
    for kind in ("tar", "zip"):
        item = written(tmp_path / f"a.{kind}", PACK[kind](files))
        data, why = unpacked(item, Allowance(item.size, members=10))
        assert len(data.splitlines()) == 10
        assert "more than 10 members" in why


def test_oversized_header_is_not_read_into_memory(tmp_path: Path) -> None:
    item = written(tmp_path / "a.tar", tar({"a": b"one\n", "n" * (17 << 20): b"two\n"}))
    got, error = until_damage(item)
    assert got == [(0, "a", b"one")]
    assert "header of over 16 MiB" in error.why


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_ten_thousand_members_are_read_in_seconds(tmp_path: Path, kind: str) -> None:
    files = {f"logs/{n}.log": b"%d\n" % n for n in range(10_000)}
    item = written(tmp_path / f"a.{kind}", PACK[kind](files))
    begun = time.monotonic()
    assert events([item]) == lines_of(files)
    assert time.monotonic() - begun < 60


def test_zip_member_without_a_name_is_read(tmp_path: Path) -> None:
    packed = bytearray(PACK["zip"]({"a": b"one\n"}))
    end_record = 22
    assert packed[-end_record - 1 : -end_record] == b"a"
    packed[-end_record - 1] = 0
    item = written(tmp_path / "a.zip", bytes(packed))
    assert events([item]) == [(0, "", b"one")]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_altered_archive_is_read_or_damaged(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind = data.draw(st.sampled_from(["tar", "zip"]))
    packed = bytearray(PACK[kind]({"a": b"one\n", "n" * 120: b"two\n", "c": b"three\n" * 20}))
    for at in data.draw(st.lists(st.integers(0, len(packed) - 1), min_size=1, max_size=4)):
        packed[at] = data.draw(st.integers(0, 255))
    item = written(tmp_path_factory.mktemp("bits") / f"a.{kind}", bytes(packed))
    try:
        for _ in reading([item]):
            pass
    except UnreadableError as error:
        assert error.damaged
