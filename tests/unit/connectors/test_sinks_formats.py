"""Each format of the sink `files`, read back by a reader that is not ours."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from flumeng.connectors.files import formats
from flumeng.connectors.files.formats import plain, plain_schema
from flumeng.platform.errors import UserError

NOON = 43_200_000_000
DAY = datetime.date(2026, 1, 2)
LAST_DAY = datetime.date(9999, 12, 31)
ROWS = pa.table(
    {
        "body": pa.array([b'a\xff"q,\n', None, b"", "ü".encode()], pa.binary()),
        "ts": pa.array([NOON, None, 0, 1], pa.timestamp("us", "UTC")),
        "attrs": pa.array(
            [[("k", 'v"\\'), ("z", None)], None, [], [("k", "v")]],
            pa.map_(pa.string(), pa.string()),
        ),
        "list": pa.array([[1, None], [], None, [3]], pa.list_(pa.int32())),
        "s": pa.array([{"x": 1, "y": {"z": "w"}}, None, {"x": None, "y": None}, {"x": 2}]),
        "price": pa.array([decimal.Decimal("1.20"), None, decimal.Decimal("-7.00"), None]),
        "day": pa.array([DAY, LAST_DAY, None, datetime.date(1, 1, 1)]),
        "flag": pa.array([True, None, False, True]),
        "part": pa.array([1.5, -0.25, None, 1e300]),
        "text": pa.array(['a"b,c\nd', "", None, "x"]),
        "raw": pa.array([b"\xff", None, b"", b"x"], pa.binary()),
        "small": pa.array([-1, None, 127, 0], pa.int8()),
    }
)


def written(tmp_path: Path, form: str, compression: str = "none", rows: pa.Table = ROWS) -> Path:
    path = tmp_path / f"file{formats.ending(form, compression)}"
    file = formats.create(pa.OSFile(str(path), "wb"), rows.schema, form, compression)
    file.write(rows.slice(0, 1))
    file.write(rows.slice(1))
    file.close()
    return path


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "none"])
def test_orc_and_parquet_keep_every_column(tmp_path: Path, compression: str) -> None:
    assert pq.read_table(written(tmp_path, "parquet", compression)).to_pylist() == ROWS.to_pylist()
    found = orc.ORCFile(written(tmp_path, "orc", compression)).read()
    assert found.cast(ROWS.schema).to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("compression", ["zstd", "gzip", "none"])
def test_avro_keeps_every_column(tmp_path: Path, compression: str) -> None:
    with written(tmp_path, "avro", compression).open("rb") as file:
        found = list(fastavro.reader(file))
    assert found == ROWS.to_pylist(maps_as_pydicts="lossy")


def test_avro_takes_times_beyond_the_range_of_python(tmp_path: Path) -> None:
    far = pa.table({"ts": pa.array([-(10**17), 3 * 10**17], pa.timestamp("us", "UTC"))})
    with written(tmp_path, "avro", rows=far).open("rb") as file:
        assert sum(block.num_records for block in fastavro.block_reader(file)) == 2


def test_csv_has_a_header_and_one_row_for_each_event(tmp_path: Path) -> None:
    path = written(tmp_path, "csv", "gzip")
    with gzip.open(path, "rt", newline="", encoding="utf-8") as file:
        first, *others = csv.DictReader(file)
    assert len(others) == 3
    assert first["body"] == 'a\ufffd"q,\n'
    assert first["body_base64"] == "Yf8icSwK"
    assert [row["body_base64"] for row in others] == ["", "", ""]
    assert first["ts"] == "1970-01-01 12:00:00.000000Z"
    assert json.loads(first["attrs"]) == {"k": 'v"\\', "z": None}
    assert (first["list"], first["s_x"], first["s_y_z"]) == ("[1,null]", "1", "w")
    assert (first["price"], first["day"], first["flag"]) == ("1.20", "2026-01-02", "true")
    assert (first["part"], first["text"], first["raw"]) == ("1.5", 'a"b,c\nd', "/w==")
    plain_text = written(tmp_path, "csv").read_text()
    assert "\n,,," in plain_text  # the second row: nothing for a null
    assert '\n"",1970' in plain_text  # the third: an empty body


def test_json_is_a_line_for_each_event(tmp_path: Path) -> None:
    lines = written(tmp_path, "json").read_text().splitlines()
    assert len(lines) == 4
    assert json.loads(lines[0])["s"] == {"x": 1, "y": {"z": "w"}}


def test_flattened_columns_depend_only_on_types() -> None:
    flat = plain(ROWS)
    assert flat.schema == plain_schema(ROWS.schema)
    names = [name for name in flat.column_names if name.startswith("s_")]
    assert names == ["s_x", "s_y_z"]
    assert flat["s_x"].to_pylist() == [1, None, None, 2]
    assert flat["attrs"].to_pylist() == ['{"k":"v\\"\\\\","z":null}', None, "{}", '{"k":"v"}']
    assert flat["list"].to_pylist() == ["[1,null]", "[]", None, "[3]"]
    with pytest.raises(UserError, match="two columns get the name A_B"):
        plain_schema(pa.schema([("A_B", pa.int8()), ("a", pa.struct([("b", pa.int8())]))]))


@pytest.mark.parametrize(
    ("form", "schema", "message"),
    [
        ("text", pa.schema([("ts", pa.int64())]), "which the filters do not keep"),
        ("avro", pa.schema([("a-b", pa.int64())]), "cannot name a column a-b"),
        (
            "avro",
            pa.schema([("m", pa.map_(pa.int8(), pa.int8()))]),
            r"not support map<int8, int8> \(m\)",
        ),
        ("orc", pa.schema([("d", pa.duration("s"))]), "orc cannot hold"),
    ],
)
def test_columns_that_a_format_cannot_hold_are_reported_before_the_first_batch(
    form: str, schema: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        formats.require_fit(schema, form)
    for fine in ("parquet", "orc", "avro", "json", "csv", "text"):
        formats.require_fit(ROWS.schema, fine)
