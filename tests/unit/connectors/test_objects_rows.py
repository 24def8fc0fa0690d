"""Rows of listed objects as JSON: CSV, JSON, Parquet and Avro, whole and damaged."""

from __future__ import annotations

import csv
import decimal
import gzip
import io
import json
import math
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.files import formats
from flumeng.connectors.objects import json_elements
from flumeng.connectors.objects.csv_rows import MOST_UNFIT
from flumeng.connectors.objects.formats import numbered
from flumeng.connectors.objects.json_elements import MOST_ELEMENT_BYTES, NOT_FINITE
from flumeng.connectors.objects.options import Format, ObjectsSource
from flumeng.connectors.objects.reader import ObjectsReader
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item
from flumeng.events import json_text
from flumeng.platform.errors import CorruptError

LANE = "web.objects.0"
COUNT = 30_000
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("few", pa.list_(pa.float64())),
        pa.field("named", pa.map_(pa.string(), pa.int64())),
    ]
)


def listed(path: Path, number: int = 0) -> Item:
    status = path.stat()
    return Item(number, str(path), status.st_size, status.st_mtime_ns // 1000)


def written(path: Path, data: bytes, number: int = 0) -> Item:
    path.write_bytes(data)
    return listed(path, number)


def read(
    form: Format, found: list[Item], start: int = 0, end: int | None = None, encoding: str = "utf-8"
) -> Iterator[tuple[int, bytes]]:
    """Offset and body of each event."""
    reader = ObjectsReader.of(ObjectsSource(paths=("/in/*",), format=form, encoding=encoding))
    piece = Range(LANE, start, found[-1].end if end is None else end)
    for batch in reader.read(piece, items.encode(found)):
        batch.validate(full=True)
        assert batch.num_rows
        yield from zip(batch["seq"].to_pylist(), batch["body"].to_pylist(), strict=True)


def bodies(form: Format, item: Item, **how: Any) -> list[bytes]:
    found = list(read(form, [item], **how))
    assert [seq for seq, _ in found] == list(range(len(found)))
    return [body for _, body in found]


def bodies_of(elements: Iterator[pa.BinaryArray | str]) -> list[bytes]:
    return [body for part in numbered(elements, 0, COUNT) for body in part.bodies.to_pylist()]


def until_damage(
    form: Format, item: Item, start: int = 0, end: int | None = None
) -> tuple[list[bytes], UnreadableError]:
    got = []
    with pytest.raises(UnreadableError) as told:
        for _, body in read(form, [item], start, end):
            got.append(body)
    assert told.value.damaged
    assert told.value.why.startswith(f"{item.location}: ")
    assert UnreadableError.parse(str(told.value)).offset == told.value.offset
    return got, told.value


def row(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "text": f'"{n}"\n' if n % 3 else None,
        "at": datetime(2026, 11, 23, tzinfo=UTC),
        "few": [n / 2, 1.0],
        "named": [("a", n)],
    }


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return pa.Table.from_pylist([row(n) for n in range(COUNT)], SCHEMA)


@pytest.fixture(scope="module")
def texts(table: pa.Table) -> list[bytes]:
    (batch,) = table.combine_chunks().to_batches()
    found: list[bytes] = json_text.rows(batch).to_pylist()
    return found


@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", "avro", "json"])
def test_files_written_by_sinks_are_read_as_their_json(
    tmp_path: Path, table: pa.Table, texts: list[bytes], form: Format
) -> None:
    path = tmp_path / "part"
    writer = formats.create(pa.OSFile(str(path), "wb"), SCHEMA, form, "zstd")
    for first in range(0, COUNT, 7000):
        writer.write(table.slice(first, 7000))
    writer.close()
    item = listed(path)
    assert bodies(form, item) == texts
    cuts = [0, 1, 6999, 7001, 20_500, COUNT - 1, item.end]
    parts = [list(read(form, [item], *cut)) for cut in pairwise(cuts)]
    assert [body for part in parts for _, body in part] == texts
    assert [part[0][0] for part in parts] == cuts[:-1]


def test_small_items_with_rows_share_batches(tmp_path: Path) -> None:
    found = [written(tmp_path / str(n), b"a,b\n%d,x\n%d,y\n" % (n, n), n) for n in range(200)]
    reader = ObjectsReader.of(ObjectsSource(paths=("/in/*",), format="csv"))
    (batch,) = reader.read(Range(LANE, 0, found[-1].end), items.encode(found))
    assert batch["body"].to_pylist() == [
        b'{"a":"%d","b":"%s"}' % (n, each) for n in range(200) for each in (b"x", b"y")
    ]
    assert batch["seq"].to_pylist() == [item.start + n for item in found for n in (0, 1)]


def csv_text(rows: list[list[str]], end: str = "\r\n") -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator=end).writerows(rows)
    return out.getvalue().encode()


def as_json(names: list[str], rows: list[list[str]]) -> list[bytes]:
    return [
        json.dumps(
            dict(zip(names, row, strict=True)), ensure_ascii=False, separators=(",", ":")
        ).encode()
        for row in rows
    ]


@pytest.mark.long
@pytest.mark.parametrize("packed", [False, True])
def test_csv_values_stay_strings_unchanged(tmp_path: Path, packed: bool) -> None:
    names = ["id", "a name", "ümlaut"]
    rows = [[f"00{n}", 'x,"y"\n' * (n % 3), "" if n % 2 else "ä"] for n in range(200_000)]
    data = csv_text([names, *rows])
    item = written(tmp_path / "a", gzip.compress(data) if packed else b"\xef\xbb\xbf" + data)
    assert bodies("csv", item) == as_json(names, rows)
    part = [body for _, body in read("csv", [item], 150_000, 150_010)]
    assert part == as_json(names, rows[150_000:150_010])


def test_csv_without_data_rows_has_no_rows(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"a,b", b"a,b\n", b"\n\n")):
        assert bodies("csv", written(tmp_path / str(number), data)) == []


def test_csv_is_read_in_another_encoding(tmp_path: Path) -> None:
    item = written(tmp_path / "a", "ä;b,c\nö,ü\n".encode("utf-16"))
    assert bodies("csv", item, encoding="utf-16") == ['{"ä;b":"ö","c":"ü"}'.encode()]


def marked(
    item: Item, start: int = 0, end: int | None = None, form: Format = "csv", **options: Any
) -> list[Any]:
    """Offset, body and error of each event."""
    reader = ObjectsReader.of(ObjectsSource(paths=("/in/*",), format=form, **options))
    piece = Range(LANE, start, item.end if end is None else end)
    return [
        (event["seq"], event["body"], dict(event["attrs"]).get("parse_error"))
        for batch in reader.read(piece, items.encode([item]))
        for event in batch.to_pylist()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("where", [(0,), (7, 8), (0, 1, 2_000, 2_001, 4_998, 4_999)])
def test_csv_row_with_a_wrong_number_of_values_is_an_event_as_written(
    tmp_path: Path, where: tuple[int, ...]
) -> None:
    """Also in another block of some megabytes than the rows around it."""
    rows = [[f"{n}", "x" * 2000] for n in range(5_000)]
    for n in where:
        rows[n] = [str(n), 'a,"\n', "more"] if n % 2 else [str(n)]
    item = written(tmp_path / "a", csv_text([["a", "b"], *rows], "\n"))
    expected: list[Any] = []
    for n, row in enumerate(rows):
        if len(row) == 2:
            expected.append((n, as_json(["a", "b"], [row])[0], None))
        else:
            text = csv_text([row], "").removesuffix(b"\n")
            expected.append((n, text, f"csv: {len(row)} values, expected 2"))
    assert marked(item) == expected
    for at in {where[0], where[-1], where[-1] + 1}:
        assert marked(item, 0, at) + marked(item, at) == expected


@pytest.mark.slow
def test_csv_with_rows_of_the_wrong_width_only(tmp_path: Path) -> None:
    found = marked(written(tmp_path / "a", b"a,b\n1\n\xc3\xa4\n"))
    why = "csv: 1 values, expected 2"
    assert found == [(0, b"1", why), (1, b"\xc3\xa4", why)]
    got, error = until_damage("csv", written(tmp_path / "b", b"a,b\n" + b"1\n" * 2 * MOST_UNFIT))
    assert (got, error.offset) == ([], 0)


def test_csv_options_are_applied(tmp_path: Path) -> None:
    item = written(tmp_path / "a", b"a;a;b;a\n'1;';2;'x''y';\n")
    (found,) = marked(item, delimiter=";", quote="'")
    assert json.loads(found[1]) == {"a": "1;", "a_2": "2", "b": "x'y", "a_3": ""}
    (found,) = marked(item, delimiter=";", quote="'", columns=("b", "none"))
    assert found[1] == b'{"b":"x\'y"}'
    item = written(tmp_path / "b", b'1\t"2\n3\t4')
    first, second = marked(item, delimiter="tab", quote="", names=("x", "y"))
    assert [json.loads(one[1]) for one in (first, second)] == [
        {"x": "1", "y": '"2'}, {"x": "3", "y": "4"},
    ]  # fmt: skip
    (found,) = marked(item, delimiter="tab", quote="", names=("x", "y"), header=True)
    assert json.loads(found[1]) == {"x": "3", "y": "4"}
    with pytest.raises(UnreadableError, match="none of the columns z"):
        marked(item, columns=("z",))


def test_csv_header_over_several_lines_is_read(tmp_path: Path) -> None:
    (found,) = marked(written(tmp_path / "a", b'\r\n"a\r\nb",c\r\n1,2\r\n'))
    assert json.loads(found[1]) == {"a\r\nb": "1", "c": "2"}
    (found,) = marked(written(tmp_path / "b", b"a,b\r1,2\r"))
    assert json.loads(found[1]) == {"a": "1", "b": "2"}
    got, error = until_damage("csv", written(tmp_path / "c", b'"' + b"x" * (2 << 20)))
    assert (got, "first row" in error.why) == ([], True)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_existing_columns_are_selected(tmp_path: Path, table: pa.Table, form: Format) -> None:
    path = tmp_path / "part"
    writer = formats.create(pa.OSFile(str(path), "wb"), SCHEMA, form, "zstd")
    writer.write(table.slice(0, 10))
    writer.close()
    for columns, expected in {("few", "no", "n"): b'{"n":0,"few":[0.0,1.0]}', ("no",): b""}.items():
        source = ObjectsSource(paths=("/in/*",), format=form, columns=columns)
        item = listed(path)
        reading = ObjectsReader.of(source).read(Range(LANE, 0, item.end), items.encode([item]))
        if expected:
            (batch,) = reading
            assert batch["body"][0].as_py() == expected
            assert batch.num_rows == 10
        else:
            with pytest.raises(UnreadableError, match="none of the columns no"):
                next(reading)


@pytest.mark.slow
def test_truncated_csv_gives_the_rows_that_are_surely_whole(tmp_path: Path) -> None:
    rows = [[f"{n}", str(n * n)] for n in range(200_000)]
    packed = gzip.compress(csv_text([["a", "b"], *rows]))
    item = written(tmp_path / "a.gz", packed[: len(packed) // 2])
    got, error = until_damage("csv", item)
    assert 50_000 < len(got) == error.offset
    assert got == as_json(["a", "b"], rows[: len(got)])


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=6), st.sampled_from(['"', "\\", '\\"', "[{,}]", "\\\\", "\ud83d"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(
        st.one_of(
            st.lists(values, max_size=4), st.dictionaries(st.text(max_size=3), values, max_size=3)
        ),
        max_size=5,
    ),
    indent=st.sampled_from([None, 1]),
    between=st.sampled_from(["", " ", "\n", "\r\n\t"]),
    size=st.integers(1, 40),
)
def test_elements_are_found_for_any_layout_and_cut(
    texts: list[Any], indent: int | None, between: str, size: int
) -> None:
    data = between.join(json.dumps(text, indent=indent) for text in texts).encode()
    blocks = iter([data[at : at + size] for at in range(0, len(data), size)])
    found = bodies_of(json_elements.elements(blocks))
    expected = [each for text in texts for each in (text if isinstance(text, list) else [text])]
    assert [json.loads(body) for body in found] == expected
    assert all(b"\n" not in body for body in found)


@pytest.mark.parametrize(
    ("data", "good"),
    [
        (b"[1,2,x]", 2), (b"[1,2,]", 2), (b"[1,,2]", 1), (b"[1 2]", 0), (b"[1}", 0), (b"{]", 0),
        (b'{"a":1}{"a" 1}', 1), (b'{"a":1},{"a":1}', 1), (b"{}1", 1), (b"1", 0), (b"1 {}", 0),
        (b"[1,-NaN]", 1), (b"[1,1NaN]", 1), (b"{NaN:1}", 0), (b"[1,NaNs,2]", 1),
        (b"[1]]", 1), (b"{}}", 1), (b"[1,2", 1), (b'["a', 0), (b'{"a":1}\n{"a"', 1),
        (b'[{"a":"\x01"}]', 0), (b"[[1,2],[1,]]", 1), (b"[", 0), (b"[1,", 1), (b"[1]x[2]", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 100])
def test_invalid_json_ends_behind_its_last_valid_element(data: bytes, good: int, size: int) -> None:
    found = []
    blocks = iter([data[at : at + size] for at in range(0, len(data), size)])
    with pytest.raises(CorruptError):
        for part in numbered(json_elements.elements(blocks), 0, 100):
            found += part.bodies.to_pylist()
    assert len(found) == good


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_elements_with_numbers_unknown_to_json_are_events_as_written(size: int) -> None:
    bad = {1: [math.nan], 2: {"a": [-math.inf, 'NaN"']}, 5: math.inf, 6: {"b": math.nan}}
    rows = [bad.get(n, {"text": f'NaN, "-Infinity\\" {n}'}) for n in range(9)]
    data = json.dumps(rows).encode() + json.dumps({"z": math.nan}).encode() + b"[0]"
    found = json_elements.elements(iter([data[at : at + size] for at in range(0, len(data), size)]))
    texts = [json.dumps(each, separators=(",", ":")).encode() for each in rows]
    expected = [(text, NOT_FINITE if n in bad else "") for n, text in enumerate(texts)]
    expected += [(b'{"z":NaN}', NOT_FINITE), (b"0", "")]
    assert [
        (body, part.error) for part in numbered(found, 0, 100) for body in part.bodies.to_pylist()
    ] == expected


@pytest.mark.long
def test_rows_around_numbers_unknown_to_json_are_read(tmp_path: Path) -> None:
    rows: list[Any] = [{"n": n, "share": 0.5} for n in range(100_000)]
    for n in (0, 7, 8, 50_000, 99_999):
        rows[n]["share"] = math.nan
    item = written(tmp_path / "a", json.dumps(rows).encode())
    texts = [json.dumps(each, separators=(",", ":")).encode() for each in rows]
    expected = [(n, text, NOT_FINITE if b"NaN" in text else None) for n, text in enumerate(texts)]
    assert marked(item, form="json") == expected
    assert marked(item, 7, 9, form="json") == expected[7:9]
    at_records = written(tmp_path / "b", json.dumps({"x": math.inf, "a": {"b": rows}}).encode())
    assert marked(at_records, form="json", records="a.b") == expected


@pytest.mark.long
@pytest.mark.parametrize("packed", [False, True])
def test_a_large_array_is_read_in_parts(tmp_path: Path, packed: bool) -> None:
    rows = [{"n": n, "text": "]}," * (n % 5), "deep": [{"a": [n]}]} for n in range(100_000)]
    data = json.dumps(rows).encode()
    item = written(tmp_path / "a", gzip.compress(data) if packed else data)
    expected = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
    assert bodies("json", item) == expected
    assert [body for _, body in read("json", [item], 70_000, 70_003)] == expected[70_000:70_003]
    broken = written(tmp_path / "b", data[:-1].replace(b'"n": 80000,', b'"n"  80000,') + b"]")
    got, error = until_damage("json", broken)
    assert got == expected[:80_000]
    assert error.offset == 80_000
    assert len(list(read("json", [broken], 0, 80_000))) == 80_000


@pytest.mark.slow
def test_an_element_that_is_too_long_is_damage(tmp_path: Path) -> None:
    item = written(tmp_path / "a", b'[1,"' + b"x" * (MOST_ELEMENT_BYTES + (2 << 20)) + b'"]')
    got, error = until_damage("json", item)
    assert (got, error.offset) == ([b"1"], 1)
    assert "longer than" in error.why


def parquet(path: Path, table: pa.Table) -> Item:
    pq.write_table(table, path, row_group_size=10_000, compression="none", use_dictionary=False)
    return listed(path)


@pytest.mark.slow
def test_parquet_is_read_up_to_the_damaged_row_group(
    tmp_path: Path, table: pa.Table, texts: list[bytes]
) -> None:
    path = tmp_path / "a.parquet"
    parquet(path, table)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset : column.data_page_offset + 30] = b"\xff" * 30
    got, error = until_damage("parquet", written(path, bytes(data)))
    assert got == texts[:10_000]
    assert error.offset == 10_000
    after = [body for _, body in read("parquet", [listed(path)], 20_000)]
    assert after == texts[20_000:]


@pytest.mark.parametrize("form", ["lines", "json", "csv", "parquet", "avro"])
def test_an_empty_item_has_no_rows(tmp_path: Path, form: Format) -> None:
    assert bodies(form, written(tmp_path / "a", b"")) == []


@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_file_of_another_format_is_damage(tmp_path: Path, form: Format) -> None:
    for number, data in enumerate((b"nonsense", b"PAR1" + bytes(100) + b"PAR1", b"Obj\x01")):
        got, error = until_damage(form, written(tmp_path / str(number), data))
        assert (got, error.offset) == ([], 0)


AVRO = {
    "type": "record",
    "name": "r",
    "namespace": "x",
    "fields": [
        {"name": "n", "type": ["null", "long"]},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "kinds", "symbols": ["a", "b"]}},
        {"name": "again", "type": "kinds"},
        {"name": "size", "type": {
            "type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "hour", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "in", "type": {"type": "record", "name": "inner", "fields": [
            {"name": "maps", "type": {"type": "map", "values": ["null", "double"]}},
            {"name": "raw", "type": {"type": "fixed", "name": "two", "size": 2}}]}},
    ],
}  # fmt: skip


def avro(rows: list[Any], schema: Any = None, codec: str = "deflate") -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema or AVRO, rows, codec=codec)
    return out.getvalue()


def avro_row(n: int) -> dict[str, Any]:
    return {
        "n": n if n % 2 else None,
        "id": uuid.UUID(int=n),
        "kind": "a",
        "again": "b",
        "size": decimal.Decimal("1.25"),
        "day": date(2026, 11, 23),
        "hour": time(1, 2, 3, 4),
        "in": {"maps": {"x": n / 2, "y": None}, "raw": b"\0\1"},
    }


def test_avro_types_are_read(tmp_path: Path) -> None:
    item = written(tmp_path / "a.avro", avro([avro_row(1), avro_row(2)]))
    first, second = map(json.loads, bodies("avro", item))
    assert first == {
        "n": 1,
        "id": str(uuid.UUID(int=1)),
        "kind": "a",
        "again": "b",
        "size": 1.25,
        "day": "2026-11-23",
        "hour": "01:02:03.000004",
        "in": {"maps": {"x": 0.5, "y": None}, "raw": "AAE="},
    }
    assert "n" not in second


def test_types_of_avro_without_a_column_type_are_refused(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]}
    item = written(tmp_path / "a.avro", avro([], schema))
    assert "which no column can hold" in until_damage("avro", item)[1].why


def of_avro(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}


def test_unions_of_avro_become_their_present_value(tmp_path: Path) -> None:
    kind = ["null", "string", "long", {"type": "long", "logicalType": "timestamp-micros"}]
    rows = [{"a": one} for one in ("x", 5, None)]
    item = written(tmp_path / "a.avro", avro(rows, of_avro(kind)))
    assert bodies("avro", item) == [b'{"a":"x"}', b'{"a":5}', b"{}"]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_avro_codecs_are_read(tmp_path: Path, codec: str) -> None:
    rows = [{"a": n} for n in range(1000)]
    item = written(tmp_path / "a.avro", avro(rows, of_avro("long"), codec))
    assert bodies("avro", item) == [b'{"a":%d}' % n for n in range(1000)]


@pytest.mark.parametrize(
    ("kind", "good", "bad", "shown"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, 0, 253402300800000, 253402300800000),
        ({"type": "long", "logicalType": "timestamp-micros"}, 0, 2**63 - 1, 2**63 - 1),
        ({"type": "int", "logicalType": "date"}, 0, 2932897, 2932897),
        ({"type": "int", "logicalType": "time-millis"}, 0, 86400000, 86400000),
        ({"type": "string", "logicalType": "uuid"}, str(uuid.UUID(int=1)), "none", "none"),
    ],
)
def test_avro_value_out_of_range_costs_only_its_row(
    tmp_path: Path, kind: Any, good: Any, bad: Any, shown: Any
) -> None:
    rows = [{"a": good if n != 500 else bad} for n in range(1000)]
    item = written(tmp_path / "a.avro", untyped_avro(rows, of_avro(kind)))
    got = marked(item, form="avro")
    assert len(got) == 1000
    assert [n for n, one in enumerate(got) if one[2]] == [500]
    assert got[500][2] == "avro: a: the value does not fit its type"
    assert json.loads(got[500][1]) == {"a": shown}


def untyped_avro(rows: list[Any], schema: Any) -> bytes:
    """A file of ``schema`` whose values ignore its logical types."""
    (field,) = schema["fields"]
    plain = avro(rows, of_avro(field["type"]["type"]), "null")
    typed = avro([], schema, "null")
    marker = plain[-16:]
    head = typed[: -len(typed) + typed.index(typed[-16:])]
    return head + marker + plain[plain.index(marker) + 16 :]


def test_avro_decimals_keep_all_digits_and_uuids_are_text(tmp_path: Path) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}
    value = decimal.Decimal("1" * 45 + ".25")
    item = written(tmp_path / "a.avro", avro([{"a": value}], of_avro(kind)))
    assert bodies("avro", item) == [b'{"a":' + str(value).encode() + b"}"]
    fixed = {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}
    item = written(tmp_path / "b.avro", avro([{"a": b"\1" * 16}], of_avro(fixed)))
    assert json.loads(bodies("avro", item)[0]) == {"a": str(uuid.UUID(bytes=b"\1" * 16))}


def test_int96_times_beyond_nanoseconds_are_exact(tmp_path: Path) -> None:
    micros = [253_402_214_400_000_000, -62_135_596_800_000_000, 1_764_292_323_000_000]
    times = pa.table({"at": pa.array(micros, pa.timestamp("us"))})
    path = tmp_path / "a.parquet"
    pq.write_table(times, path, use_deprecated_int96_timestamps=True)
    assert [json.loads(body)["at"] for body in bodies("parquet", listed(path))] == [
        "9999-12-31T00:00:00.000000",
        "0001-01-01T00:00:00.000000",
        "2025-11-28T01:12:03.000000",
    ]


def test_parquet_uuids_and_fixed_size_binary_are_read(tmp_path: Path) -> None:
    raw = pa.array([b"\1" * 16, None], pa.binary(16))
    table = pa.table({"id": pa.ExtensionArray.from_storage(pa.uuid(), raw), "raw": raw})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    first, second = map(json.loads, bodies("parquet", listed(path)))
    assert first == {"id": str(uuid.UUID(bytes=b"\1" * 16)), "raw": "AQEBAQEBAQEBAQEBAQEBAQ=="}
    assert second == {}


def test_csv_escapes_are_read(tmp_path: Path) -> None:
    text = b'id,j\n1,"{\\"a\\":\\"b,c\\"}"\n2,x\n'
    item = written(tmp_path / "a.csv", text)
    first, second = marked(item, escape="\\")
    assert json.loads(first[1]) == {"id": "1", "j": '{"a":"b,c"}'}
    assert json.loads(second[1]) == {"id": "2", "j": "x"}


@pytest.mark.slow
def test_avro_is_read_up_to_the_damaged_block(tmp_path: Path) -> None:
    data = avro([avro_row(n) for n in range(5000)], codec="null")
    whole = bodies("avro", written(tmp_path / "whole", data))
    assert len(whole) == 5000
    got, error = until_damage("avro", written(tmp_path / "a", data[:-1000]))
    assert 3000 < len(got) == error.offset < 5000
    assert got == whole[: len(got)]
    assert [body for _, body in read("avro", [listed(tmp_path / "whole")], 4000, 4007)] == (
        whole[4000:4007]
    )


def at(path: str, data: bytes, size: int = 7) -> list[bytes]:
    blocks = iter([data[at : at + size] for at in range(0, len(data), size)])
    return bodies_of(json_elements.elements_at(blocks, path.split(".")))


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    documents=st.lists(
        st.tuples(
            st.dictionaries(st.text(max_size=3), values, max_size=3),
            st.one_of(
                st.none(), st.lists(st.dictionaries(st.text(max_size=3), values), max_size=3)
            ),
            st.dictionaries(st.text(max_size=3), values, max_size=2),
        ),
        max_size=3,
    ),
    indent=st.sampled_from([None, 1]),
    size=st.integers(1, 40),
)
def test_records_are_found_anywhere_in_an_object(
    documents: list[Any], indent: int | None, size: int
) -> None:
    texts = [
        {
            **before,
            "data": {**after, "the items": records, "x": before},
            **{f"{k}z": 1 for k in after},
        }
        for before, records, after in documents
    ]
    data = "\n".join(json.dumps(text, indent=indent) for text in texts).encode()
    found = at("data.the items", data, size)
    assert [json.loads(body) for body in found] == [
        record for _, records, _ in documents for record in records or ()
    ]


def test_records_have_names_with_escaped_surrogates() -> None:
    assert at("😀.b", rb'{"\ud83d\ude00": {"\udead": 0, "b": [1]}}') == [b"1"]
    assert at(r"a\ud83d", rb'{"\ud83d": [1], "a\\ud83d": [2]}') == [b"2"]


def test_missing_records_are_reported() -> None:
    assert at("a.b", b'{"a":{"b":{"c":1}}} {"a":null}') == [b'{"c":1}']
    for data in (b'{"a":{}}', b"[1]", b'{"a":[]}', b'{"a":{"b":1}}', b'{"a":{"b":[1', b'{"a" 1}',
                 b'{"a":nope}', b'{"x":"', b"{1:2}", b'{"a":{"b":[]}'):  # fmt: skip
        with pytest.raises(CorruptError):
            at("a.b", data)


def test_records_among_other_data_are_read_in_bounded_steps(tmp_path: Path) -> None:
    rows = [{"n": n} for n in range(20_000)]
    texts = {
        "other": [{"Records": n, "s": "]}\\"} for n in range(20_000)],
        "Records": rows,
        "z": rows,
    }
    item = written(tmp_path / "a.gz", gzip.compress(json.dumps(texts).encode()))
    source = ObjectsSource(paths=("/in/*",), format="json", records="Records")
    reader = ObjectsReader.of(source).read(Range(LANE, 0, item.end), items.encode([item]))
    found = [body for batch in reader for body in batch["body"].to_pylist()]
    assert found == [b'{"n":%d}' % n for n in range(20_000)]
