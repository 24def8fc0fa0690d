"""Events of listed objects: each once however ranges are cut, and all that lies before damage."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.dead_letters.directory import DeadLetterDirectory
from flumeng.connectors.objects.compression import codec_of
from flumeng.connectors.objects.formats import cuttable
from flumeng.connectors.objects.lines import MOST_LINE_BYTES
from flumeng.connectors.objects.open_item import BLOCK_BYTES, SMALL_BYTES, OpenItem
from flumeng.connectors.objects.options import Format, ObjectsSource
from flumeng.connectors.objects.reader import BATCH_ROWS, ObjectsReader
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item, offset_of, position_of
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import CorruptError, UserError
from flumeng.platform.secrets import resolve

LANE = "web.objects.0"
ENTRIES = b"".join(b'%d "GET /%d HTTP/1.1" 200\n' % (n, n * n) for n in range(60_000))


def arrow(codec: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as out:
            out.write(data)
        found: bytes = sink.getvalue().to_pybytes()
        return found

    return compress


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": arrow("zstd"),
    ".lz4": arrow("lz4"),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def listed(path: Path, number: int = 0) -> Item:
    status = path.stat()
    return Item(number, str(path), status.st_size, status.st_mtime_ns // 1000)


def written(path: Path, data: bytes, number: int = 0) -> Item:
    path.write_bytes(data)
    return listed(path, number)


def reader(form: Format = "lines", encoding: str = "utf-8") -> ObjectsReader:
    return ObjectsReader.of(ObjectsSource(paths=("/in/*",), format=form, encoding=encoding))


def batches(
    of: ObjectsReader, found: list[Item], start: int | None = None, end: int | None = None
) -> Iterator[pa.RecordBatch]:
    piece = Range(
        LANE, found[0].start if start is None else start, found[-1].end if end is None else end
    )
    yield from pickle.loads(pickle.dumps(of)).read(piece, items.encode(found))


def events(of: ObjectsReader, found: list[Item], *bounds: int) -> list[tuple[int, bytes]]:
    """Offset and body of each event."""
    return [
        (event["seq"], event["body"])
        for batch in batches(of, found, *bounds)
        for event in batch.select(["seq", "body"]).to_pylist()
    ]


def until_damage(
    of: ObjectsReader, found: list[Item], *bounds: int
) -> tuple[list[tuple[int, bytes]], UnreadableError]:
    got: list[tuple[int, bytes]] = []
    with pytest.raises(UnreadableError) as told:
        for batch in batches(of, found, *bounds):
            got += zip(batch["seq"].to_pylist(), batch["body"].to_pylist(), strict=True)
    assert UnreadableError.parse(str(told.value)).offset == told.value.offset
    return got, told.value


def lines_of(data: bytes, item: Item) -> list[tuple[int, bytes]]:
    """The expected events, computed in the simplest way."""
    found, position = [], 0
    while position < len(data):
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        body = data[position:end]
        found.append((item.start + position, body.removesuffix(b"\r")))
        position = end + 1
    return found


def test_event_has_the_fields_of_its_object(tmp_path: Path) -> None:
    item = written(tmp_path / "a b.log", b"one\ntwo\n", number=3)
    piece = Range(LANE, item.start, item.end, replayed=True)
    (batch,) = reader().read(piece, items.encode([item]))
    assert batch.schema == READ_SCHEMA
    batch.validate(full=True)
    event = batch.slice(1).to_pylist()[0]
    assert event.pop("ts").timestamp() == pytest.approx(item.modified_us / 1e6)
    assert event == {
        "body": b"two",
        "host": "",
        "attrs": [("path", str(tmp_path / "a b.log"))],
        "journal": LANE,
        "seq": offset_of(3, 4),
        "replayed": True,
    }


text = st.lists(
    st.tuples(
        st.one_of(
            st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")),
            st.sampled_from([b"", b"\r", b"\r\r", "ümläut".encode()]),
        ),
        st.sampled_from([b"\n", b"\r\n"]),
    ),
    max_size=12,
).map(lambda found: b"".join(body + end for body, end in found))


def is_text(content: bytes) -> bool:
    """Whether the content begins like no archive and no compressed file, under any name."""
    try:
        return codec_of(content, "") is None and not content.startswith(b"PK")
    except CorruptError:
        return False


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_each_line_is_read_once_for_any_ranges(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("cuts")
    suffix = data.draw(st.sampled_from(["", *COMPRESS]))
    found, expected = [], []
    for number in range(data.draw(st.integers(1, 3))):
        content = data.draw(text)
        assume(is_text(content))
        if data.draw(st.booleans()):
            content = content.removesuffix(b"\n")
        packed = COMPRESS[suffix](content) if suffix else content
        item = written(tmp_path / f"{number}{suffix}", packed, number)
        found.append(item)
        expected += lines_of(content, item)
    ends = [position_of(seq) for seq, _ in expected]
    within = st.builds(
        offset_of,
        st.integers(0, len(found) - 1),
        st.one_of(st.integers(0, 200), st.sampled_from([0, *ends])),
    )
    cuts = sorted({0, found[-1].end, *data.draw(st.lists(within, max_size=6))})
    got = []
    for start, end in pairwise(cuts):
        part = events(reader(), found, start, end)
        assert all(start <= seq < end for seq, _ in part)
        got += part
    assert got == expected


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_lines_longer_than_blocks_are_read_whole(tmp_path: Path, suffix: str) -> None:
    long = os.urandom(3 << 20).replace(b"\n", b"-").replace(b"\r", b"-")
    content = ENTRIES + b"a\n" + long + b"\nb\r\n\n" + long * 2 + b"\r\n" + ENTRIES + b"c"
    packed = COMPRESS[suffix](content) if suffix else content
    item = written(tmp_path / f"a{suffix}", packed)
    expected = lines_of(content, item)
    assert events(reader(), [item]) == expected
    places = (len(ENTRIES) + n for n in (1, 2, 3, 1 << 20, (3 << 20) + 2))
    cuts = sorted([0, BLOCK_BYTES, *places, item.end])
    got = []
    for start, end in pairwise(cuts):
        got += events(reader(), [item], start, end)
    assert got == expected


@pytest.mark.slow
def test_overlong_line_is_cut_and_marked(tmp_path: Path) -> None:
    most = b"x" * MOST_LINE_BYTES
    content = b"a\n" + most + b"\r\n" + most + b"yyyy\n" + most * 2 + b"\nb"
    found = [
        (event["seq"], event["body"], dict(event["attrs"]).get("truncated"))
        for batch in batches(reader(), [written(tmp_path / "a", content)])
        for event in batch.to_pylist()
    ]
    places = [seq for seq, _ in lines_of(content, Item(0, "", 0, 0))]
    assert [seq for seq, _, _ in found] == places
    assert [mark for _, _, mark in found] == [None, None, "true", "true", None]
    assert [body for _, body, _ in found] == [b"a", most, most, most, b"b"]


def test_empty_lines_are_events_of_lines_but_not_of_ndjson(tmp_path: Path) -> None:
    found = [written(tmp_path / str(n), b"\n{}\n\r\n[1]\n\n" * n, n) for n in range(3)]
    assert [body for _, body in events(reader(), found)] == [b"", b"{}", b"", b"[1]", b""] * 3
    assert events(reader("ndjson"), found) == [
        (seq, body) for seq, body in events(reader(), found) if body
    ]
    blank = written(tmp_path / "blank", b"\n\n")
    assert list(batches(reader("ndjson"), [blank])) == []


@pytest.mark.slow
def test_many_small_items_are_few_batches(tmp_path: Path) -> None:
    content = {n: b"%d\n" % n * (n % 40) for n in range(3000)}
    found = [written(tmp_path / f"{n}", data, n) for n, data in content.items()]
    got = list(batches(reader(), found))
    assert len(got) == 1
    expected = [each for item in found for each in lines_of(content[item.number], item)]
    assert [(e["seq"], e["body"]) for e in got[0].select(["seq", "body"]).to_pylist()] == expected
    paths = [dict(attrs)["path"] for attrs in got[0]["attrs"].to_pylist()]
    assert paths == [str(tmp_path / str(seq >> 38)) for seq, _ in expected]


@pytest.mark.slow
def test_batches_are_limited_in_rows_and_bytes(tmp_path: Path) -> None:
    item = written(tmp_path / "a", b"\n" * (BATCH_ROWS * 3) + b"x" * 100 + b"\n" + ENTRIES * 8)
    got = list(batches(reader(), [item]))
    assert max(batch.num_rows for batch in got) == BATCH_ROWS
    assert max(batch["body"].nbytes for batch in got) < 3 * BLOCK_BYTES
    assert sum(batch.num_rows for batch in got) == BATCH_ROWS * 3 + 1 + 60_000 * 8


@pytest.mark.slow
@pytest.mark.parametrize("suffix", COMPRESS)
def test_concatenated_members_are_read_under_any_name(tmp_path: Path, suffix: str) -> None:
    compress = COMPRESS[suffix]
    packed = compress(ENTRIES) + compress(b"") + compress(b"last\n")
    expected = lines_of(ENTRIES + b"last\n", Item(0, "", 0, 0))
    assert events(reader(), [written(tmp_path / "plain.log", packed)]) == expected
    start = expected[50_000][0]
    assert events(reader(), [written(tmp_path / "plain.log", packed)], start) == expected[50_000:]


def test_zero_padding_between_gzip_members_is_skipped(tmp_path: Path) -> None:
    item = written(tmp_path / "a.gz", gzip.compress(b"a\n") + bytes(3000) + gzip.compress(b"b\n"))
    assert [body for _, body in events(reader(), [item])] == [b"a", b"b"]


def test_an_empty_item_of_any_name_has_no_events(tmp_path: Path) -> None:
    for number, suffix in enumerate(["", *COMPRESS]):
        assert events(reader(), [written(tmp_path / f"a{suffix}", b"", number)]) == []


@pytest.mark.long
@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("kept", [0.3, 0.999])
def test_lines_before_the_end_of_a_truncated_item_are_read(
    tmp_path: Path, suffix: str, kept: float
) -> None:
    packed = COMPRESS[suffix](ENTRIES)
    item = written(tmp_path / f"a{suffix}", packed[: int(len(packed) * kept)])
    expected = lines_of(ENTRIES, item)
    got, error = until_damage(reader(), [item])
    assert error.damaged
    assert str(tmp_path / f"a{suffix}") in error.why
    assert got == expected[: len(got)]
    assert error.offset == expected[len(got)][0]
    middle = error.offset // 2
    assert events(reader(), [item], 0, middle) == [e for e in expected if e[0] < middle]
    assert events(reader(), [item], middle, error.offset) == [
        e for e in expected[: len(got)] if e[0] >= middle
    ]
    assert until_damage(reader(), [item], error.offset)[1].offset == error.offset
    assert until_damage(reader(), [item], error.offset + 7)[1].offset == error.offset + 7


def test_end_of_a_truncated_gzip_is_known_to_the_byte(tmp_path: Path) -> None:
    """Deflate without compression: the present content is plain to see."""
    content = b"".join(b"%07d\n" % n for n in range(1 << 18))
    packed = gzip.compress(content, 0)
    cut = packed.index(b"0200000\n") + 5
    item = written(tmp_path / "a.gz", packed[:cut])
    got, error = until_damage(reader(), [item])
    assert [body for _, body in got] == [b"%07d" % n for n in range(200_000)]
    assert error.offset == 200_000 * 8


@pytest.mark.slow
def test_wrong_checksum_is_reported_behind_the_lines_that_are_surely_whole(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(ENTRIES))
    packed[-6] ^= 0xFF
    item = written(tmp_path / "a.gz", bytes(packed) + gzip.compress(b"more\n"))
    got, error = until_damage(reader(), [item])
    expected = lines_of(ENTRIES, item)
    assert got == expected[:-1]
    assert error.offset == expected[-1][0]
    assert "gzip" in error.why


def test_item_that_contradicts_its_name_is_damaged(tmp_path: Path) -> None:
    item = written(tmp_path / "a.gz", b"plain text\n")
    got, error = until_damage(reader(), [item])
    assert (got, error.offset) == ([], 0)
    assert "gzip" in error.why


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.gz", gzip.compress(gzip.compress(b"line\n")), "compressed twice: gzip inside gzip"),
        ("a", gzip.compress(bz2.compress(b"line\n")), "compressed twice: bz2 inside gzip"),
        ("a", b"\xff\x06\x00\x00sNaPpY....", "unsupported compression snappy"),
        ("a", b"\x1f\x9d....", "unsupported compression compress"),
        ("a.br", b"\x0b\x02\x80line\x03", "unsupported compression brotli"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c....", "unsupported compression 7z"),
    ],
    ids=["gzip", "bz2", "snappy", "compress", "brotli", "7z"],
)
def test_unsupported_compression_is_not_read_as_text(
    tmp_path: Path, name: str, data: bytes, why: str
) -> None:
    got, error = until_damage(reader(), [written(tmp_path / name, data)])
    assert got == []
    assert why in error.why


def test_events_of_earlier_items_come_before_the_damage_of_a_later_one(tmp_path: Path) -> None:
    found = [written(tmp_path / f"{n}", b"%d\n" % n, n) for n in range(40)]
    (tmp_path / "30").unlink()
    got, error = until_damage(reader(), found)
    assert [body for _, body in got] == [b"%d" % n for n in range(30)]
    assert error.offset == offset_of(30)
    assert error.why == f"{tmp_path / '30'}: the object was deleted after it was listed"
    after = events(reader(), found, offset_of(31))
    assert [body for _, body in after] == [b"%d" % n for n in range(31, 40)]


@pytest.mark.parametrize("size", [100, SMALL_BYTES + 100])
@pytest.mark.parametrize("what", ["size", "time"])
def test_rewritten_item_is_not_read(tmp_path: Path, size: int, what: str) -> None:
    item = written(tmp_path / "a", b"x" * size)
    if what == "size":
        (tmp_path / "a").write_bytes(b"x" * (size + 1))
        os.utime(tmp_path / "a", ns=(0, item.modified_us * 1000))
    else:
        os.utime(tmp_path / "a", (0, 0))
    _, error = until_damage(reader(), [item], item.start + 5)
    assert error.why == f"{tmp_path / 'a'}: the object was rewritten after it was listed"
    assert error.offset == item.start + 5
    assert error.damaged


@pytest.mark.parametrize("size", [BLOCK_BYTES * 3 - 5, 0])
def test_item_that_changes_while_it_is_read_yields_no_acked_lines(
    tmp_path: Path, size: int
) -> None:
    item = written(tmp_path / "a", ENTRIES * 12)
    found = batches(reader(), [item], start=10)
    next(found)
    if size:
        os.truncate(tmp_path / "a", size)
    else:
        (tmp_path / "a").write_bytes(b"x" * item.size)
        os.utime(tmp_path / "a", ns=(0, item.modified_us * 1000 + 1000))
    with pytest.raises(UnreadableError, match="was rewritten after it was listed") as told:
        list(found)
    assert told.value.offset == 10


def test_directory_instead_of_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    status = (tmp_path / "d").stat()
    item = Item(0, str(tmp_path / "d"), status.st_size, status.st_mtime_ns // 1000)
    _, error = until_damage(reader(), [item])
    assert "Is a directory" in error.why


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "cp1252", "shift-jis"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_other_encodings_become_utf8(tmp_path: Path, encoding: str, suffix: str) -> None:
    words = "日本" if encoding.startswith(("utf", "shift")) else "süß"
    content = f"{words} 1\r\n\n{words} 2\n" * 20_000
    packed = content.encode(encoding)
    item = written(tmp_path / f"a{suffix}", COMPRESS[suffix](packed) if suffix else packed)
    expected = lines_of(content.encode(), item)
    assert events(reader(encoding=encoding), [item]) == expected
    middle = expected[20_001][0] + 1
    of = reader(encoding=encoding)
    assert events(of, [item], 0, middle) + events(of, [item], middle) == expected


def test_invalid_utf_8_bytes_are_kept(tmp_path: Path) -> None:
    item = written(tmp_path / "a", b"\xfe\xfd\x00\n")
    assert events(reader(), [item]) == [(0, b"\xfe\xfd\x00")]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path, suffix: str) -> None:
    data = codecs.BOM_UTF8 + b"one\ntwo\n" + codecs.BOM_UTF8 + b"three\n"
    item = written(tmp_path / f"log{suffix}", COMPRESS.get(suffix, bytes)(data))
    lines = [(3, b"one"), (7, b"two"), (11, codecs.BOM_UTF8 + b"three")]
    assert events(reader(), [item]) == lines
    ends = range(4, len(data))
    assert all(events(reader(), [item], 0, n) + events(reader(), [item], n) == lines for n in ends)
    only = written(tmp_path / f"only{suffix}", COMPRESS.get(suffix, bytes)(codecs.BOM_UTF8))
    assert events(reader(), [only]) == []


def test_utf16_is_not_taken_for_utf8(tmp_path: Path) -> None:
    item = written(tmp_path / "log", "eins\nzwei\n".encode("utf-16"))
    with pytest.raises(UnreadableError, match="set `encoding: utf-16`"):
        events(reader(), [item])
    assert [body for _, body in events(reader(encoding="utf-16"), [item])] == [b"eins", b"zwei"]


def test_unknown_encoding_is_refused() -> None:
    with pytest.raises(UserError, match="klingon"):
        reader(encoding="klingon")


@pytest.mark.parametrize(
    ("location", "form", "encoding", "wanted"),
    [
        ("s3a://a/b.log", "lines", "utf8", True),
        ("s3a://a/b.log?endpoint_override=x.gz", "lines", "utf8", True),
        ("/a/b", "ndjson", codecs.lookup("ascii").name, True),
        ("/a/b.gz", "lines", "utf-8", False),
        ("s3a://a/b.tar?endpoint_override=x", "lines", "utf-8", False),
        ("/a/b.log", "lines", "latin-1", False),
        ("/a/b.json", "json", "utf-8", False),
    ],
)
def test_formats_and_encodings_that_may_be_split(
    location: str, form: Format, encoding: str, *, wanted: bool
) -> None:
    source = ObjectsSource(paths=("/a/*",), format=form, encoding=encoding)
    assert cuttable(source)(location) == wanted


@pytest.mark.parametrize("form", ["lines", "csv"])
def test_retried_item_continues_where_it_could_not_be_read(tmp_path: Path, form: Format) -> None:
    item = written(tmp_path / "again", b"".join(b"line %d\n" % n for n in range(3000)), number=4)
    before = events(reader(form), [item])
    middle = before[1000][0]
    again = replace(item, first=position_of(middle))
    assert events(reader(form), [again]) == before[1000:]
    assert events(reader(form), [again], item.start, middle) == []
    assert events(reader(form), [again], middle + 1, item.end) == before[1001:]


def test_retried_item_that_is_missing_fails_at_the_same_position(tmp_path: Path) -> None:
    item = replace(written(tmp_path / "gone", b"a\nb\n"), first=2)
    Path(item.location).unlink()
    with pytest.raises(UnreadableError) as gone:
        events(reader(), [item])
    assert gone.value.offset == item.start + 2


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no room"),
        pa.lib.ArrowMemoryError("malloc failed"),
        OSError("ZSTD decompress failed: Allocation error : not enough memory"),
        OSError("LZ4 decompress failed: ERROR_allocation_failed"),
    ],
)
def test_shortage_of_memory_is_no_damage(tmp_path: Path, error: Exception) -> None:
    item = written(tmp_path / "a", b"one")
    with pytest.raises(MemoryError), OpenItem.of(item, item.location, resolve).explained():
        raise error
    with pytest.raises(MemoryError), DeadLetterDirectory(str(tmp_path)).errors("a"):
        raise error


LITTLE_MEMORY = """
import resource
from pathlib import Path
from backports import zstd
from flumeng.connectors.objects.compression import unpacked

packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
packed = packer.compress(b"x" * 9) + packer.flush()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20),) * 2)
try:
    list(unpacked(lambda: iter([packed]), "zstd"))
except MemoryError as error:
    print(error)
"""


@pytest.mark.slow
def test_shortage_of_memory_while_unpacking_is_no_damage() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "not enough memory" in ended.stdout
